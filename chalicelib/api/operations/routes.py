"""The REST API: the table of its operations, and `Api`, which answers one of them. Free of AWS and of Chalice.

`app.py` registers a route for each row; `infra/site` writes the reference from them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from chalicelib.api.operation import PREFIX, Operation
from chalicelib.api.operations import clusters, incidents, jobs, ledger, policies, service, shared, switches
from chalicelib.api.parts import Parts
from chalicelib.api.problems import MAX_ANSWER_BYTES, ApiResponse, from_error, ok, problem
from chalicelib.api.reading import TooLarge, WrongMediaType, read
from chalicelib.api.request import KEY_HEADER, REPLAYED, Request
from chalicelib.api.schema import Schema, Written, any_object, any_text, record
from chalicelib.domain.model.errors import RecoveryError


def openapi(_: Parts, request: Request) -> ApiResponse:
    """This document."""
    return ok(description(base=request.path.removesuffix("/openapi.json") or PREFIX))


_SUBJECTS: Final = (service, jobs, incidents, ledger, switches, policies, clusters)
OPERATIONS: Final[tuple[Operation, ...]] = (
    *(operation for subject in _SUBJECTS for operation in subject.OPERATIONS),
    Operation(
        method="GET",
        path="/openapi.json",
        tag="service",
        run=openapi,
        answers={
            200: record(
                {"openapi": any_text(), "info": any_object("what this is"), "paths": any_object("every operation")},
                is_open=True,
            )
        },
    ),
)
BY_NAME: Final[Mapping[str, Operation]] = {operation.name: operation for operation in OPERATIONS}


def description(*, base: str = PREFIX) -> dict[str, Any]:
    """The OpenAPI document; `base` is the path below which the operations are."""
    return {**_description(), "servers": [{"url": base}]}


@cache
def _description() -> dict[str, Any]:
    from chalicelib.api.openapi import document  # only this operation needs it

    return document(OPERATIONS, answers(), base=PREFIX)


def answers() -> dict[str, Schema]:
    """The named schemas of all answers."""
    named: dict[str, Schema | Written] = dict(shared.ANSWERS)
    for subject in _SUBJECTS:
        named |= subject.ANSWERS
    return {name: form.schema if isinstance(form, Written) else form for name, form in named.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Api:
    """The operations, over the parts that they use."""

    parts: Parts

    def answer(
        self, operation: str, names: Mapping[str, str], event: Mapping[str, Any], raw_body: bytes
    ) -> ApiResponse:
        """Run one operation; every domain error becomes its problem document.

        operation: its name. names: the values of the path's variables. event: API Gateway's. raw_body: as it was sent.
        """
        chosen = BY_NAME[operation]
        try:
            request = read(chosen, names, event, raw_body)
            answer = self._remembered(chosen, request) if request.given_key else chosen.run(self.parts, request)
        except TooLarge as err:
            return problem(413, str(err), at="body")
        except WrongMediaType as err:
            return problem(415, str(err), at="Content-Type")
        except RecoveryError as err:
            return from_error(err)
        if len(answer.text()) > MAX_ANSWER_BYTES:
            return problem(422, "the answer would be larger than an answer can be: ask for fewer rows")
        return answer

    def _remembered(self, chosen: Operation, request: Request) -> ApiResponse:
        """Run a request that has an idempotency key: a repetition gets the first answer; another request with the same
        key is refused.

        If no answer was stored (the function died, the first request still runs, it was refused), the request runs
        again. That is safe: its effects are idempotent by the same key.
        """
        key = "\n".join((chosen.name, *request.names.values(), request.key))
        fingerprint = request.fingerprint()
        first = self.parts.answers.begin(key, fingerprint=fingerprint, now=self.parts.clock.now())
        if first is not None and not first.same:
            return problem(422, "this key was given to an order with another body", at=KEY_HEADER)
        if first is not None and first.answer is not None:
            kept = first.answer
            return ApiResponse(status=kept["status"], body=kept["body"], headers={**kept["headers"], REPLAYED: "true"})
        answer = chosen.run(self.parts, request)
        if answer.status < 300:
            kept = {"status": answer.status, "body": dict(answer.body), "headers": dict(answer.headers)}
            self.parts.answers.finish(key, answer=kept)
        return answer
