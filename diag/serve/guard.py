"""Who may ask a server of ours: checks Host, Origin and the token of a request before anything of a run is read.

A browser sends a request to this machine for whatever page asks it to. ``Host`` says under which name: a page of
another site can let its own name lead here (DNS rebinding), but it cannot call itself localhost. ``Origin`` says which
page asks. The token keeps out the other users of the machine, who reach every port of it.

This module knows no framework: what serves hands over a ``Request`` and sends the ``Answer``, if there is one.
"""

from __future__ import annotations

import ipaddress
import json
import re
import secrets
import socket
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from http import HTTPStatus
from urllib.parse import parse_qsl, quote, unquote_plus, urlencode

from diag.errors import DiagError, ExitCode

# Of every answer: nobody frames it, guesses its type, loads it from another page or learns its address.
HEADERS = (
    ("content-security-policy", "frame-ancestors 'none'"),
    ("x-frame-options", "DENY"),
    ("referrer-policy", "no-referrer"),
    ("x-content-type-options", "nosniff"),
    ("cross-origin-resource-policy", "same-origin"),
)
# Host names that no name server can let lead elsewhere; an SSH tunnel calls a server on any address by one of them.
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_PARAMETER = "token"
_LOOK_UP_S = 1.0  # for this machine's full name, where a name server may be away
_AUTHORITY = re.compile(r"(\[[0-9a-f:.]+(?:%[^\[\]/?#@\s]+)?\]|[0-9a-z._-]+)(?::([0-9]{1,5}))?")
_TOKEN = re.compile(r"[A-Za-z0-9._~+/=-]+")  # what an Authorization header can carry (RFC 6750)

_NOT_UNDER_THIS_NAME = (
    "This server does not answer under this name",
    "It was asked under a host name that it does not know. If the name is yours (a reverse proxy, an alias), start the "
    "server with --allow-host NAME.",
)
_NOT_FOR_THIS_PAGE = (
    "This server does not answer this page",
    "Another page asked for it. If that page is a reverse proxy of yours, start the server with --allow-host NAME, or "
    "NAME:PORT where its address has a port.",
)
_NO_TOKEN = (
    "A token is needed",
    "The command that started this server printed an address that ends in ?token=...: open that address. The browser "
    "keeps the token until it is closed.",
)
_OLD_TOKEN = (
    "This is not the token of this server",
    "A server has a new token each time it starts. Open the address that the command printed when it started last.",
)
_NO_BEARER = (
    "A token is needed",
    "Send the token that the server was given or printed when it started: the header 'Authorization: Bearer TOKEN', "
    "or ?token=TOKEN in the address.",
)
_ONCE_MORE = ("One moment", "The dashboard was opened from another site.")


@dataclass(frozen=True)
class Request:
    """What of a request decides. ``path`` and ``query`` as they were sent, still percent-encoded; names of ``headers``
    in lower case."""

    method: str
    path: str
    query: str
    headers: tuple[tuple[str, str], ...]

    def values(self, header: str) -> list[str]:
        return [value for name, value in self.headers if name == header]


@dataclass(frozen=True)
class Answer:
    """Sent instead of what was asked for; ``HEADERS`` are among the headers."""

    status: HTTPStatus
    headers: tuple[tuple[str, str], ...]
    body: bytes


