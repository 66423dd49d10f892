"""Access control of diag's servers: checks Host, Origin and the token of a request before anything of a run is read.

A browser sends a request to this machine on behalf of any page. ``Host`` is the name that the request was sent to: a
page of another site can let its own name resolve to this machine (DNS rebinding), but it cannot call itself localhost.
``Origin`` is the page that sends the request. The token keeps out the other users of the machine, who can reach all of
its ports.

This module does not depend on a framework: the server passes a ``Request`` and sends the ``Answer``, if there is one.
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

# Headers of every answer. They prevent framing, type sniffing, loading from another page, and leaking the address.
HEADERS = (
    ("content-security-policy", "frame-ancestors 'none'"),
    ("x-frame-options", "DENY"),
    ("referrer-policy", "no-referrer"),
    ("x-content-type-options", "nosniff"),
    ("cross-origin-resource-policy", "same-origin"),
)
# Host names that no name server can redirect. Through an SSH tunnel, a server on any address is called by one of them.
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_PARAMETER = "token"
_LOOK_UP_S = 1.0  # limit for looking up this machine's full name; the name server may be unreachable
_AUTHORITY = re.compile(r"(\[[0-9a-f:.]+(?:%[^\[\]/?#@\s]+)?\]|[0-9a-z._-]+)(?::([0-9]{1,5}))?")
_TOKEN = re.compile(r"[A-Za-z0-9._~+/=-]+")  # the characters that an Authorization header can carry (RFC 6750)

_NOT_UNDER_THIS_NAME = (
    "This server does not accept this host name",
    "The request names a host that the server does not know. If the name is yours (a reverse proxy, an alias), start "
    "the server with --allow-host NAME.",
)
_NOT_FOR_THIS_PAGE = (
    "This server does not accept requests from this page",
    "Another page sent the request. If that page is a reverse proxy of yours, start the server with --allow-host NAME, "
    "or NAME:PORT where its address has a port.",
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
    "Send the token that was passed to the server, or that it printed when it started: the header "
    "'Authorization: Bearer TOKEN', or ?token=TOKEN in the address.",
)
_ONCE_MORE = ("One moment", "The dashboard was opened from another site.")


@dataclass(frozen=True)
class Request:
    """The parts of a request that the guard checks. ``path`` and ``query`` are still percent-encoded; names of
    ``headers`` are in lower case."""

    method: str
    path: str
    query: str
    headers: tuple[tuple[str, str], ...]

    def values(self, header: str) -> list[str]:
        return [value for name, value in self.headers if name == header]


@dataclass(frozen=True)
class Answer:
    """An answer that is sent instead of the requested resource; ``headers`` include ``HEADERS``."""

    status: HTTPStatus
    headers: tuple[tuple[str, str], ...]
    body: bytes


@dataclass(frozen=True)
class Guard:
    """``hosts``: names and addresses that a request's Host may have, with any port, since a tunnel may use another
    port. ``added``: those that the user added, as written; pages of a proxy under these names may send requests.
    ``token``: None lets everybody in. ``browser``: a token in the address is exchanged for a cookie, and the browser is
    redirected to the address without it."""

    hosts: tuple[str, ...]
    added: tuple[str, ...]
    token: str | None
    browser: bool

    def answer(self, request: Request) -> Answer | None:
        """The answer to a refused or redirected request; None if the request may pass."""
        hosts = [_split(value) for value in request.values("host")]
        if len(hosts) != 1 or hosts[0] is None or hosts[0][0] not in self.hosts:
            return self._page(HTTPStatus.FORBIDDEN, _NOT_UNDER_THIS_NAME, request)
        if not all(self._is_own_page(origin, hosts[0]) for origin in request.values("origin")):
            return self._page(HTTPStatus.FORBIDDEN, _NOT_FOR_THIS_PAGE, request)
        if self.token is None:
            return None
        cookie = f"diag_token_{hosts[0][1] or 'default'}"  # cookies do not separate ports
        in_query = [value for name, value in parse_qsl(request.query) if name == _PARAMETER]
        # Stored credentials count even if the address has a wrong token: a bookmark may hold the token of last week.
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
        """Whether the page is this server's under that host name, or belongs to a proxy that the user named."""
        scheme, _, authority = origin.partition("://")
        page = _split(authority)
        return scheme in ("http", "https") and page is not None and (page == host or page in map(_split, self.added))

    def _is_token(self, token: str) -> bool:
        return self.token is not None and secrets.compare_digest(token.encode(errors="replace"), self.token.encode())

    def _redirect(self, request: Request, cookie: str | None) -> Answer:
        """Redirects to the same address without the token. Leading slashes are stripped: two would name another
        server."""
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
            # The browser sends the cookie with a request from this page, but not with one from another site.
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
        else:  # for the script of a page that is still open: Streamlit's script shows a JSON answer
            kind, body = "application/json", json.dumps(". ".join(text))
        return _answer(status, kind, "" if request.method == "HEAD" else body, headers)


