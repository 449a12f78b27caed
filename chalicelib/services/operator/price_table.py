"""The price table for people: what counts row by row with its source, and the user's own document in its place."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from chalicelib.domain.model.errors import InvalidRequest
from chalicelib.domain.reporting.prices import NO_PRICES, Prices, shipped_rows
from chalicelib.ports.clock import Clock
from chalicelib.ports.operator import PolicyDocumentStore, StoredPolicy
from chalicelib.services.operator.stored_text import TooLong, stored_text

NAME: Final = "prices"


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceTable:
    """What is stored counts within five minutes (aws.ssm.prices)."""

    documents: PolicyDocumentStore
    clock: Clock

    def get(self) -> dict[str, Any]:
        """The rows that count, the document that they come from, and the GPU types that have no price."""
        stored = self.documents.stored(NAME)
        document, prices, problem = _read_table(stored)
        return {
            "version": stored.version if stored is not None else 0,
            "is_builtin": stored is None,
            "modified_at": stored.modified_at.isoformat() if stored is not None and stored.modified_at else None,
            "document": document,
            "problem": problem,
            "rows": shipped_rows() if stored is None else prices.rows(),
            "usd_per_gpu_hour": prices.usd_per_gpu_hour,
            "without_price": prices.missing(),
        }

    def put(self, document: Mapping[str, Any], *, replaces: int) -> dict[str, Any]:
        """Store `document` in place of version `replaces`, 0 where there is none yet.

        Raises:
            InvalidRequest: names the first field that is wrong, or the document is too large.
            Outdated: another version is there.
            VersionConflict: another write is under way.
        """
        Prices.from_wire(document)
        try:
            text = stored_text(document)
        except TooLong as err:
            raise InvalidRequest("prices", str(err)) from err
        present = self.documents.stored(NAME)
        if present is None or present.version != replaces + 1 or present.text != text:  # else its answer was lost
            self.documents.write(NAME, text, replaces=replaces, now=self.clock.now())
        return self.get()


def _read_table(stored: StoredPolicy | None) -> tuple[dict[str, Any], Prices, str | None]:
    if stored is None:
        return {}, Prices.default(), None
    try:
        document = json.loads(stored.text)
    except (ValueError, RecursionError):
        return {}, NO_PRICES, "is not JSON: nothing is priced"
    if not isinstance(document, dict):
        return {}, NO_PRICES, "is no JSON object: nothing is priced"
    try:
        return document, Prices.from_wire(document), None
    except InvalidRequest as err:
        return document, NO_PRICES, f"{err}: nothing is priced"
