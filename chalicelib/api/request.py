"""One request to the REST API, as its operation gets it."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

DEFAULT_LIMIT: Final = 50
MAX_LIMIT: Final = 100
KEY_HEADER: Final = "Idempotency-Key"
REPLAYED: Final = "Idempotency-Replayed"  # header of an answer that an order has been given before
# Printable ASCII without a blank at either end: what every HTTP library sends as it was given.
KEY_PATTERN: Final = r"^[!-~]([ -~]*[!-~])?$"
MAX_KEY: Final = 256
_SESSION: Final = re.compile(r"^(arn:[^:]+:sts::[0-9]*:assumed-role/[^/]+)/.+$", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request: path names, typed query, headers in lower case, the JSON body and who signed it.

    `form` is the body as one of the operation's types.
    """

    names: Mapping[str, str]
    query: Mapping[str, Any]
    headers: Mapping[str, str]
    body: Mapping[str, Any]
    who: str
    request_id: str
    given_key: str | None = None
    path: str = ""
    form: Any = None

    @property
    def key(self) -> str:
        """What makes an order idempotent: the caller's Idempotency-Key, else the request itself.

        A key belongs to its signer: the same characters under another signature are another key. Two signers who use
        one key each get their own order and their own answer.
        """
        return self.request_id if self.given_key is None else f"{principal(self.who)}\n{self.given_key}"

    @property
    def limit(self) -> int:
        """How many rows are wanted."""
        return int(self.query.get("limit", DEFAULT_LIMIT))

    @property
    def cursor(self) -> str | None:
        """Where the page begins."""
        return self.query.get("cursor")

    def fingerprint(self) -> str:
        """Equal for two orders that ask for the same."""
        asked = json.dumps([self.body, self.headers.get("if-match")], sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(asked.encode()).hexdigest()[:32]


def principal(who: str) -> str:
    """Who signs, without the name of the session: who repeats an order may have assumed the role again by then.

    Source: IAM user guide, IAM identifiers, ARNs of assumed-role sessions.
    """
    return _SESSION.sub(r"\1", who)
