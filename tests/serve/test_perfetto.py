"""The server of one file: from this machine, for Perfetto's page, once, and nothing else."""

from __future__ import annotations

import http.client
import re
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs

import pytest

from diag.errors import DiagError
from diag.perfetto import ADDRESS, UI, TraceServer, link, show
from tests.patience import PATIENCE_S

CONTENT = b"\x1f\x8b a trace" * 10_000


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "secret.txt").write_text("secret")
    path = tmp_path / "rank0-step-7.json.gz"
    path.write_bytes(CONTENT)
    return path


@pytest.fixture
def server(file: Path) -> Iterator[TraceServer]:
    with TraceServer(file, port=0) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        yield server
        server.shutdown()


def ask(
    server: TraceServer, path: str, method: str = "GET", headers: dict[str, str] | None = None
) -> tuple[http.client.HTTPResponse, bytes]:
    connection = http.client.HTTPConnection(ADDRESS, server.server_address[1], timeout=PATIENCE_S)
    connection.request(method, path, headers=headers or {})
    response = connection.getresponse()
    body = response.read()
    connection.close()
    return response, body


def test_the_page_may_read_the_file(server: TraceServer) -> None:
    response, body = ask(server, server.path, headers={"Origin": UI})
    assert (response.status, body) == (200, CONTENT)
    assert response.headers["Access-Control-Allow-Origin"] == "https://ui.perfetto.dev"
    assert response.headers["Content-Length"] == str(len(CONTENT))
    assert "Content-Encoding" not in response.headers  # the page unpacks it itself
    assert server.fetched.wait(10)


def test_only_this_machine_is_listened_to(server: TraceServer) -> None:
    assert server.socket.getsockname()[0] == "127.0.0.1"
    assert server.url.startswith("http://127.0.0.1:")


@pytest.mark.parametrize(
    "path",
    [
        "/", "/secret.txt", "/rank0-step-7.json.gz", "/../secret.txt", "/%2e%2e/secret.txt", "//etc/passwd",
        "/{token}/", "/{token}/secret.txt", "/{token}/../secret.txt", "/{token}/rank0-step-7.json.gz/../secret.txt",
        "/{token}/rank0-step-7.json.gz?x=1", "/{token}/.%2fsecret.txt",
    ],
)  # fmt: skip
def test_nothing_else_is_served(server: TraceServer, path: str) -> None:
    token = server.path.split("/")[1]
    response, body = ask(server, path.format(token=token))
    assert response.status == 404
    assert b"secret" not in body
    assert "Access-Control-Allow-Origin" not in response.headers
    assert not server.fetched.is_set()


@pytest.mark.parametrize("host", ["evil.example:9001", "localhost", ""])
def test_a_site_whose_name_leads_here_gets_nothing(server: TraceServer, host: str) -> None:
    response, body = ask(server, server.path, headers={"Host": host})
    assert response.status == 404
    assert CONTENT[:10] not in body


@pytest.mark.parametrize(("method", "status"), [("POST", 404), ("PUT", 501), ("DELETE", 501), ("HEAD", 501)])
def test_other_methods_do_nothing(server: TraceServer, file: Path, method: str, status: int) -> None:
    # The page first asks a trace_processor for its status, by POST.
    assert ask(server, "/status" if method == "POST" else server.path, method)[0].status == status
    assert file.read_bytes() == CONTENT
    assert not server.fetched.is_set()


def test_a_connection_that_says_nothing_holds_nobody_up(server: TraceServer) -> None:
    with socket.create_connection((ADDRESS, server.server_address[1])):
        assert ask(server, server.path)[0].status == 200


def test_who_hangs_up_has_not_fetched(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "large.json.gz"
    with path.open("wb") as file:
        file.truncate(64 << 20)
    with TraceServer(path, port=0) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        with socket.create_connection((ADDRESS, server.server_address[1])) as client:
            client.sendall(f"GET {server.path} HTTP/1.1\r\nHost: {server.host}\r\n\r\n".encode())
            client.recv(100)
        _, body = ask(server, server.path)
        assert len(body) == 64 << 20
        assert server.fetched.wait(10)
        server.shutdown()
    assert "Traceback" not in capsys.readouterr().err


def test_addresses_cannot_be_guessed(file: Path) -> None:
    paths = set()
    for _ in range(3):
        with TraceServer(file, port=0) as server:
            paths.add(server.path)
    assert len(paths) == 3
    assert all(re.fullmatch(r"/[\w-]{20,}/rank0-step-7\.json\.gz", path) for path in paths)


def test_the_link_opens_on_the_window() -> None:
    page, _, asked = link("http://127.0.0.1:9001/token/a.json.gz", 5_000, 9_000).partition("/#!/?")
    assert page == UI
    told = {key: value[0] for key, value in parse_qs(asked).items()}
    assert told["url"] == "http://127.0.0.1:9001/token/a.json.gz"
    assert (told["visStart"], told["visEnd"]) == ("5000", "9000")
    assert "visStart" not in link("http://127.0.0.1:9001/a", -5, 10)


def test_a_taken_port_says_what_to_do(file: Path) -> None:
    with socket.socket() as other:
        other.bind((ADDRESS, 0))
        other.listen()
        with pytest.raises(DiagError, match="cannot be used") as error:
            show(file, 0, 1, open_browser=False, say=lambda _: None, port=other.getsockname()[1])
    assert "-o FILE" in error.value.hint


def test_it_ends_when_the_file_was_fetched(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The browser is a stand-in that does what Perfetto's page does."""
    said: list[str] = []
    fetched: list[bytes] = []

    def browse(address: str) -> bool:
        url = parse_qs(address.partition("?")[2])["url"][0]
        found = re.fullmatch(r"http://([\d.]+):(\d+)(/.*)", url)
        assert found
        connection = http.client.HTTPConnection(found[1], int(found[2]), timeout=PATIENCE_S)
        connection.request("POST", "/status")
        connection.getresponse().read()
        connection.request("GET", found[3], headers={"Origin": UI})
        fetched.append(connection.getresponse().read())
        return True

    monkeypatch.setattr("diag.processes.open_in_browser", browse)
    assert show(file, 0, 1, open_browser=True, say=said.append, port=0)
    assert fetched == [CONTENT]
    assert said[0].startswith(f"{UI}/#!/?url=http://127.0.0.1:")
