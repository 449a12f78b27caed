"""Access control of the console: which requests are refused. Pure.

The server listens on loopback, where every program on the machine and every web page in the user's browser can reach
it. So each request must have the console's own Host header (DNS rebinding: a foreign page whose name was pointed at
127.0.0.1 sends that name), carry the session that only the printed link starts, and, if it changes something, come from
a form of the console.
Sources: OWASP cheat sheets on cross-site request forgery and DNS rebinding; W3C Fetch Metadata; RFC 6265bis (SameSite).
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.cookies import CookieError, SimpleCookie
from typing import Final

OPEN: Final = "/open/"  # the path of the printed link, before the token
# Scripts, styles, images and connections only from the console itself; nothing inline; never inside a frame.
SECURITY_HEADERS: Final[Mapping[str, str]] = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",  # with no-referrer a browser sends the console's forms with `Origin: null`
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Cache-Control": "no-store",
}


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request is refused: the HTTP status, and one sentence for its user."""

    status: int
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """The access control of one console process.

    `token` is the secret in the printed link; `session` is the secret in the cookie that the link sets. They differ, so
    that the secret shown in the terminal is not stored by the browser. Neither is ever logged or put into a page.
    """

    port: int
    token: str = field(repr=False)
    session: str = field(repr=False)

    @property
    def hosts(self) -> tuple[str, ...]:
        """The values of the Host header that are accepted."""
        return (f"127.0.0.1:{self.port}", f"localhost:{self.port}")

    @property
    def cookie(self) -> str:
        """The cookie's name. It contains the port, so that several consoles do not overwrite each other's cookies."""
        return f"rekindle_console_{self.port}"

    @property
    def base(self) -> str:
        """The path prefix of every page, and the only path to which a browser sends the cookie.

        Browsers do not separate cookies by port: with the path `/`, the cookie would go to every other server on this
        machine's loopback. The prefix cannot be guessed: it is derived from the session's secret and never sent to
        another origin.
        """
        return "/c-" + hmac.new(self.session.encode(), b"path", hashlib.sha256).hexdigest()[:32]

    @property
    def csrf(self) -> str:
        """The CSRF token in every form of the console."""
        return hmac.new(self.session.encode(), b"csrf", hashlib.sha256).hexdigest()

    @property
    def link(self) -> str:
        """The link that `rekindle console` prints."""
        return f"http://127.0.0.1:{self.port}{OPEN}{self.token}"

    @property
    def set_cookie(self) -> str:
        """The Set-Cookie header: a session cookie, hidden from scripts, not sent with requests from other sites."""
        return f"{self.cookie}={self.session}; Path={self.base}/; HttpOnly; SameSite=Strict"

    def is_login(self, path: str) -> bool:
        """Whether the path is that of the printed link, with the right token."""
        return path.startswith(OPEN) and _equal(path.removeprefix(OPEN), self.token)

    def page_path(self, path: str) -> str:
        """The path without `base`: `/jobs` for `/c-…/jobs`. Programs, which send no cookie, ask without the prefix."""
        return path.removeprefix(self.base) if path.startswith(f"{self.base}/") else path

    def check_host(self, hosts: list[str]) -> Refusal | None:
        """Refuse unless there is exactly one Host header, with a name of this console."""
        if len(hosts) != 1 or hosts[0].lower() not in self.hosts:
            return Refusal(421, f"this console answers to {self.hosts[0]} only")
        return None

    def check_session(self, cookies: list[str], authorization: str) -> Refusal | None:
        """Refuse without the session cookie or, for programs that read /metrics, the token as a bearer."""
        scheme, _, credential = authorization.partition(" ")
        if scheme.lower() == "bearer" and _equal(credential.strip(), self.token):
            return None
        if any(_equal(value, self.session) for value in _cookie_values(cookies, self.cookie)):
            return None
        return Refusal(403, "open the link that `rekindle console` printed; this browser has no key yet")

    def check_change(self, *, csrf: str, origin: str | None, fetch_site: str | None) -> Refusal | None:
        """Refuse a change (POST) that does not come from a form of the console.

        `csrf` is the form's token; `origin` and `fetch_site` are the Origin and Sec-Fetch-Site headers, which browsers
        send and programs may leave out.
        """
        if origin is not None and origin.lower() not in tuple(f"http://{host}" for host in self.hosts):
            return Refusal(403, "an order must come from this console's own page")
        if fetch_site is not None and fetch_site not in ("same-origin", "none"):
            return Refusal(403, "an order must come from this console's own page")
        if not _equal(csrf, self.csrf):
            return Refusal(403, "this form is not of this console; load the page again")
        return None


def _equal(given: str, wanted: str) -> bool:
    """Compares in constant time."""
    return hmac.compare_digest(given.encode(errors="surrogateescape"), wanted.encode())


def _cookie_values(cookies: list[str], name: str) -> list[str]:
    """Every value of one cookie in the Cookie headers; a header that cannot be parsed is skipped."""
    found = []
    for header in cookies:
        try:
            parsed = SimpleCookie(header)
        except CookieError:
            continue
        if name in parsed:
            found.append(parsed[name].value)
    return found
