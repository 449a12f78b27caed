"""One POST to a server of others: bounded in time, to an address that was checked, never redirected.

The name is resolved once, every address it has is judged, and the connection goes to one of these: so a name that
answers differently the second time (DNS rebinding) leads nowhere else.
"""

from __future__ import annotations

import http.client
import ipaddress
import socket
import ssl
import threading
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any, Final
from urllib.parse import SplitResult, urlsplit

from chalicelib.channels.channel import SlowDown
from chalicelib.domain.model.errors import DependencyUnavailable, Permanent

CONNECT_S: Final = 3.0
ADDRESSES: Final = 4  # of a host that are tried
HANDSHAKE_S: Final = 6.0  # however slowly it drips
TOTAL_S: Final = 10.0  # from the connection to the answer's headers, however slowly they drip
_TOO_MANY: Final = 429
_Address = ipaddress.IPv4Address | ipaddress.IPv6Address

# Never reached, whatever a channel allows. Source: EC2 and ECS user guides (instance metadata, task credentials: link
# local, and fd00:ec2::/32); RFC 6052, 8215, 3056, 4380, 2765 and 4291 (IPv6 addresses that carry an unchecked
# IPv4 one); RFC 3879 (site local, which Python takes for public).
_NEVER: Final = tuple(
    ipaddress.ip_network(network)
    for network in (
        "fd00:ec2::/32",
        "64:ff9b::/96",
        "64:ff9b:1::/48",
        "2002::/16",
        "2001::/32",
        "::ffff:0:0:0/96",
        "::/96",
        "fec0::/10",
    )
)
# Special, though Python up to 3.11.9 takes it for public. Source: IANA, IPv4 special-purpose address registry.
_SPECIAL: Final = ipaddress.ip_network("192.0.0.0/24")


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpResult:
    """What came back; the body is not read."""

    status: int
    headers: Mapping[str, str]

    def retry_after_s(self, now: datetime) -> float | None:
        """What Retry-After asks for, in seconds; None where it is not there or cannot be read (RFC 9110, 10.2.3)."""
        text = self.headers.get("retry-after", "").strip()
        if text.isascii() and text.isdigit() and len(text) <= 9:
            return float(text)
        try:
            at = parsedate_to_datetime(text)
            return max(0.0, (at - now).total_seconds()) if at.tzinfo is not None else None
        except (TypeError, ValueError, IndexError):
            return None


def post(
    url: str, body: bytes, headers: Mapping[str, str], *, private: bool = False, total_s: float = TOTAL_S
) -> HttpResult:
    """Send `body`. `private` allows addresses that are not public, and plain http to this very machine.

    No message holds more of the address than its host: the rest may be a secret.

    Raises:
        Permanent: the address is not one that we send to.
        DependencyUnavailable: no answer; whether the body arrived is not known.
    """
    parts = _checked(url)
    host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
    addresses = _resolved(host, port)
    for address in addresses:
        if not may_reach(address, private=private):
            raise Permanent(f"{host} is at {address}, which is not to be sent to")
        if parts.scheme == "http" and not address.is_loopback:
            raise Permanent(f"{host}: plain http is for this machine only; use https")
    try:
        connection = _connected(parts.scheme, host, port, addresses)
    except (OSError, ssl.SSLError) as err:
        raise DependencyUnavailable(f"{host}: no connection ({type(err).__name__})") from err
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return _exchange(connection, host, path, body, headers, total_s)


def check_accepted(answer: HttpResult, name: str, *, now: datetime, later: Collection[int]) -> None:
    """Nothing where the receiver `name` took the request. `later`: statuses after which the same may be taken later.

    Raises:
        SlowDown: 429, or one of `later` with a time to wait.
        DependencyUnavailable: another of `later`.
        Permanent: any other answer.
    """
    if 200 <= answer.status < 300:
        return
    reply = f"{name} answered {answer.status}"
    wait_s = answer.retry_after_s(now)
    if answer.status == _TOO_MANY or (answer.status in later and answer.status >= 500 and wait_s is not None):
        raise SlowDown(reply, retry_after_s=wait_s if wait_s is not None else 30.0)
    if answer.status in later:
        raise DependencyUnavailable(reply)
    raise Permanent(f"{reply}{' (redirects are not followed)' if 300 <= answer.status < 400 else ''}")


def may_reach(address: _Address, *, private: bool) -> bool:
    """Whether notices go to this address."""
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return may_reach(address.ipv4_mapped, private=private)
    if address.is_link_local or address.is_multicast or address.is_unspecified:
        return False
    if not address.is_loopback and any(address in network for network in _NEVER if network.version == address.version):
        return False  # ::1 lies in ::/96
    is_special = address.version == _SPECIAL.version and address in _SPECIAL
    return private or (address.is_global and not address.is_reserved and not is_special)


def _checked(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as err:
        raise Permanent("the address is not a URL") from err
    if parts.scheme not in ("https", "http") or not parts.hostname:
        raise Permanent("the address must begin with https:// and name a host")
    if parts.username is not None or parts.password is not None:
        raise Permanent(f"{parts.hostname}: no user or password in the address; requests are signed instead")
    if not url.isascii() or any(char.isspace() or not char.isprintable() for char in url):
        raise Permanent(f"{parts.hostname}: the address holds characters that a URL cannot have")
    return parts


def _resolved(host: str, port: int) -> list[_Address]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as err:
        raise DependencyUnavailable(f"{host}: the name cannot be resolved") from err
    return [ipaddress.ip_address(str(entry[4][0]).partition("%")[0]) for entry in found]


class _Pinned(http.client.HTTPConnection):
    """A connection over a socket that is there already."""

    def __init__(self, host: str, port: int, sock: socket.socket) -> None:
        super().__init__(host, port)
        self.sock = sock


def _connected(scheme: str, host: str, port: int, addresses: list[_Address]) -> _Pinned:
    failed: OSError | None = None
    for address in addresses[:ADDRESSES]:
        try:
            plain = socket.create_connection((str(address), port), timeout=CONNECT_S)
        except OSError as err:
            failed = err
            continue
        if scheme == "http":
            return _Pinned(host, port, plain)
        over = threading.Event()
        watch = _Watch(HANDSHAKE_S, _shut, args=(plain, over))
        watch.daemon = True
        watch.start()
        try:
            context = ssl.create_default_context()
            return _Pinned(host, port, context.wrap_socket(plain, server_hostname=host))
        except (OSError, ssl.SSLError):
            plain.close()
            raise
        finally:
            watch.cancel()
    raise failed or OSError("no address")


def _exchange(
    connection: _Pinned, host: str, path: str, body: bytes, headers: Mapping[str, str], total_s: float
) -> HttpResult:
    # A socket's own timeout counts from byte to byte: a server that sends one a second would hold us for ever.
    over = threading.Event()
    watch = _Watch(total_s, _shut, args=(connection.sock, over))
    watch.daemon = True
    watch.start()
    try:
        connection.sock.settimeout(total_s)
        connection.request("POST", path, body=body, headers={**headers, "Connection": "close"})
        got = connection.getresponse()
        if over.is_set():  # what was cut off reads like an answer's end
            raise TimeoutError("the answer took too long")
        return HttpResult(status=got.status, headers={name.lower(): value for name, value in got.getheaders()})
    except (OSError, http.client.HTTPException, ValueError) as err:
        raise DependencyUnavailable(f"{host}: no answer ({type(err).__name__})") from err
    finally:
        watch.cancel()
        connection.close()


class _Watch(threading.Timer):
    """Ends what takes too long."""


def _shut(sock: Any, over: threading.Event) -> None:
    over.set()
    with suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