def listening(host: str, address: str, added: Iterable[str], token: str | None, *, browser: bool) -> Guard:
    """The guard of a server that listens on ``address``, which the user wrote as ``host``. DiagError if one of
    ``added`` is not a host name."""
    names = [*_LOOPBACK, host, address]
    if not is_loopback(address):
        names += _names_of_this_machine()
    if is_everywhere(address):  # it stands for every address, and is not a host name itself
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
    """The family and the numeric address to listen on. DiagError if the name cannot be resolved."""
    try:
        # Python resolves an empty name to every address, which is not what a user means by an empty option.
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM) if host else []
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it cannot be a host name"
        raise DiagError(f"{host} is no address: {reason}", hint=f"`--host {_LOOPBACK[1]}` is this machine") from error
    if not addresses:
        raise DiagError("--host is empty", hint=f"`--host {_LOOPBACK[1]}` is this machine", exit_code=ExitCode.USAGE)
    family, _, _, _, address = addresses[0]
    return family, (str(address[0]), port)


def is_loopback(address: str) -> bool:
    """Whether only this machine can reach the numeric address."""
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback


def is_everywhere(address: str) -> bool:
    """Whether the numeric address stands for all addresses of this machine."""
    return ipaddress.ip_address(address.partition("%")[0]).is_unspecified


def url(host: str, port: int, path: str = "/", token: str | None = None) -> str:
    """The address to open, with the token if there is one."""
    query = f"?{urlencode({_PARAMETER: token})}" if token is not None else ""
    return f"http://{f'[{host}]' if ':' in host else host}:{port}{path}{query}"


def new_token() -> str:
    """A random token of 256 bits, safe in addresses, cookies and headers."""
    return secrets.token_urlsafe(32)


def checked_token(token: str, source: str) -> str:
    """The token that a user chose. DiagError if a header cannot carry it; ``source`` names its origin in the
    message."""
    if not _TOKEN.fullmatch(token):
        raise DiagError(
            f"{source} cannot be a token: it may hold letters, digits and ._~+/=-",
            hint="`openssl rand -hex 32` makes one",
            exit_code=ExitCode.USAGE,
        )
    return token


def with_headers(headers: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """An answer's headers with ``HEADERS``, which replace headers of the same names. No page of another origin may read
    the answer; to the browser, a page behind a proxy has the server's own origin."""
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
    """Name and port, "" without a port; None if the text is not NAME or NAME:PORT."""
    match = _AUTHORITY.fullmatch(authority.strip().lower())
    return (_plain(match[1]), match[2] or "") if match else None


def _plain(name: str) -> str:
    """The normal form of a name, for comparisons: addresses are compressed and without the interface."""
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
            cookie, _, value = part.strip().partition("=")
            if cookie == name:
                yield value


def _comes_from_another_site(request: Request) -> bool:
    """Whether the user followed a link on another site: the browser then does not send a strict cookie."""
    fetch = [request.values(f"sec-fetch-{name}") for name in ("site", "mode", "dest")]
    return fetch == [["cross-site"], ["navigate"], ["document"]] and request.method == "GET"


def _names_of_this_machine() -> list[str]:
    """The host name, and the full name if it is known within a second."""
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
