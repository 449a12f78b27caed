"""The REST API over HTTP: signed with the operator's own AWS credentials, JSON in and out, errors as exit codes.

Nothing is retried here: an order that may have arrived must be repeated with its own key, and that is the person's (or
the script's) decision; the message says how.
"""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode, urlsplit

from rekindle.client.errors import CliError, CommandFailed, NotFound, ServiceFailed, TryAgain, Unreachable, UsageError
from rekindle.client.table import clean

if TYPE_CHECKING:
    import urllib3

VERSION = "/v1"  # of the API whose answers this package reads
CONNECT_TIMEOUT_S = 5.0
READ_TIMEOUT_S = 35.0  # API Gateway itself gives up after 29 s (its integration timeout), so an answer comes before
MAX_ANSWER_BYTES = 20 * 1024 * 1024  # API Gateway's own limit is 10 MB; beyond twice that it is not our API
# https://{id}.execute-api.{region}.amazonaws.com. Source: API Gateway developer guide, how to call a REST API.
_GATEWAY_HOST = re.compile(r"[a-z0-9-]+\.execute-api\.([a-z0-9-]+)\.amazonaws\.com(?:\.cn)?")

Sign = Callable[[str, str, Mapping[str, str], bytes], dict[str, str]]


def path(*parts: str) -> str:
    """A path of the API; each part is quoted whole, so that no name can leave its place."""
    return "".join(f"/{quote(part, safe='')}" for part in parts)


def check_url(url: str) -> str:
    """The base URL without a trailing slash.

    Raises:
        UsageError: no http(s) URL, or plain http to anything but this machine: an order could be changed on its way.
    """
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError as err:
        raise UsageError(f"--api: {clean(url)!r} is not a URL ({err})") from err
    if parts.scheme not in ("http", "https") or not host or parts.query or parts.fragment or parts.username:
        raise UsageError(f"--api: {clean(url)!r} is not the URL of an API")
    if parts.scheme == "http" and not is_loopback(url):
        raise UsageError("--api: plain http is for this machine only; use https")
    return url.rstrip("/")


def is_loopback(url: str) -> bool:
    """True for this machine's own addresses."""
    host = urlsplit(url).hostname or ""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def region_of(url: str) -> str | None:
    """The region in an API Gateway host; None for a custom domain."""
    match = _GATEWAY_HOST.fullmatch(urlsplit(url).hostname or "")
    return match[1] if match else None


def signer(url: str) -> Sign | None:
    """How requests to `url` are signed: SigV4 for service execute-api; not at all on this machine.

    Raises:
        Unreachable: there are no credentials, or no region.
    """
    if is_loopback(url):
        return None
    # Only here: a command against this machine needs no botocore, and its import takes longer than the command.
    from botocore.auth import SigV4Auth
    from botocore.awsrequest import AWSRequest
    from botocore.exceptions import BotoCoreError
    from botocore.session import Session

    try:
        session = Session()
        found = session.get_credentials()
        credentials = found.get_frozen_credentials() if found is not None else None
        region = region_of(url) or session.get_config_variable("region")
    except BotoCoreError as err:
        raise Unreachable(f"AWS credentials: {clean(err)}") from err
    if credentials is None or not credentials.access_key:
        raise Unreachable("no AWS credentials: the API is signed with yours (aws configure, AWS_PROFILE, ...)")
    if not region:
        raise Unreachable("no AWS region: set AWS_DEFAULT_REGION, because the API's address does not name it")

    def sign(method: str, address: str, headers: Mapping[str, str], body: bytes) -> dict[str, str]:
        request = AWSRequest(method=method, url=address, data=body, headers=dict(headers))
        SigV4Auth(credentials, "execute-api", region).add_auth(request)
        return dict(request.headers.items())

    return sign


