"""Decoders are made one at a time, everywhere: see ``diag.decoding``."""

from __future__ import annotations

import ast
import builtins
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
# Four threads decode their first record of a class at once, of 60 classes.
AT_ONCE = """
import dataclasses, sys, threading
from diag.decoding import json_decoder

sys.setswitchinterval(1e-6)
data = b'{"a0": {"f0": 1, "f11": 2}, "a3": {"f5": 5}, "b29": 3}'

def first(kind, at_once):
    at_once.wait()
    for _ in range(20):
        assert json_decoder(kind).decode(data).b29 == 3

for n in range(60):
    inner = [
        dataclasses.make_dataclass(f"Inner{n}_{i}", [(f"f{j}", int | None, None) for j in range(12)]) for i in range(4)
    ]
    fields = [(f"a{i}", kind | None, None) for i, kind in enumerate(inner)]
    kind = dataclasses.make_dataclass(f"Outer{n}", [*fields, *((f"b{i}", int | None, None) for i in range(30))])
    threads = [threading.Thread(target=first, args=(kind, at_once)) for at_once in [threading.Barrier(4)] * 4]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
"""


def test_threads_that_decode_their_first_record_at_once_do_not_crash() -> None:
    """With msgspec's own decoders, this program ends by SIGSEGV."""
    done = subprocess.run([sys.executable, "-c", AT_ONCE], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_all_decoders_are_made_there() -> None:
    elsewhere = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for folder in ("diag", "app")
        for path in (ROOT / folder).rglob("*.py")
        if path != ROOT / "diag" / "decoding.py"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and (kind := _decoded(node)) is not None
        if not {name.id for name in ast.walk(kind) if isinstance(name, ast.Name)} <= {*vars(builtins), "msgspec"}
    ]
    assert not elsewhere, "use diag.decoding"


def _decoded(call: ast.Call) -> ast.expr | None:
    """The type of a decoder that is made in this call; None where it is of no type, or no decoder of msgspec."""
    called = ast.unparse(call.func)
    if called in ("msgspec.json.Decoder", "msgspec.msgpack.Decoder"):
        return call.args[0] if call.args else None
    if called in ("msgspec.json.decode", "msgspec.msgpack.decode", "msgspec.convert"):
        return next((given.value for given in call.keywords if given.arg == "type"), None)
    return None
