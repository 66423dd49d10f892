"""Who is let in, as a table of requests, and who never is, whatever the request says."""

from __future__ import annotations

import socket
from dataclasses import replace
from http import HTTPStatus

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from diag.errors import DiagError
from diag.serve.guard import HEADERS, Answer, Guard, Request, checked_token, listening, new_token, resolved, url

TOKEN = "secret-of-this-start"
LOCAL = listening("127.0.0.1", "127.0.0.1", ["diag.example.org", "Proxy.example.org:8443"], TOKEN, browser=True)
OPEN = replace(LOCAL, token=None)
SCRAPED = replace(LOCAL, browser=False)
BEARER = ("authorization", f"Bearer {TOKEN}")


def request(*headers: tuple[str, str], path: str = "/", query: str = "", method: str = "GET") -> Request:
    return Request(method, path, query, headers)


def status(guard: Guard, *headers: tuple[str, str], **asked: str) -> HTTPStatus | None:
    answer = guard.answer(request(*headers, **asked))
    return answer.status if answer else None


@pytest.mark.parametrize(
    ("host", "known"),
    [
        ("127.0.0.1:8501", True),
        ("localhost:8501", True),
        ("LOCALHOST.:8501", True),
        ("localhost:9999", True),  # through an SSH tunnel
        ("localhost", True),
        ("[::1]:8501", True),
        ("[0:0:0:0:0:0:0:1]:8501", True),
        ("diag.example.org", True),
        ("proxy.example.org", True),
        ("evil.example.org:8501", False),
        ("127.0.0.1.evil.example.org", False),
        ("localhost.evil.example.org:8501", False),
        ("evil.example.org@127.0.0.1:8501", False),
        ("127.0.0.1:8501@evil.example.org", False),
        ("127.0.0.1, evil.example.org", False),
        ("127.0.0.1/evil", False),
        ("0.0.0.0:8501", False),
        ("10.1.2.3:8501", False),
        ("", False),
    ],
)
def test_host_names(host: str, known: bool) -> None:
    assert (status(OPEN, ("host", host)) is None) == known


def test_one_host_and_one_alone() -> None:
    assert status(OPEN) == HTTPStatus.FORBIDDEN
    assert status(OPEN, ("host", "localhost"), ("host", "evil.example.org")) == HTTPStatus.FORBIDDEN


@pytest.mark.parametrize(
    ("host", "origin", "own"),
    [
        ("localhost:9999", "http://localhost:9999", True),
        ("diag.example.org", "https://diag.example.org", True),
        ("127.0.0.1:8501", "https://diag.example.org", True),  # of a proxy that asks under the server's own name
        ("127.0.0.1:8501", "https://proxy.example.org:8443", True),
        ("127.0.0.1:8501", "https://proxy.example.org", False),
        ("127.0.0.1:8501", "https://diag.example.org:8443", False),
        ("localhost:8501", "http://localhost:9999", False),  # another user's server
        ("localhost:8501", "http://127.0.0.1:8501", False),
        ("localhost:8501", "http://evil.example.org:8501", False),
        ("localhost:8501", "null", False),
        ("localhost:8501", "file://", False),
        ("localhost:8501", "localhost:8501", False),
        ("localhost:8501", "", False),
    ],
)
def test_origins(host: str, origin: str, own: bool) -> None:
    assert (status(OPEN, ("host", host), ("origin", origin)) is None) == own


def test_every_origin_counts() -> None:
    own, other = ("origin", "http://localhost"), ("origin", "http://evil.example.org")
    assert status(OPEN, ("host", "localhost"), own, other) == HTTPStatus.FORBIDDEN


HOST = ("host", "localhost:8501")
COOKIE = ("cookie", f"other=1; diag_token_8501={TOKEN}")


def test_the_token_of_a_request() -> None:
    for guard in (LOCAL, SCRAPED):
        assert status(guard, HOST) == HTTPStatus.UNAUTHORIZED
        assert status(guard, HOST, BEARER) is None
        assert status(guard, HOST, COOKIE) is None
        assert status(guard, HOST, ("authorization", f"bearer  {TOKEN}")) is None
        for wrong in ("Bearer", "Bearer ", f"Basic {TOKEN}", f"Bearer {TOKEN}x", "Bearer ü", f"Bearer {TOKEN[:-1]}"):
            assert status(guard, HOST, ("authorization", wrong)) == HTTPStatus.UNAUTHORIZED
        # The cookie of the dashboard on another port.
        assert status(guard, ("host", "localhost:8502"), COOKIE) == HTTPStatus.UNAUTHORIZED
        # Neither token nor cookie help under another name.
        assert status(guard, ("host", "evil.example.org"), BEARER, COOKIE) == HTTPStatus.FORBIDDEN
    assert status(SCRAPED, HOST, query=f"token={TOKEN}") is None
    assert status(SCRAPED, HOST, query="token=wrong") == HTTPStatus.UNAUTHORIZED


def redirect(*headers: tuple[str, str], path: str = "/", query: str) -> dict[str, str]:
    answer = LOCAL.answer(request(HOST, *headers, path=path, query=query))
    assert answer is not None
    assert answer.status == HTTPStatus.SEE_OTHER
    return dict(answer.headers)


