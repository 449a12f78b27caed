"""Why an attempt failed: the signatures' verdict on what its platform or its agent says, as decisions read it.

SageMaker's FailureReason is free text: its own prefix (`AlgorithmError`, `ClientError`, `InternalServerError`,
`CapacityError`) and then, for `AlgorithmError`, whatever the container wrote to /opt/ml/output/failure, at most 1024
characters (botocore, FailureReason). A Slurm agent sends its verdict as fields. A text that no row knows is UNCLEAR,
never "nothing wrong".
"""

from __future__ import annotations

from typing import Final

from chalicelib.domain.model.observation import AttemptView, FailureVerdict
from rekindle.protocol.cluster.documents import CauseDoc
from rekindle.protocol.signals import FaultClass

MAX_READ_CHARS: Final = 4096  # four times what SageMaker keeps; bounds the work on a foreign text
MAX_READ_LINES: Final = 200

NO_REASON: Final = FailureVerdict(fault=FaultClass.UNCLEAR, rule="no_reason")
UNRECOGNISED: Final = FailureVerdict(fault=FaultClass.UNCLEAR, rule="unrecognised")

# Who ended an attempt is told by its state, not by a text that it printed as it ended.
_NOT_BY_TEXT: Final = frozenset({FaultClass.OPERATOR_ORDER, FaultClass.PLANNED_END})
_LIMIT: Final = "time_limit"  # but for the platform's own word


def failure_of(view: AttemptView) -> FailureVerdict:
    """Why a failed attempt failed: what its agent found, else its failure reason, read."""
    return view.failure or classify_failure_reason(view.failure_reason)


def classify_failure_reason(text: str | None) -> FailureVerdict:
    """The verdict on a FailureReason. Total: any text has one; an empty or unknown one is UNCLEAR."""
    if text is None or not text.strip():
        return NO_REASON
    from rekindle.signatures import Finding, classify, root_cause  # only here: most functions never need the rules

    text = text[:MAX_READ_CHARS]
    verdict = classify(text)
    lines = text.splitlines()[:MAX_READ_LINES]
    if len(lines) > 1:  # a cause beside its consequence, in either order
        findings = [Finding(verdict=classify(line), at=float(at), text=line) for at, line in enumerate(lines)]
        cause = root_cause(findings, is_one_log=True).finding
        if cause is not None and cause.verdict.order < verdict.order:
            verdict = cause.verdict
    if verdict.fault is None:
        return UNRECOGNISED
    return _verdict(verdict.fault, verdict.rule, verdict.first_response.value)


def failure_found(cause: CauseDoc) -> FailureVerdict:
    """The verdict that an agent's finding is."""
    return _verdict(cause.fault, cause.rule, cause.response)


def _verdict(fault: FaultClass, rule: str, response: str) -> FailureVerdict:
    if fault in _NOT_BY_TEXT and rule != _LIMIT:
        return FailureVerdict(fault=FaultClass.SOFTWARE_CRASH, rule=rule)
    return FailureVerdict(fault=fault, rule=rule, person_needed=response == "ask_owner")
