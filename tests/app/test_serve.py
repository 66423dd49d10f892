"""The server: its mistakes as messages, a real start, and an end that leaves nothing behind."""

import signal
import socket
import subprocess
import sys
import threading
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import plotly.graph_objects as go
import pytest
from plotly import basedatatypes

from diag.api import state_of
from diag.app import address, ready
from diag.app import server as app_server
from diag.errors import DiagError
from diag.serve import server
from tests.app.runs import write_run
from tests.app.served import dashboard
from tests.patience import PATIENCE_S


def test_a_path_that_is_not_there_yet(tmp_path: Path) -> None:
    with dashboard(tmp_path / "later", "--port", "0", stderr=True, forked=False) as served:
        assert served.ask()[2] == b"ok"
        served.process.send_signal(signal.SIGINT)
        _, said = served.process.communicate(timeout=PATIENCE_S)
    assert "later does not exist yet: the page waits for it." in said


def test_the_first_run_is_analysed_before_anybody_asks(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    assert not address.is_open(state_of(run))
    address.prepare(tmp_path)
    assert address.is_open(state_of(run))
    address.prepare(tmp_path / "nothing")  # a page says what is wrong


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_pages_are_drawn_even_where_the_first_analysis_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(path: Path) -> None:
        assert not ready.READY.is_set()
        raise RuntimeError("broken")

    monkeypatch.setattr("diag.app.address.prepare", broken)
    ready.READY.clear()
    app_server._warm_up(tmp_path, first_screen_s=0.0)
    assert ready.READY.is_set()


def test_pages_that_need_no_analysis_do_not_wait_for_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = threading.Event()
    monkeypatch.setattr("diag.app.address.prepare", lambda path: ended.wait())
    ready.READY.clear()
    try:
        app_server._warm_up(tmp_path, analysis_first_s=0.0, first_screen_s=0.0)
        assert ready.READY.is_set()
    finally:
        ended.set()


def test_the_first_screen_does_not_wait_for_the_modules_of_figures(tmp_path: Path) -> None:
    """The verdict, the ranks as bars and what to do: a person reads them while those modules are imported."""
    run = write_run(tmp_path / "run", slow_data_ms={1: 40})
    code = f"""
import sys
from pathlib import Path
import pytest, streamlit as st
from diag.app import ready
from tests.app import shown
sys.modules.update(pandas=None, pyarrow=None)  # importing them is an error
ready.READY.wait = st.stop
with pytest.MonkeyPatch.context() as patch:
    print(shown.text(shown.shown("overview", Path({str(run)!r}), patch)))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2]
    )
    assert "the data loader of rank 1 is slow" in done.stdout
    assert "What to do" in done.stdout
    assert "Findings" not in done.stdout


def test_the_modules_of_figures_leave_the_processor_to_the_first_screen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted: dict[str, bool] = {}

    def imported(name: str) -> ModuleType:
        wanted.setdefault(name, ready.WANTED.is_set())
        return import_module(name)

    monkeypatch.setattr("diag.app.address.prepare", lambda path: None)
    monkeypatch.setattr(app_server, "import_module", imported)
    ready.READY.clear()
    ready.WANTED.clear()
    at_work = threading.Thread(target=app_server._warm_up, args=(tmp_path,), kwargs={"first_screen_s": PATIENCE_S})
    at_work.start()
    ready.wait_until_ready()
    at_work.join()
    assert wanted["pandas"]


def test_the_theme_of_figures_is_made_after_the_first_screen(tmp_path: Path) -> None:
    """Streamlit would import Plotly to make it, before anything can be drawn; the figures have it all the same."""
    code = f"""
import sys
from pathlib import Path
from diag.app import server
server._streamlit(Path({str(tmp_path / "script.py")!r}), {{}})
import diag.app.views.overview
print("plotly.basedatatypes" in sys.modules)
from diag.app import address
address.prepare = lambda path: None
server._warm_up(Path({str(tmp_path)!r}), first_screen_s=0.0)
import plotly.io
print(plotly.io.templates.default)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "streamlit"]


