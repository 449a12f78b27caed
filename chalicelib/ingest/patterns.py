"""The EventBridge rules as data: which events reach which function. app.py's decorators and the template use these.

Each function has one rule. Those of `monitor_event` and `agent_event` stand on our own bus, the others on the account's
default bus. The S3 rule does not name the bucket, whose name is only known at deployment: the merge template adds it.

Source: EventBridge user guide, eb-create-pattern-operators (wildcard).
"""

from __future__ import annotations

from typing import Any, Final

from chalicelib.ingest import detail_types

Pattern = dict[str, Any]

# A mailbox may be a bucket's root, where nothing comes before its first folder.
_MAILBOX_KEYS: Final = tuple(
    form
    for folder in ("rekindle/replies/", "rekindle/manifests/")
    for form in ({"wildcard": f"*/{folder}*"}, {"prefix": folder})
)

PATTERNS: Final[dict[str, Pattern]] = {
    "hyperpod_event": {
        "source": ["aws.sagemaker"],
        "detail-type": [detail_types.CLUSTER_STATE, detail_types.NODE_HEALTH, detail_types.CLUSTER_EVENT],
    },
    "training_job_event": {"source": ["aws.sagemaker"], "detail-type": [detail_types.TRAINING_JOB]},
    "alarm_event": {"source": ["aws.cloudwatch"], "detail-type": [detail_types.ALARM, detail_types.ALARM_CONTRIBUTOR]},
    "health_event": {"source": ["aws.health"], "detail-type": [detail_types.HEALTH]},
    "ec2_event": {"source": ["aws.ec2"], "detail-type": list(detail_types.EC2)},
    "monitor_event": {"source": [detail_types.MONITOR_SOURCE], "detail-type": list(detail_types.MONITOR)},
    "agent_event": {"source": [detail_types.AGENT_SOURCE], "detail-type": list(detail_types.AGENT)},
    "mailbox_event": {
        "source": ["aws.s3"],
        "detail-type": [detail_types.OBJECT_CREATED],
        "detail": {"object": {"key": list(_MAILBOX_KEYS)}},
    },
}

# Our own notices on their way out over our own bus (chalicelib/channels/bus.py): nothing is parsed into a Signal.
NOTICES: Final[Pattern] = {"source": [detail_types.NOTICE_SOURCE], "detail-type": [detail_types.NOTICE]}
