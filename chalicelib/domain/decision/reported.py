"""What was reported of an Incident besides what it is about: its suspects, and losses that are bad. Pure."""

from __future__ import annotations

from chalicelib.domain.fault_specs.faults import POISONS
from chalicelib.domain.model.evidence import Suspicion, SuspicionKind, suspect_word
from chalicelib.domain.model.incident import Incident
from chalicelib.domain.model.signal import SignalKind


def suspicion_about(incident: Incident, attempt: str, kind: SuspicionKind | None = None) -> Suspicion | None:
    """The newest suspicion that the ranks of `attempt` reported."""
    fit = (
        item for item in reversed(incident.evidence.suspicions) if item.attempt == attempt and kind in (None, item.kind)
    )
    return next(fit, None)


def suspects_text(incident: Incident) -> str:
    """Wording for notices: the suspects of each attempt, or that no rank is missing there, and the conclusion."""
    told = [item for item in incident.evidence.suspicions if item.ranks or item.clears_all][-4:]
    text = "".join(
        f" Suspected in {item.attempt}: {suspect_word(item)} ({item.text[:200]})."
        if item.ranks
        else f" In {item.attempt} {item.text[:200]}."
        for item in told
    )
    return text + (f" Conclusion: {incident.evidence.conclusion}." if incident.evidence.conclusion else "")


def text_of_loss_reports(incident: Incident) -> str:
    """Wording for notices: reports of a bad loss of the attempt under care, which the Incident was not about.

    Its trouble may be over while the loss is not; a newer attempt, or the report that the loss is well again, answers
    them.
    """
    has_tried = bool(incident.resubmission.tries)
    if not has_tried and (incident.order is not None or incident.fault in POISONS):
        return ""
    well_at = [signal.occurred_at for signal in incident.signals if signal.kind is SignalKind.LOSS_RECOVERED]
    found = [
        signal.summary
        for signal in incident.signals
        if signal.triggers and signal.fault in POISONS
        if signal.attempt == incident.attempt or (signal.attempt is None and not has_tried)
        if not any(signal.occurred_at <= at for at in well_at)
    ]
    return f" Also reported, and not acted on: {found[-1]}." if found else ""