def test_the_first_element_looks_neither_for_data_frames_nor_at_the_source_of_its_callers(tmp_path: Path) -> None:
    """Streamlit imports pandas to see that a list is no data frame, and looks through all modules for a REPL."""
    code = f"""
import sys
from pathlib import Path
from diag.app import server
server._streamlit(Path({str(tmp_path / "script.py")!r}), {{}})
from streamlit import delta_generator, env_util
from streamlit.components.v2.bidi_component.serialization import serialize_mixed_data
from streamlit.proto.BidiComponent_pb2 import BidiComponent
looked, sent = [], BidiComponent()
env_util.is_repl = lambda: looked.append(True)
delta_generator._maybe_print_use_warning()
serialize_mixed_data({{"rows": [1, 2], "colours": {{"ink": "black"}}}}, sent)
print(sent.json, looked, "pandas" in sys.modules, sep="|")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == '{"rows": [1, 2], "colours": {"ink": "black"}}|[]|False'


def test_no_samples(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(server, "SAMPLES", tmp_path / "nothing")
    with pytest.raises(DiagError, match="no sample runs") as error:
        server.serve_dashboard(None, port=0, open_browser=False)
    assert "diag dashboard RUN" in error.value.hint


def test_a_taken_port(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind((server.ADDRESS, 0))
        other.listen()
        with pytest.raises(DiagError, match="cannot be used") as error:
            server.serve_dashboard(tmp_path, port=other.getsockname()[1], open_browser=False)
    assert "--port 0" in error.value.hint


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM])
def test_it_starts_answers_and_ends_cleanly(slow_rank_1: Path, end: signal.Signals) -> None:
    with dashboard(slow_rank_1, forked=False) as served:
        assert served.ask()[2] == b"ok"
        served.process.send_signal(end)
        assert served.process.wait(timeout=PATIENCE_S) == 0
        with socket.socket() as probe:
            assert probe.connect_ex((server.ADDRESS, served.port)) != 0


def test_an_address_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(DiagError, match="is no address") as error:
        server.serve_dashboard(tmp_path, port=0, open_browser=False, host="no such host")
    assert "127.0.0.1" in error.value.hint


def test_a_dashboard_for_others(slow_rank_1: Path) -> None:
    name = socket.gethostname()
    with dashboard(slow_rank_1, "--host", "0.0.0.0", stderr=True, forked=False) as served:
        assert served.printed.startswith(f"http://127.0.0.1:{served.port}/?token=")
        assert served.ask(host=f"{name}:{served.port}")[0] == 200
        assert served.ask(host=f"{name}:{served.port}", authorized=False)[0] == 401
        assert served.ask(host=f"evil.example.org:{served.port}")[0] == 403
        assert served.process.stdout is not None
        printed = served.process.stdout.readline()
        served.process.send_signal(signal.SIGINT)
        _, said = served.process.communicate(timeout=PATIENCE_S)
    assert printed == f"From another machine: http://{name}:{served.port}/?token={served.token}\n"
    assert "has the token can read the runs" in said


def test_a_name_to_allow_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(DiagError, match="is no host name"):
        server.serve_dashboard(tmp_path, port=0, open_browser=False, allowed_hosts=["http://diag.example.org/"])


def test_a_name_of_plotly_is_split_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """And a figure is the same as one that Plotly makes by itself."""
    split: list[str] = []
    plain = basedatatypes._str_to_dict_path_full

    def counted(name: str) -> Any:
        split.append(name)
        return plain(name)

    def figure() -> dict[str, Any]:
        made = go.Figure(go.Bar(x=[1, 2], marker_line_width=0)).update_layout(xaxis_title_text="ms", margin={"l": 8})
        return dict(made.update_traces(error_x_visible=True, selector={"type": "bar"}).to_dict())

    monkeypatch.setattr(basedatatypes, "_str_to_dict_path_full", counted)
    by_itself = figure()
    assert len(set(split)) < len(split), "Plotly does so again and again"
    app_server._remember_names()
    split.clear()
    assert figure() == figure() == by_itself
    assert len(set(split)) == len(split) > 0
