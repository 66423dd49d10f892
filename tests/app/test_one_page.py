"""Streamlit's messages to the browser when a part of a page is drawn again before all of them were sent."""

from __future__ import annotations

from typing import Any

import pytest
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg
from streamlit.runtime.app_session import AppSession
from streamlit.runtime.forward_msg_queue import ForwardMsgQueue

from diag.app.one_page import keep_to_one_page

PATCHED = ("request_rerun", "_enqueue_forward_msg", "_clear_queue")


class Session:
    """What of a session has to do with its messages."""

    def __init__(self) -> None:
        self._browser_queue = ForwardMsgQueue()

    def clear(self, *parts: str) -> None:
        session: Any = AppSession
        session._clear_queue(self, list(parts) or None)

    def enqueue(self, *messages: ForwardMsg) -> None:
        for message in messages:
            self._browser_queue.enqueue(message)

    def flushed(self) -> list[ForwardMsg]:
        return self._browser_queue.flush()

    def sent(self) -> list[list[int]]:
        return [list(message.metadata.delta_path) for message in self.flushed()]


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> Session:
    for name in PATCHED:  # so that they are as before after the test
        monkeypatch.setattr(AppSession, name, getattr(AppSession, name))
    keep_to_one_page()
    return Session()


def block(path: list[int], fragment: str = "") -> ForwardMsg:
    message = ForwardMsg()
    message.metadata.delta_path[:] = path
    message.delta.add_block.vertical.SetInParent()
    message.delta.fragment_id = fragment
    return message


def test_a_part_that_is_drawn_again_leaves_no_part_without_its_block(session: Session) -> None:
    session.enqueue(block([0, 0]), block([0, 0, 0], "outer"), block([0, 0, 0, 0], "inner"))
    session.clear("outer")
    session.enqueue(block([0, 0, 0], "outer"))
    assert session.sent() == [[0, 0], [0, 0, 0], [0, 0, 0, 0], [0, 0, 0]]


def test_the_end_of_another_part_is_told_to_the_browser(session: Session) -> None:
    status = ForwardMsg.ScriptFinishedStatus.FINISHED_FRAGMENT_RUN_SUCCESSFULLY
    session.enqueue(ForwardMsg(script_finished=status))
    session.clear("inner")
    assert [message.script_finished for message in session.flushed()] == [status]


def test_a_page_that_is_drawn_again_replaces_what_was_not_sent(session: Session) -> None:
    session.enqueue(block([0, 0]))
    session.clear()
    assert session.sent() == []
