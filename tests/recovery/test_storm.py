"""Many reports of few faults, from many threads at once."""

from __future__ import annotations

from benchmarks.bench_storm import play


def test_a_storm_opens_one_incident_and_starts_one_attempt_per_job() -> None:
    storm = play(jobs=5, events=200, threads=8)
    assert (storm.incidents, storm.recovered, storm.jobs) == (5, 5, 10)