@dataclass(frozen=True)
class Guard:
    """``hosts``: names and addresses that a request may name, with any port, since a tunnel may have another one.
    ``added``: those that the user added, as written; the page of a proxy may ask from there. ``token``: None lets
    everybody in. ``browser``: the token of an address is exchanged for a cookie, and the address goes on without it."""

    hosts: tuple[str, ...]
    added: tuple[str, ...]
    token: str | None
    browser: bool

    def answer(self, request: Request) -> Answer | None:
        """None where the request may go on."""
        hosts = [_split(value) for value in request.values("host")]
        if len(hosts) != 1 or hosts[0] is None or hosts[0][0] not in self.hosts:
            return self._page(HTTPStatus.FORBIDDEN, _NOT_UNDER_THIS_NAME, request)
        if not all(self._is_own_page(origin, hosts[0]) for origin in request.values("origin")):
            return self._page(HTTPStatus.FORBIDDEN, _NOT_FOR_THIS_PAGE, request)
        if self.token is None:
            return None
        cookie = f"diag_token_{hosts[0][1] or 'default'}"  # cookies do not separate ports
        in_query = [value for name, value in parse_qsl(request.query) if name == _PARAMETER]
        # The credentials of a request count, whatever its address says: a bookmark may hold the token of last week.
        stored = [*_bearers(request), *_cookies(request, cookie)]
        may_pass = any(map(self._is_token, stored))
        if self.browser and in_query and request.method in ("GET", "HEAD"):
            if any(map(self._is_token, in_query)):
                return self._redirect(request, cookie)
            if may_pass:
                return self._redirect(request, None)
        if may_pass or (not self.browser and any(map(self._is_token, in_query))):
            return None
        if not self.browser:
            return self._page(HTTPStatus.UNAUTHORIZED, _NO_BEARER, request)
        if not in_query and not stored and _comes_from_another_site(request):
            return self._page(HTTPStatus.UNAUTHORIZED, _ONCE_MORE, request, again=True)
        return self._page(HTTPStatus.UNAUTHORIZED, _OLD_TOKEN if in_query or stored else _NO_TOKEN, request)

    def _is_own_page(self, origin: str, host: tuple[str, str]) -> bool:
        """Whether the page is one of this server under that name, or of a proxy that the user named."""
        scheme, _, authority = origin.partition("://")
        page = _split(authority)
        return scheme in ("http", "https") and page is not None and (page == host or page in map(_split, self.added))

    def _is_token(self, given: str) -> bool:
        return self.token is not None and secrets.compare_digest(given.encode(errors="replace"), self.token.encode())

    def _redirect(self, request: Request, cookie: str | None) -> Answer:
        """To the same address without the token, on this server: two slashes would name another one."""
        parts = [part for part in request.query.split("&") if unquote_plus(part.partition("=")[0]) != _PARAMETER]
        query = "?" + quote("&".join(parts), safe="/?%:@!$&'()*+,;=~") if any(parts) else ""
        headers = [("location", "/" + quote(request.path.lstrip("/\\"), safe="/%:@!$&'()*+,;=~") + query)]
        if cookie is not None:
            headers.append(("set-cookie", f"{cookie}={self.token}; Path=/; HttpOnly; SameSite=Strict"))
        return _answer(HTTPStatus.SEE_OTHER, "text/plain", "", headers)

    def _page(self, status: HTTPStatus, text: tuple[str, str], request: Request, *, again: bool = False) -> Answer:
        headers = [("www-authenticate", "Bearer")] if status is HTTPStatus.UNAUTHORIZED else []
        if not self.browser:
            kind, body = "text/plain", "\n".join((*text, ""))
        elif any("text/html" in value for value in request.values("accept")):
            # The cookie goes along with a request from here, though not with one from another site.
            refresh = '<meta http-equiv="refresh" content="0">' if again else ""
            link = (
                '<p>Opened in this browser before? <a href="">Try again</a></p>'
                if status is HTTPStatus.UNAUTHORIZED
                else ""
            )
            kind, body = (
                "text/html",
                (
                    f'<!doctype html><html lang="en"><meta charset="utf-8">{refresh}<title>diag</title>'
                    f"<h1>{text[0]}</h1><p>{text[1]}</p>{link}</html>\n"
                ),
            )
        else:  # to the script of a page that is open since before: Streamlit's shows what is JSON
            kind, body = "application/json", json.dumps(". ".join(text))
        return _answer(status, kind, "" if request.method == "HEAD" else body, headers)


def listening(host: str, address: str, added: Iterable[str], token: str | None, *, browser: bool) -> Guard:
    """Of a server that listens on ``address``, which the user wrote as ``host``. DiagError where one of ``added`` is no
    host name."""
    names = [*_LOOPBACK, host, address]
    if not is_loopback(address):
        names += _names_of_this_machine()
    if is_everywhere(address):  # which names every address, and is none itself
        names = [name for name in names if name not in (host, address)] + list(_addresses_of_this_machine())
    for written in added:
        split = _split(written)
        if split is None:
            raise DiagError(
                f"--allow-host {written} is no host name",
                hint="give the name as it is in the browser's address bar: NAME, or NAME:PORT",
                exit_code=ExitCode.USAGE,
            )
        names.append(split[0])
    return Guard(tuple(sorted({_plain(name) for name in names})), tuple(added), token, browser)


