"""Routes about the price table: what an hour of each instance type costs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final

from chalicelib.api.operation import Operation
from chalicelib.api.parts import Parts
from chalicelib.api.problems import ApiResponse
from chalicelib.api.request import Request
from chalicelib.api.schema import Schema, any_object, any_text, flag, listing, number, or_null, record, ref, whole
from chalicelib.api.versions import Version, replace, versioned


@dataclass(frozen=True, slots=True, kw_only=True)
class Replacement:
    """what is stored, in place of which version"""

    document: Annotated[
        Mapping[str, Any], "instances (type: USD per hour), usd_per_gpu_hour, source, as_of (docs/ledger.md)"
    ]
    version: Version = None


def get_prices(parts: Parts, _: Request) -> ApiResponse:
    """What an hour of each instance type costs, with source and date; GPU types that have no price."""
    return versioned(parts.price_table.get())


def put_prices(parts: Parts, request: Request) -> ApiResponse:
    """Store the price table in place of the version that was read."""
    form: Replacement = request.form
    return replace(request, lambda version: parts.price_table.put(form.document, replaces=version))


ANSWERS: Final[Mapping[str, Schema]] = {
    "PriceTable": record(
        {
            "version": whole("counts its writings; what the next PUT names; 0: nothing is stored"),
            "is_builtin": flag("only the built-in prices count"),
            "modified_at": or_null(any_text("when it was written")),
            "document": any_object("as it is stored"),
            "problem": or_null(any_text("why what is stored prices nothing")),
            "rows": listing(
                record(
                    {
                        "instance": any_text("EC2's name of the type"),
                        "usd_per_hour": number("US dollars"),
                        "as_of": any_text("the source's own date; empty: not known"),
                        "source": any_text("where the figure comes from"),
                    }
                )
            ),
            "usd_per_gpu_hour": or_null(number("for runs whose instance types are not known")),
            "without_price": listing(any_text("a type with GPUs whose cost is unknown")),
        }
    ),
}

OPERATIONS = (
    Operation(
        method="GET",
        path="/prices",
        tag="ledger",
        run=get_prices,
        is_versioned=True,
        answers={200: ref("PriceTable")},
    ),
    Operation(
        method="PUT",
        path="/prices",
        tag="ledger",
        details=(
            "The document counts whole: a type that it does not name has no price. Refused with 412 where another "
            "version is stored by now, with 428 where none is named."
        ),
        run=put_prices,
        forms={"": Replacement},
        is_versioned=True,
        answers={200: ref("PriceTable")},
        is_order=True,
        refuses=(412, 428),
        example={"document": {"instances": {"p5.48xlarge": 48.2}, "source": "our contract"}, "version": 0},
    ),
)
