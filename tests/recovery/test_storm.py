"""Many reports of few faults, from many threads at once; and the largest that an Incident can hold."""

from __future__ import annotations

import random
import string

import pytest

from benchmarks.bench_storm import play
from chalicelib.aws.dynamodb.incident_inbox import MAX_INBOX, ORDERS_EXTRA
from chalicelib.domain.model.incident import MAX_KEPT_SIGNALS, Phase
from chalicelib.domain.model.signal import MAX_EVIDENCE_BYTES, Signal, SignalKind, SignalSource
from localcloud.worlds.recoveries import Script, World, crash_at, world

pytestmark = pytest.mark.long


def test_a_storm_opens_one_incident_and_starts_one_attempt_per_job() -> None:
    storm = play(jobs=5, events=200, threads=8)
    assert (storm.incidents, storm.recovered, storm.jobs) == (5, 5, 10)


def test_a_full_inbox_of_the_largest_signals_fits_what_one_step_may_return() -> None:
    """Lambda refuses a step's result above 256 KB; the sweep would start the execution on the same inbox for ever."""
    with world() as w:
        w.submit("lm", scripts=(Script(faults=(crash_at(15),)), Script()))
        w.run_until(lambda: bool(w.incidents()))
        for batch in range(2):  # the first is kept on the Incident itself, the second is in the inbox beside it
            _fill_inbox(w, batch)
            w.run_until(lambda: not w.service.look.store.load(w.incidents()[0].incident_id).inbox)
        assert len(w.incidents()[0].signals) == MAX_KEPT_SIGNALS
        assert w.recover().phase is Phase.RECOVERED
        executions = w.cloud.engine.executions()
        assert [item.current_status().value for item in executions] == ["SUCCEEDED"]


def _fill_inbox(w: World, batch: int) -> None:
    """As many Signals as there is room for, each large, and as random as the store keeps whole."""
    store, (incident,) = w.service.look.store, w.incidents()
    drawn = random.Random(batch)
    for number in range(MAX_INBOX + ORDERS_EXTRA):
        words = ["".join(drawn.choices(string.ascii_lowercase, k=8)) for _ in range(40)]
        noise = " ".join(drawn.choices(words, k=MAX_EVIDENCE_BYTES))[: MAX_EVIDENCE_BYTES - 700]
        large = Signal(
            kind=SignalKind.TRAINING_LOG,
            source=SignalSource.OPERATOR if number >= MAX_INBOX else SignalSource.LOGS,
            occurred_at=w.cloud.clock.now(),
            dedupe_key=f"noise-{batch}-{number}",
            summary="a line of the log",
            job_id=incident.job_id,
            attempt=incident.attempt,
            triggers=False,
            evidence={f"line_{part}": noise[part * 90 : part * 90 + 90] for part in range(len(noise) // 90)},
        )
        assert not store.join(incident.incident_id, large, now=w.cloud.clock.now()).is_full