def pool(*, connections: int = 1) -> urllib3.PoolManager:
    """Connections that are kept open between requests."""
    import urllib3  # only here: commands on local files need nothing but Python

    timeout = urllib3.Timeout(connect=CONNECT_TIMEOUT_S, read=READ_TIMEOUT_S)
    return urllib3.PoolManager(timeout=timeout, retries=False, maxsize=connections)


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """One API. `url` is its address without the version, `route` in each method a path below the version."""

    url: str
    sign: Sign | None = None
    http: urllib3.PoolManager = field(default_factory=pool)

    def get(self, route: str, **query: str | int | None) -> dict[str, Any]:
        """Read. Query parameters that are None are left out."""
        given = {name: str(value) for name, value in query.items() if value is not None}
        return self._call("GET", route + (f"?{urlencode(given, quote_via=quote)}" if given else ""), None, {})

    def order(self, method: str, route: str, body: Mapping[str, Any], *, key: str) -> dict[str, Any]:
        """Change something. `key` makes it idempotent: the same key twice is one order."""
        return self._call(method, route, body, {"Idempotency-Key": key})

    def _call(
        self, method: str, route: str, body: Mapping[str, Any] | None, headers: Mapping[str, str]
    ) -> dict[str, Any]:
        import urllib3

        address = self.url + VERSION + route
        data = b"" if body is None else json.dumps(body).encode()
        sent = {"Accept": "application/json", **headers}
        if body is not None:
            sent["Content-Type"] = "application/json"
        if self.sign is not None:
            sent = self.sign(method, address, sent, data)
        again = f"; repeat it with --key {headers['Idempotency-Key']}" if headers else ""
        try:
            answer = self.http.request(
                method, address, body=data or None, headers=sent, redirect=False, preload_content=False
            )
            try:
                content = answer.read(MAX_ANSWER_BYTES + 1, decode_content=True)
            finally:
                answer.release_conn()
        except (urllib3.exceptions.NewConnectionError, urllib3.exceptions.ConnectTimeoutError) as err:
            raise Unreachable(f"cannot reach {self.url}: {_reason(err)}") from err
        except urllib3.exceptions.SSLError as err:
            raise Unreachable(f"cannot trust {self.url}: {_reason(err)}") from err
        except (urllib3.exceptions.HTTPError, OSError) as err:
            doubt = " whether the order arrived is not known" if headers else ""
            raise TryAgain(f"no answer from {self.url} ({_reason(err)}){';' + doubt if doubt else ''}{again}") from err
        return _answer_of(answer.status, content, answer.headers, again)


def _answer_of(status: int, content: bytes, headers: Mapping[str, str], again: str) -> dict[str, Any]:
    if len(content) > MAX_ANSWER_BYTES:
        raise CommandFailed("the answer is too large to be this service's")
    try:
        body = json.loads(content) if content.strip() else {}
    except (ValueError, RecursionError):
        body = None
    if 200 <= status < 300:
        if not isinstance(body, dict):
            raise CommandFailed("the answer is no JSON object: is this the address of a Rekindle API?")
        # An order given twice with one key is answered alike; only the header tells the second time.
        return {**body, "replayed": True} if headers.get("Idempotency-Replayed") == "true" else body
    raise _problem(status, body if isinstance(body, dict) else {}, headers, again)


def _problem(status: int, body: Mapping[str, Any], headers: Mapping[str, str], again: str) -> CliError:
    """The error for a problem document (RFC 9457), or for API Gateway's own `message`."""
    text = clean(body.get("detail") or body.get("message") or body.get("Message") or f"HTTP {status}")
    if status == 404:
        return NotFound(text)
    if status in (408, 429, 502, 503, 504):
        wait = clean(headers.get("Retry-After") or "")
        soon = f" (in {wait} s)" if wait.isdigit() else ""
        return TryAgain(f"not now{soon}: {text}{again}")
    if status in (401, 403):
        return CommandFailed(f"not allowed: {text}")
    if 300 <= status < 400:
        return CommandFailed(f"the API answered with a redirection (HTTP {status}), which is not followed")
    return CommandFailed(text) if status < 500 else ServiceFailed(f"the service failed: {text}{again}")


def _reason(err: BaseException) -> str:
    """The innermost cause, in one line. urllib3 hands it on as a cause or as an argument, and prints a tuple."""
    within = err.__cause__ or next((part for part in err.args if isinstance(part, BaseException)), None)
    if within is not None:
        return _reason(within)
    return clean(str(err).rsplit(": ", 1)[-1])[:200] or type(err).__name__
