"""Parts of a page that is no longer shown are not drawn, and nothing that was drawn is lost on its way to the browser.

Streamlit takes the request of a part (a fragment) with the page that the browser showed when it asked. If another page
has been asked for meanwhile, as on a busy machine, it tells the browser that the page has changed back. The browser
then throws away what is drawn, and nothing draws it again: the page stays blank. Streamlit 1.67 does so.

A part that the server no longer has, because the whole page was drawn meanwhile, is skipped: what the browser still
shows of it, as the place of a figure, asks for ever. Then the whole page is drawn, so that both have the same parts.

When a part is drawn again, Streamlit removes its messages that a busy server has not sent yet, but not those of the
parts in it. The browser gets these without the blocks that they belong to, gives up, and the page is blank. It also
changes the message that another part is complete, after which the browser removes what the part had shown before: that
stays, and a figure is there twice. All messages are kept: the browser draws the old ones, then the new ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from streamlit.proto.ClientState_pb2 import ClientState
    from streamlit.proto.ForwardMsg_pb2 import ForwardMsg
    from streamlit.runtime.app_session import AppSession

# By session: the page that the browser was told of last, and the one that was asked for last.
_TOLD: WeakKeyDictionary[AppSession, str] = WeakKeyDictionary()
_ASKED: WeakKeyDictionary[AppSession, str] = WeakKeyDictionary()


def keep_to_one_page() -> None:
    """Makes the sessions of this process ignore requests for parts of a page that has been left, and keep messages."""
    from streamlit.runtime import app_session

    session: Any = app_session.AppSession
    ask, tell, clear = session.request_rerun, session._enqueue_forward_msg, session._clear_queue

    def request_rerun(self: AppSession, client_state: ClientState | None) -> None:
        if client_state is not None and client_state.page_script_hash:
            asked = _ASKED.get(self, client_state.page_script_hash)
            if not client_state.fragment_id:
                _ASKED[self] = client_state.page_script_hash
            elif client_state.page_script_hash != asked:
                return
            elif not self.has_fragment(client_state.fragment_id):
                # While something is drawn the parts change anyway, and what is still missing asks again.
                if client_state.is_auto_rerun or self._state != app_session.AppSessionState.APP_NOT_RUNNING:
                    return
                client_state.fragment_id = ""
        ask(self, client_state)

    def enqueue(self: AppSession, msg: ForwardMsg) -> None:
        kind = msg.WhichOneof("type")
        if kind == "navigation":
            _TOLD[self] = _ASKED[self] = msg.navigation.page_script_hash
        elif kind == "new_session" and not msg.metadata.run.fragment_ids:
            _TOLD[self] = msg.new_session.page_script_hash
        elif kind == "new_session":  # it may have been asked for before the server itself left the page
            msg.new_session.page_script_hash = _TOLD.get(self, msg.new_session.page_script_hash)
        tell(self, msg)

    def clear_queue(self: AppSession, fragment_ids_this_run: list[str] | None = None) -> None:
        if fragment_ids_this_run is None:
            clear(self)
        else:  # what follows replaces none of the messages before it
            self._browser_queue._delta_index_map = {}

    session.request_rerun, session._enqueue_forward_msg = request_rerun, enqueue
    session._clear_queue = clear_queue
