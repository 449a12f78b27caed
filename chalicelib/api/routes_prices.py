"""Routes about the price table: what an hour of each instance type costs."""

from __future__ import annotations

from typing import Final

from chalicelib.api.operation import Operation
from chalicelib.api.parts import Parts
from chalicelib.api.problems import Answer
from chalicelib.api.request import Request
from chalicelib.api.schema import Schema, ref
from chalicelib.api.versions import replace, replacement, versioned

_DOCUMENT: Final[Schema] = {
    "type": "object",
    "description": "instances (type: USD per hour), usd_per_gpu_hour, source, as_of (docs/ledger.md)",
}


def get_prices(parts: Parts, _: Request) -> Answer:
    """What counts, row by row."""
    return versioned(parts.price_table.get())


def put_prices(parts: Parts, request: Request) -> Answer:
    """Store a document in place of the version that the caller has read."""
    document = request.body["document"]
    return replace(request, lambda version: parts.price_table.put(document, replaces=version))


OPERATIONS = (
    Operation(
        name="get_prices",
        method="GET",
        path="/prices",
        tag="ledger",
        summary="What an hour of each instance type costs, with source and date; GPU types that have no price",
        run=get_prices,
        answers={200: ref("PriceTable")},
    ),
    Operation(
        name="put_prices",
        method="PUT",
        path="/prices",
        tag="ledger",
        summary="Store the price table in place of the version that was read",
        said=(
            "The document counts whole: a type that it does not name has no price. Refused with 412 where another "
            "version is stored by now, with 428 where none is named."
        ),
        run=put_prices,
        forms={"": replacement(_DOCUMENT)},
        answers={200: ref("PriceTable")},
        is_order=True,
        refuses=(412, 428),
        example={"document": {"instances": {"p5.48xlarge": 48.2}, "source": "our contract"}, "version": 0},
    ),
)
