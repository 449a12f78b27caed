"""This API's own description: an OpenAPI 3.1 document of the very schemas that check the requests."""

from __future__ import annotations

from chalicelib.api.operation import Operation
from chalicelib.api.parts import Parts
from chalicelib.api.problems import Answer, ok
from chalicelib.api.request import Request
from chalicelib.api.schema import any_text, free, record


def describe(_: Parts, request: Request) -> Answer:
    """The document, with the address under which it was asked for."""
    # Here, because the document is made of the table in which this route stands.
    from chalicelib.api.openapi import document

    return ok(document(base=request.path.removesuffix("/openapi.json") or "/"))


OPERATIONS = (
    Operation(
        name="openapi",
        method="GET",
        path="/openapi.json",
        tag="service",
        summary="This document",
        run=describe,
        answers={
            200: record(
                {"openapi": any_text(), "info": free("what this is"), "paths": free("every operation")}, is_open=True
            )
        },
    ),
)
