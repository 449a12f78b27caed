"""Who may use the console. Pure: names and numbers in, a refusal or nothing out.

The page listens on loopback, where every program of this machine and every web page in the user's browser can reach it.
So each request must name our own host (a page of another name that was pointed at 127.0.0.1 names its own), carry the
key that only the printed link holds, and, where it changes something, come from a form of ours.
Sources: OWASP cheat sheets on cross-site request forgery and DNS rebinding; W3C Fetch Metadata; RFC 6265bis (SameSite).
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.cookies import CookieError, SimpleCookie
from typing import Final

OPEN: Final = "/open/"
# No script, style, picture or connection but our own; nothing inline; no frame around us.
SECURITY_HEADERS: Final[Mapping[str, str]] = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",  # with no-referrer a browser sends our own forms with `Origin: null`
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Cache-Control": "no-store",
}


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request is not answered: an HTTP status and one sentence."""

    status: int
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """One console's door. `token` opens it and stands in the printed link; `session` is what the cookie then holds.

    Two values, so that a browser's cookie jar does not hold what the terminal showed. Neither is ever logged or drawn.
    """

    port: int
    token: str = field(repr=False)
    session: str = field(repr=False)

    @property
    def hosts(self) -> tuple[str, ...]:
        """The names under which we are asked."""
        return (f"127.0.0.1:{self.port}", f"localhost:{self.port}")

    @property
    def cookie(self) -> str:
        """The cookie's name: two consoles have two."""
        return f"rekindle_console_{self.port}"

    @property
    def base(self) -> str:
        """The path prefix of every page, and the only path to which a browser sends the cookie.

        Cookies are not separated by port: under `/` a browser would send the key to any other server on this machine's
        loopback. The prefix cannot be guessed: it is derived from the session's secret and never sent to another
        origin.
        """
        return "/c-" + hmac.new(self.session.encode(), b"path", hashlib.sha256).hexdigest()[:32]

    @property
    def csrf(self) -> str:
        """What every form of ours carries."""
        return hmac.new(self.session.encode(), b"csrf", hashlib.sha256).hexdigest()

    @property
    def link(self) -> str:
        """Where a browser begins."""
        return f"http://127.0.0.1:{self.port}{OPEN}{self.token}"

    @property
    def set_cookie(self) -> str:
        """For this browser session only; not for scripts, and not sent with what other sites ask for."""
        return f"{self.cookie}={self.session}; Path={self.base}/; HttpOnly; SameSite=Strict"

    def opens(self, path: str) -> bool:
        """The path is the printed link's."""
        return path.startswith(OPEN) and _same(path.removeprefix(OPEN), self.token)

    def inside(self, path: str) -> str:
        """The page that a path is of: `/jobs` for our own `/c-…/jobs`, and for the bare one that a program asks for."""
        return path.removeprefix(self.base) if path.startswith(f"{self.base}/") else path

    def check_host(self, hosts: list[str]) -> Refusal | None:
        """Exactly one Host header, and it is ours."""
        if len(hosts) != 1 or hosts[0].lower() not in self.hosts:
            return Refusal(421, f"this console answers to {self.hosts[0]} only")
        return None

    def check_session(self, cookies: list[str], authorization: str) -> Refusal | None:
        """The cookie that the link set, or the token itself as a bearer (for programs that read /metrics)."""
        scheme, _, credential = authorization.partition(" ")
        if scheme.lower() == "bearer" and _same(credential.strip(), self.token):
            return None
        if any(_same(value, self.session) for value in _values(cookies, self.cookie)):
            return None
        return Refusal(403, "open the link that `rekindle console` printed; this browser has no key yet")

    def check_order(self, *, csrf: str, origin: str | None, fetch_site: str | None) -> Refusal | None:
        """A change must come from a form of ours: the form's own mark, and what the browser says of its origin."""
        if origin is not None and origin.lower() not in tuple(f"http://{host}" for host in self.hosts):
            return Refusal(403, "an order must come from this console's own page")
        if fetch_site is not None and fetch_site not in ("same-origin", "none"):
            return Refusal(403, "an order must come from this console's own page")
        if not _same(csrf, self.csrf):
            return Refusal(403, "this form is not of this console; load the page again")
        return None


def _same(given: str, wanted: str) -> bool:
    return hmac.compare_digest(given.encode(errors="surrogateescape"), wanted.encode())


def _values(cookies: list[str], name: str) -> list[str]:
    found = []
    for header in cookies:
        try:
            parsed = SimpleCookie(header)
        except CookieError:
            continue
        if name in parsed:
            found.append(parsed[name].value)
    return found
