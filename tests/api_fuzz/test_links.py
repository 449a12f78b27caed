"""One answer leads to the next: every link is followed, by hand in order and by schemathesis in chains.

Everything is derived from one seed, so that a failure comes again. `make test-api` runs it.
"""

from __future__ import annotations

from typing import Any, Final

from hypothesis import HealthCheck, Phase, settings

from chalicelib.api.operations.routes import BY_NAME
from tests.api_fuzz.links import LINKS
from tests.api_fuzz.stage import Stage
from tests.api_fuzz.test_fuzz import CHECKS, GOOD_BODIES, GOOD_NAMES, TIMEOUT_S

CHAINS: Final = 12
STEPS: Final = 8
# What the stage's own state refuses: the policy is stored, and a link cannot carry its version; a Job may have ended;
# what has been answered is not asked any more.
MAY_BE_REFUSED: Final = {
    "put_policy": {412},
    "start_drill": {409},
    "answer_approval": {409},
    "cancel_incident": {409},
}


# From where a link is followed, where the first of a kind is not the one that leads on.
FROM: Final[dict[str, dict[str, str]]] = {"get_job": {"job_id": "lm-healed"}, **GOOD_NAMES}


def _case(schema: Any, name: str, names: dict[str, Any], query: dict[str, Any]) -> Any:
    operation = BY_NAME[name]
    body = {"body": GOOD_BODIES.get(name, {}), "media_type": "application/json"} if operation.body else {}
    return schema[operation.path][operation.method].Case(path_parameters=names, query=query, **body)


def _at(body: Any, pointer: str) -> Any:
    """What a JSON pointer leads to; None where it leads nowhere."""
    for part in pointer.split("/")[1:]:
        inner = body[int(part)] if isinstance(body, list) and int(part) < len(body) else None
        body = body.get(part) if isinstance(body, dict) else inner
    return body


def test_every_link_leads_from_a_good_answer_to_a_good_answer(staged: Stage, schema: Any) -> None:
    followed: set[tuple[str, str]] = set()
    # What is asked is listed before another link answers or cancels it: the run looks at once, and asks no more.
    for source, targets in sorted(LINKS.items(), key=lambda item: item[0] != "list_approvals"):
        names = {name: FROM.get(source, {}).get(name, staged.known[name][0]) for name in BY_NAME[source].names}
        query = {"limit": 1} if any("cursor" in link for link in targets.values()) else {}
        answer = _case(schema, source, names, query).call(timeout=TIMEOUT_S)
        assert answer.status_code in {*BY_NAME[source].answers, *MAY_BE_REFUSED.get(source, ())}, answer.text
        if answer.status_code >= 300:
            continue
        for target, link in targets.items():
            values = {name: _at(answer.json(), pointer) for name, pointer in link.items()}
            if None in values.values():
                continue
            operation = BY_NAME[target]
            below = {name: value for name, value in values.items() if name in operation.names}
            beside = {name: value for name, value in values.items() if name in operation.query}
            assert len(below) + len(beside) == len(values)
            case = _case(schema, target, below, beside)
            led = case.call(timeout=TIMEOUT_S)
            case.validate_response(led, checks=CHECKS)
            assert led.status_code in {*operation.answers, *MAY_BE_REFUSED.get(target, ())}, (source, target, led.text)
            followed.add((source, target))
    every = {(source, target) for source, targets in LINKS.items() for target in targets}
    assert every - followed == set()


def test_chains_of_requests_are_answered_as_documented(schema: Any) -> None:
    """Schemathesis' own state machine: what one answer names is asked for, ordered and answered next."""
    asked: list[tuple[str, int]] = []

    class Chains(schema.as_state_machine()):  # type: ignore[misc]
        def call(self, case: Any, **options: Any) -> Any:
            answer = case.call(timeout=TIMEOUT_S)
            asked.append((case.operation.definition.raw["operationId"], answer.status_code))
            return answer

        def validate_response(self, response: Any, case: Any, **_: Any) -> None:
            case.validate_response(response, checks=CHECKS)

    Chains.run(
        settings=settings(
            max_examples=CHAINS,
            stateful_step_count=STEPS,
            derandomize=True,
            database=None,
            deadline=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
    )
    led = {name for name, status in asked if status < 300 and BY_NAME[name].names}
    assert led, asked
