"""Which run an alarm speaks of, and which fault; only a named fault may trigger."""

from __future__ import annotations

from typing import Any

import pytest

from chalicelib.domain.model.errors import Noise, NotOurs
from chalicelib.domain.model.signal import Signal
from chalicelib.ingest.dispatch import parse
from rekindle.protocol.signals import FaultClass
from tests.ingest import golden


def _alarm(name: str = "plain", **detail: Any) -> dict[str, Any]:
    event = golden.load(f"cloudwatch_alarm_{name}")
    event["detail"] |= detail
    return event


def _one(event: dict[str, Any]) -> Signal:
    return parse(event)[0]


def _metric(name: str, dimensions: dict[str, str], namespace: str = "/aws/sagemaker/TrainingJobs") -> dict[str, Any]:
    metric = {"namespace": namespace, "name": name, "dimensions": dimensions}
    return {"id": "m1", "returnData": True, "metricStat": {"period": 60, "stat": "Average", "metric": metric}}


def test_the_time_is_the_states_own_not_the_envelopes() -> None:
    event = _alarm() | {"time": "2026-11-20T11:11:11Z"}
    assert _one(event).occurred_at.isoformat() == "2026-11-20T10:00:00+00:00"


def test_reason_data_is_json_inside_a_text() -> None:
    signal = _one(_alarm("anomaly"))
    assert signal.evidence["datapoints"] == [9.1]
    assert signal.evidence["upper"] == [3.0]
    assert signal.evidence["expressions"] == ["ANOMALY_DETECTION_BAND(m1, 0.8)"]


@pytest.mark.parametrize("text", ["[1]", "[" * 9_000, "{", "7"])
def test_reason_data_that_is_no_object_says_nothing(text: str) -> None:
    event = _alarm()
    event["detail"]["state"]["reasonData"] = text
    assert "datapoints" not in parse(event)[0].evidence


@pytest.mark.parametrize(
    ("dimensions", "attempt"),
    [
        ({"TrainingJobName": "lm-7b-a3"}, "lm-7b-a3"),
        ({"Host": "lm-7b-a3/algo-12"}, "lm-7b-a3"),
    ],
)
def test_the_attempt_is_named_by_a_dimension(dimensions: dict[str, str], attempt: str) -> None:
    assert _one(_alarm(configuration={"metrics": [_metric("x", dimensions)]})).attempt == attempt


@pytest.mark.parametrize("dimensions", [{"Host": "lm-7b-a3"}, {"TrainingJobName": "../x"}, {"JobId": "lm-7b"}, {}])
def test_a_dimension_that_names_no_run_is_not_ours(dimensions: dict[str, str]) -> None:
    with pytest.raises(NotOurs, match="names no run"):
        parse(_alarm(configuration={"metrics": [_metric("x", dimensions)]}))


def test_our_own_metric_names_the_job() -> None:
    signal = _one(_alarm(configuration={"metrics": [_metric("Loss", {"JobId": "lm-7b"}, "Rekindle/Training")]}))
    assert (signal.job_id, signal.fault, signal.triggers) == ("lm-7b", FaultClass.UNCLEAR, False)


def test_a_contributor_of_somebody_elses_metric_names_no_job_of_ours() -> None:
    event = _alarm("contributor_own_metric")
    event["detail"]["configuration"]["metrics"][0]["expression"] = 'SELECT SUM(x) FROM "Other" GROUP BY JobId'
    with pytest.raises(NotOurs, match="names no run"):
        parse(event)


def test_the_convention_outranks_the_dimensions_and_may_stand_in_a_tag() -> None:
    signal = _one(_alarm("metric_math", alarmTags={"rekindle:job": "lm-13b"}))
    assert (signal.job_id, signal.attempt) == ("lm-13b", "lm-7b-a3")


def test_two_faults_in_one_alarm_are_unclear_and_do_not_trigger() -> None:
    signal = _one(_alarm(alarmName="rekindle:fault=hang rekindle:fault=divergence"))
    assert (signal.fault, signal.triggers) == (FaultClass.UNCLEAR, False)


@pytest.mark.parametrize("value", ["OK", "INSUFFICIENT_DATA"])
def test_a_state_other_than_alarm_is_news_even_with_a_fault_named(value: str) -> None:
    event = _alarm("convention")
    event["detail"]["state"]["value"] = value
    signal = _one(event)
    assert (signal.fault, signal.triggers) == (None, False)


def test_a_muted_alarm_is_noise_even_when_it_names_a_fault() -> None:
    mute = golden.load("cloudwatch_alarm_muted")["detail"]["muteDetail"]
    with pytest.raises(Noise, match="muted"):
        parse(_alarm("convention", muteDetail=mute))
