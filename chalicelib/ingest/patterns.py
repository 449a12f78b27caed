"""The EventBridge rules as data: which events reach which function. app.py's decorators and the template use these.

Each function has one rule. Those of `monitor_event` and `agent_event` stand on our own bus, the others on the account's
default bus.
"""

from __future__ import annotations

from typing import Any, Final

from chalicelib.ingest import detail_types

Pattern = dict[str, Any]

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
}

# Our own notices on their way out over our own bus (chalicelib/channels/bus.py): nothing is parsed into a Signal.
NOTICES: Final[Pattern] = {"source": [detail_types.NOTICE_SOURCE], "detail-type": [detail_types.NOTICE]}
