"""Sends events to people and programs: through Apprise, and to a command's standard input. A notifier that fails or
hangs changes nothing: each delivery is a process with a time limit, started by a thread of its own."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from diag import processes
from diag.collectors.reading import read_regular
from diag.errors import DiagError, ExitCode, require
from diag.watch.policy import WATCHING

from .events import Event

VARIABLE = "DIAG_NOTIFY"  # URLs, separated by spaces or lines: other users can read command lines
COMMAND_VARIABLE = "DIAG_ON_EVENT"

# Reads {"urls", "title", "body", "type"} from standard input, so that no secret is in a command line.
_SEND = """
import json, sys
import apprise
message = json.load(sys.stdin)
sender = apprise.Apprise()
if not all(sender.add(url) for url in message["urls"]):
    sys.exit(3)
sent = sender.notify(title=message["title"], body=message["body"], notify_type=message["type"])
sys.exit(0 if sent else 4)
"""
_WHY_NOT_RUN = {126: "the shell may not execute it", 127: "the shell does not find it"}
_WHY = {3: "Apprise does not know an address", 4: "the service did not take the message"}
_TYPES = {"critical": "failure", "warning": "warning", "info": "success"}


def addresses(given: Sequence[str]) -> list[str]:
    """The URLs of ``--notify``, a file with one a line, and of the variable DIAG_NOTIFY. DiagError where there is no
    such file, or Apprise is not installed."""
    urls: list[str] = os.environ.get(VARIABLE, "").split()
    for word in given:
        if "://" in word:
            urls.append(word)
            continue
        try:
            text = read_regular(Path(word), WATCHING.notify_file_bytes, None).decode(errors="replace")
        except OSError as error:
            raise DiagError(
                f"the file of addresses cannot be read: {error.strerror}",
                path=Path(word),
                hint="--notify takes a URL of Apprise, or a file with one a line",
                exit_code=ExitCode.USAGE,
            ) from error
        urls += [line.strip() for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    if urls:
        require("apprise", "Apprise, which --notify needs,", "notify")
    return urls


def command_of(given: str) -> str:
    """The command of ``--on-event``, else of the variable DIAG_ON_EVENT."""
    return given or os.environ.get(COMMAND_VARIABLE, "")


def without_addresses(arguments: Sequence[str]) -> list[str]:
    """A command line for the record: without --notify and its value, which may hold a secret."""
    kept: list[str] = []
    skip = False
    for argument in arguments:
        if not skip and not argument.startswith("--notify=") and argument != "--notify":
            kept.append(argument)
        skip = argument == "--notify" and not skip
    return kept


class Notifier:
    """Delivers events in order, with at least a minute between two messages. What is over before it was sent is not
    sent; of what waits, one message. ``say`` is called once with the reason where a delivery fails."""

    def __init__(self, urls: Sequence[str], command: str, say: Callable[[str], object]) -> None:
        self._urls, self._command, self._say = list(urls), command, say
        self._events: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
        self._failed: set[str] = set()
        self._last_s = float("-inf")
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="diag-notify", daemon=True)
        if urls or command:
            self._thread.start()

    def tell(self, event: Event) -> None:
        if self._thread.is_alive():
            self._events.put(event)

    def stop(self) -> None:
        """Sends what waits, without the pause; returns after the time limit of a delivery at the latest."""
        if self._thread.is_alive():
            self._stopping.set()
            self._events.put(None)
            self._thread.join(2 * WATCHING.notify_s)

    def _run(self) -> None:
        waiting: list[Event] = []
        while True:
            pause_s = self._last_s + WATCHING.quiet_s - time.monotonic()
            with suppress(queue.Empty):
                event = self._events.get(timeout=max(0.0, pause_s)) if waiting else self._events.get()
                if event is not None:
                    waiting = _added(waiting, event)
            ended = self._stopping.is_set() and self._events.empty()
            if waiting and (ended or time.monotonic() >= self._last_s + WATCHING.quiet_s):
                self._deliver(waiting)
                waiting, self._last_s = [], time.monotonic()
            if ended:
                return

    def _deliver(self, events: Sequence[Event]) -> None:
        worst = min(events, key=lambda event: ("critical", "warning", "info").index(event.level))
        if self._command:
            for event in events:
                content = f"{json.dumps(event.to_dict())}\n".encode()
                self._start("--on-event", ["/bin/sh", "-c", self._command], content, _WHY_NOT_RUN)
        if self._urls:
            body = "\n".join(event.text for event in events)
            title = f"diag: {Path(worst.run).name}: {worst.kind}"
            message = {"urls": self._urls, "title": title, "body": body, "type": _TYPES[worst.level]}
            self._start("--notify", processes.python("-c", _SEND), json.dumps(message).encode(), _WHY)

    def _start(self, option: str, command: Sequence[str], content: bytes, why: dict[int, str]) -> None:
        reason = ""
        try:
            process = processes.start(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            try:
                process.communicate(content, WATCHING.notify_s)
                code = process.returncode
                reason = why.get(code, f"exit code {code}") if code else ""
            except subprocess.TimeoutExpired:
                reason = f"no end within {WATCHING.notify_s:.0f} s"
                with suppress(OSError):
                    os.killpg(process.pid, 9)
                process.wait()
        except OSError as error:
            reason = str(error.strerror)
        if reason and option not in self._failed:  # never with an address: it holds secrets
            self._failed.add(option)
            self._say(f"{option}: the message was not delivered ({reason})")


def _added(waiting: list[Event], event: Event) -> list[Event]:
    """Without a message whose matter is over before it was sent."""
    kind = event.kind.removesuffix("-over")
    if event.over and any(other.kind == kind for other in waiting):
        return [other for other in waiting if other.kind != kind]
    return [*waiting, event]
