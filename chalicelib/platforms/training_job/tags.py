"""The tags of a training job: what its owner asks for, and what Rekindle writes on its own attempts."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

from chalicelib.domain.model.job import AlarmMode, WatchPlan, is_metric_name

_LOG = logging.getLogger(__name__)

TAG_POLICY: Final = "rekindle:policy"
TAG_JOB: Final = "rekindle:job"
TAG_INCIDENT: Final = "rekindle:incident"
TAG_ATTEMPT: Final = "rekindle:attempt"
TAG_CHECKED: Final = "rekindle:infra-check"  # its hardware check is Rekindle's wish, and not its owner's
TAG_LOSS: Final = "rekindle:loss-metric"  # a name among the job's own MetricDefinitions
TAG_STEP: Final = "rekindle:step-metric"
TAG_GRAD_NORM: Final = "rekindle:grad-norm-metric"
TAG_ALARMS: Final = "rekindle:alarms"


def watch_of(tags: Mapping[str, str]) -> WatchPlan:
    """How the job asks to be watched, by its tags. A word that is not known is logged and changes nothing."""
    alarms = AlarmMode.NONE
    try:
        alarms = AlarmMode(tags.get(TAG_ALARMS, AlarmMode.NONE))
    except ValueError:
        _LOG.warning("unknown value of a tag", extra={"tag": TAG_ALARMS, "value": tags[TAG_ALARMS][:64]})
    return WatchPlan(
        loss=_metric(tags, TAG_LOSS),
        step=_metric(tags, TAG_STEP),
        grad_norm=_metric(tags, TAG_GRAD_NORM),
        alarms=alarms,
    )


def _metric(tags: Mapping[str, str], tag: str) -> str:
    name = tags.get(tag, "")
    if not name or is_metric_name(name):
        return name
    _LOG.warning("a tag that is no metric's name", extra={"tag": tag, "value": name[:64]})
    return ""