def resolved(host: str, port: int) -> tuple[socket.AddressFamily, tuple[str, int]]:
    """The family and the numeric address to listen on. DiagError where the name leads nowhere."""
    try:
        # Python looks up an empty name as that of every address; nobody asks for that by saying nothing.
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM) if host else []
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it cannot be a host name"
        raise DiagError(f"{host} is no address: {reason}", hint=f"`--host {_LOOPBACK[1]}` is this machine") from error
    if not found:
        raise DiagError("--host is empty", hint=f"`--host {_LOOPBACK[1]}` is this machine", exit_code=ExitCode.USAGE)
    family, _, _, _, address = found[0]
    return family, (str(address[0]), port)


def is_loopback(address: str) -> bool:
    """Whether only this machine reaches the numeric address."""
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback


def is_everywhere(address: str) -> bool:
    """Whether the numeric address stands for all of this machine's."""
    return ipaddress.ip_address(address.partition("%")[0]).is_unspecified


def url(host: str, port: int, path: str = "/", token: str | None = None) -> str:
    """The address to open, with the token where there is one."""
    query = f"?{urlencode({_PARAMETER: token})}" if token is not None else ""
    return f"http://{f'[{host}]' if ':' in host else host}:{port}{path}{query}"


def new_token() -> str:
    """One that nobody guesses: 256 bits, fit for addresses, cookies and headers."""
    return secrets.token_urlsafe(32)


def checked_token(token: str, source: str) -> str:
    """A user's own. DiagError where a header cannot carry it; ``source`` says where it is from."""
    if not _TOKEN.fullmatch(token):
        raise DiagError(
            f"{source} cannot be a token: it may hold letters, digits and ._~+/=-",
            hint="`openssl rand -hex 32` makes one",
            exit_code=ExitCode.USAGE,
        )
    return token


def with_headers(headers: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """An answer's headers with ``HEADERS``, which replace what it says about the same. No other page may read it: one
    behind a proxy is the server's own to the browser."""
    ours = {"access-control-allow-origin", *(name for name, _ in HEADERS)}
    return [*((name, value) for name, value in headers if name.lower() not in ours), *HEADERS]


def _answer(status: HTTPStatus, kind: str, body: str, headers: list[tuple[str, str]]) -> Answer:
    content = body.encode()
    headers = [
        ("content-type", f"{kind}; charset=utf-8"),
        ("content-length", str(len(content))),
        ("cache-control", "no-store"),
        *headers,
    ]
    return Answer(status, tuple(with_headers(headers)), content)


def _split(authority: str) -> tuple[str, str] | None:
    """Name and port, the latter empty where there is none; None where it is no NAME or NAME:PORT."""
    match = _AUTHORITY.fullmatch(authority.strip().lower())
    return (_plain(match[1]), match[2] or "") if match else None


def _plain(name: str) -> str:
    """As names are compared: addresses in one form, without the interface."""
    bare = name.lower().strip("[]").partition("%")[0].rstrip(".")
    try:
        return ipaddress.ip_address(bare).compressed
    except ValueError:
        return bare


def _bearers(request: Request) -> Iterator[str]:
    for value in request.values("authorization"):
        scheme, _, token = value.partition(" ")
        if scheme.lower() == "bearer":
            yield token.strip()


def _cookies(request: Request, name: str) -> Iterator[str]:
    for header in request.values("cookie"):
        for part in header.split(";"):
            found, _, value = part.strip().partition("=")
            if found == name:
                yield value


def _comes_from_another_site(request: Request) -> bool:
    """Whether somebody followed a link there: the browser then keeps a strict cookie to itself."""
    fetch = [request.values(f"sec-fetch-{name}") for name in ("site", "mode", "dest")]
    return fetch == [["cross-site"], ["navigate"], ["document"]] and request.method == "GET"


def _names_of_this_machine() -> list[str]:
    """Its host name, and its full name where that is known within a second."""
    name = socket.gethostname()
    names = [name, name.partition(".")[0]]
    look_up = threading.Thread(target=lambda: names.append(socket.getfqdn(name)), daemon=True)
    look_up.start()
    look_up.join(_LOOK_UP_S)
    return list(names)


def _addresses_of_this_machine() -> Iterator[str]:
    import psutil

    for addresses in psutil.net_if_addrs().values():
        for address in addresses:
            if address.family in (socket.AF_INET, socket.AF_INET6):
                yield address.address
