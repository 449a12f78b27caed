"""The REST API: the table of its operations, and how one of them is answered. Pure of AWS and of Chalice."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from chalicelib.api import (
    routes_about,
    routes_clusters,
    routes_description,
    routes_incidents,
    routes_jobs,
    routes_ledger,
    routes_policies,
    routes_prices,
    routes_switches,
)
from chalicelib.api.operation import Operation
from chalicelib.api.parts import Parts
from chalicelib.api.problems import MAX_ANSWER_BYTES, Answer, from_error, problem
from chalicelib.api.request import KEY_HEADER, Request, TooLarge, WrongMediaType, read
from chalicelib.domain.model.errors import RecoveryError

OPERATIONS: Final[tuple[Operation, ...]] = (
    *routes_about.OPERATIONS,
    *routes_jobs.OPERATIONS,
    *routes_incidents.OPERATIONS,
    *routes_ledger.OPERATIONS,
    *routes_switches.OPERATIONS,
    *routes_policies.OPERATIONS,
    *routes_prices.OPERATIONS,
    *routes_clusters.OPERATIONS,
    *routes_description.OPERATIONS,
)
BY_NAME: Final[Mapping[str, Operation]] = {operation.name: operation for operation in OPERATIONS}
REPLAYED: Final = "Idempotency-Replayed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Api:
    """The routes, over whatever has the parts that they use."""

    parts: Parts

    def answer(self, operation: str, names: Mapping[str, str], event: Mapping[str, Any], raw_body: bytes) -> Answer:
        """Run one operation; every domain error becomes its problem document."""
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

    def _remembered(self, chosen: Operation, request: Request) -> Answer:
        """An order with a key: the same one again is given the same answer, another one under its key is refused.

        Where the first answer was never stored (the function died, the order is still at work, it was refused), the
        order is carried out again, which is safe: what it does is made idempotent by the same key.
        """
        key = "\n".join((chosen.name, *request.names.values(), request.key))
        fingerprint = request.fingerprint()
        before = self.parts.answers.begin(key, fingerprint=fingerprint, now=self.parts.clock.now())
        if before is not None and not before.same:
            return problem(422, "this key was given to an order with another body", at=KEY_HEADER)
        if before is not None and before.answer is not None:
            kept = before.answer
            return Answer(status=kept["status"], body=kept["body"], headers={**kept["headers"], REPLAYED: "true"})
        answer = chosen.run(self.parts, request)
        if answer.status < 300:
            kept = {"status": answer.status, "body": dict(answer.body), "headers": dict(answer.headers)}
            self.parts.answers.finish(key, answer=kept)
        return answer
