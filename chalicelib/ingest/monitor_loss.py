"""What the monitor's detectors say of the loss and of the pace of steps (detail of the events in monitor.py).

    Rekindle Loss Spike        onset_step, loss, baseline, trouble, rule, evidence {name: number or word}
    Rekindle Loss Divergence   the same
    Rekindle Loss Recovered    healed_step, onset_step, loss
    Rekindle Throughput Drop   step_s, baseline_s, rule, evidence
    Rekindle Straggler         the same, and straggler (the slow rank; `rank` is the speaker's own), host

Source: rekindle/monitor/loss/judge.py and rekindle/monitor/accounts.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from chalicelib.domain.model.signal import SignalKind
from chalicelib.ingest.fields import Fields
from chalicelib.ingest.monitor_common import MAX_RANKS, MAX_SECONDS, MAX_WORD_CHARS, MonitorFields, News, at_step
from rekindle.protocol.signals import EventType, FaultClass
from rekindle.protocol.wire import MAX_STEP

MAX_RULE_CHARS: Final = 400
MAX_FIGURES: Final = 24
_MAX_LOSS: Final = 1.7e308  # a diverged loss may be anything that is finite


def _loss(detail: Fields, name: str) -> float | None:
    return detail.optional_number(name, low=-_MAX_LOSS, high=_MAX_LOSS)


def _bad_loss(kind: SignalKind, fault: FaultClass, word: str, detail: Fields, common: MonitorFields) -> News:
    onset = detail.whole("onset_step", high=MAX_STEP)
    loss, baseline = _loss(detail, "loss"), _loss(detail, "baseline")
    figures = f": {loss:.6g}, was {baseline:.6g}" if loss is not None and baseline is not None else ""
    trouble = detail.optional_text("trouble", limit=MAX_WORD_CHARS)
    return News(
        kind=kind,
        summary=f"{common.attempt}: the loss {word} since step {onset} (seen {at_step(common)}){figures}",
        facts=(onset, trouble),
        fault=fault,
        evidence={
            "onset_step": onset,
            "loss": loss,
            "baseline": baseline,
            "trouble": trouble,
            "rule": detail.optional_text("rule", limit=MAX_RULE_CHARS),
            "figures": _figures(detail),
        },
    )


def _loss_spike(detail: Fields, common: MonitorFields) -> News:
    return _bad_loss(SignalKind.LOSS_SPIKE, FaultClass.LOSS_SPIKE, "spikes", detail, common)


def _divergence(detail: Fields, common: MonitorFields) -> News:
    return _bad_loss(SignalKind.DIVERGENCE, FaultClass.DIVERGENCE, "diverges", detail, common)


def _recovered(detail: Fields, common: MonitorFields) -> News:
    healed = detail.whole("healed_step", high=MAX_STEP)
    return News(
        kind=SignalKind.LOSS_RECOVERED,
        summary=f"{common.attempt}: the loss is back to normal at step {healed}",
        facts=(healed,),
        fault=None,
        evidence={
            "healed_step": healed,
            "onset_step": detail.optional_whole("onset_step", high=MAX_STEP),
            "loss": _loss(detail, "loss"),
        },
    )


def _slower(detail: Fields) -> tuple[str, dict[str, Any]]:
    step_s, usual_s = (detail.optional_number(name, high=MAX_SECONDS) for name in ("step_s", "baseline_s"))
    took = f"{step_s:.3g} s a step" if step_s is not None else "longer steps"
    usual = f", {usual_s:.3g} s is usual" if usual_s is not None else ""
    return f"{took}{usual}", {
        "step_s": step_s,
        "baseline_s": usual_s,
        "rule": detail.optional_text("rule", limit=MAX_RULE_CHARS),
        "figures": _figures(detail),
    }


def _throughput_drop(detail: Fields, common: MonitorFields) -> News:
    words, evidence = _slower(detail)
    return News(
        kind=SignalKind.THROUGHPUT,
        summary=f"{common.attempt}: slower {at_step(common)}: {words}",
        facts=("run", common.step),
        fault=FaultClass.THROUGHPUT_DROP,
        evidence=evidence,
    )


def _straggler(detail: Fields, common: MonitorFields) -> News:
    rank = detail.whole("straggler", high=MAX_RANKS - 1)
    if rank >= common.world_size:
        raise detail.fail("straggler", "must be smaller than world_size")
    host = detail.optional_text("host", limit=255)
    words, evidence = _slower(detail)
    where = f" on {host}" if host else ""
    return News(
        kind=SignalKind.THROUGHPUT,
        summary=f"{common.attempt}: rank {rank}{where} is slower than the others {at_step(common)}: {words}",
        facts=("rank", rank, common.step),
        fault=FaultClass.THROUGHPUT_DROP,
        evidence={**evidence, "rank": rank, "host": host},
    )


def _figures(detail: Fields) -> dict[str, Any] | None:
    """The detector's own figures, by name: numbers and short words only, so that a person can check the verdict."""
    if not detail.has("evidence"):
        return None
    given = detail.child("evidence")
    if len(given.body) > MAX_FIGURES:
        raise detail.fail("evidence", f"holds more than {MAX_FIGURES} figures")
    kept: dict[str, Any] = {}
    for name, value in given.body.items():
        if isinstance(value, str):
            kept[name[:64]] = value[:MAX_WORD_CHARS]
        elif isinstance(value, int | float) and not isinstance(value, bool):
            kept[name[:64]] = given.optional_number(name, low=-_MAX_LOSS, high=_MAX_LOSS)
        else:
            raise given.fail(name, "must be a number or a word")
    return kept


LOSS_PARSERS: Final[dict[str, Callable[[Fields, MonitorFields], News]]] = {
    EventType.LOSS_SPIKE: _loss_spike,
    EventType.DIVERGENCE: _divergence,
    EventType.LOSS_RECOVERED: _recovered,
    EventType.THROUGHPUT_DROP: _throughput_drop,
    EventType.STRAGGLER: _straggler,
}