def test_the_token_becomes_a_cookie_and_the_link_stays() -> None:
    headers = redirect(path="/what-if", query=f"run=a%20b&token={TOKEN}&step=3")
    assert headers["location"] == "/what-if?run=a%20b&step=3"
    assert headers["set-cookie"] == f"diag_token_8501={TOKEN}; Path=/; HttpOnly; SameSite=Strict"
    assert headers["cache-control"] == "no-store"
    assert redirect(query=f"token={TOKEN}")["location"] == "/"
    # A bookmark of another start, in a browser that was let in since.
    headers = redirect(COOKIE, query="token=old&run=a")
    assert headers["location"] == "/?run=a"
    assert "set-cookie" not in headers


@pytest.mark.parametrize("path", ["//evil.example.org/", "/\\evil.example.org", "/\t/evil.example.org", "\\\\evil/"])
def test_the_redirect_stays_on_this_server(path: str) -> None:
    location = redirect(path=path, query=f"token={TOKEN}")["location"]
    assert location.startswith("/")
    assert location[1:2] not in ("/", "\\", "\t")


@given(st.text(), st.text())
def test_no_header_is_smuggled_into_the_redirect(path: str, query: str) -> None:
    headers = redirect(path=path, query=f"token={TOKEN}&{query}")
    assert headers["location"].isascii()
    assert not {"\r", "\n", "\0", " "} & set(headers["location"])


def page(*headers: tuple[str, str], query: str = "", path: str = "/") -> str:
    answer = LOCAL.answer(request(HOST, ("accept", "text/html,*/*;q=0.8"), *headers, query=query, path=path))
    assert answer is not None
    assert answer.status == HTTPStatus.UNAUTHORIZED
    return answer.body.decode()


def test_pages_say_how_to_get_in() -> None:
    assert "A token is needed" in page()
    assert "is not the token of this server" in page(("cookie", "diag_token_8501=old"))
    assert "is not the token of this server" in page(query="token=old")
    # A link on another site: the browser keeps the cookie to itself until the page asks once more, and only once.
    followed = (("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "navigate"), ("sec-fetch-dest", "document"))
    assert "http-equiv" in page(*followed)
    assert "http-equiv" not in page(("sec-fetch-site", "same-origin"), *followed[1:])
    assert "http-equiv" not in page(*followed, query="token=old")
    assert "http-equiv" not in page(*followed[:2], ("sec-fetch-dest", "iframe"))


@given(
    st.text(),
    st.text(),
    st.lists(st.tuples(st.sampled_from(["host", "origin", "cookie", "authorization"]), st.text())),
    st.sampled_from(["GET", "HEAD", "PUT", "OPTIONS"]),
)
def test_nobody_gets_in_by_chance(path: str, query: str, headers: list[tuple[str, str]], method: str) -> None:
    for guard in (LOCAL, SCRAPED):
        for answer in (
            guard.answer(Request(method, path, query, tuple(headers))),
            guard.answer(Request(method, path, query, (HOST, *headers))),
        ):
            assert answer is not None
            assert set(HEADERS) <= set(answer.headers)
            assert TOKEN not in str(answer)
            assert sound(answer)


def sound(answer: Answer) -> bool:
    headers = dict(answer.headers)
    return not answer.body or int(headers["content-length"]) == len(answer.body)


def test_names_of_a_server_for_others() -> None:
    guard = listening("0.0.0.0", "0.0.0.0", [], None, browser=True)
    addresses = {a.address for one in psutil.net_if_addrs().values() for a in one if a.family == socket.AF_INET}
    for name in ("localhost", socket.gethostname(), *addresses):
        assert status(guard, ("host", f"{name}:8501")) is None
    for name in ("0.0.0.0", f"{socket.gethostname()}.evil.example.org", "evil.example.org"):
        assert status(guard, ("host", f"{name}:8501")) == HTTPStatus.FORBIDDEN
    assert "10.1.2.3" in listening("10.1.2.3", "10.1.2.3", [], None, browser=True).hosts
    assert "fe80::1" in listening("fe80::1%eth0", "fe80::1%eth0", [], None, browser=True).hosts


@pytest.mark.parametrize("name", ["", "https://diag.example.org", "a b", "name:port", "*", "name/path"])
def test_a_name_that_is_none(name: str) -> None:
    with pytest.raises(DiagError, match="is no host name") as error:
        listening("127.0.0.1", "127.0.0.1", [name], None, browser=True)
    assert error.value.exit_code == 2


@pytest.mark.parametrize("host", ["", "no such host", "a" * 64 + ".invalid", "\ud800"])
def test_an_address_that_is_none(host: str) -> None:
    with pytest.raises(DiagError):
        resolved(host, 0)


def test_addresses_and_tokens() -> None:
    assert url("::1", 80, token="a b") == "http://[::1]:80/?token=a+b"
    assert url("127.0.0.1", 9123, "/metrics") == "http://127.0.0.1:9123/metrics"
    assert checked_token(new_token(), "it")
    for bad in ("", "a b", "ü", "a\n"):
        with pytest.raises(DiagError, match="cannot be a token"):
            checked_token(bad, "it")
