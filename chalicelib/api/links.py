"""Where an answer leads: OpenAPI links, from what one operation answers to what another takes.

Source of their form: spec.openapis.org/oas/v3.1.1, Link Object and Runtime Expressions. A value that an answer
lacks (an empty list, a null) leads nowhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

Link = Mapping[str, str]  # the target's parameter -> JSON pointer into the answer's body

_INCIDENT: Final[Link] = {"incident_id": "/incident_id"}
_FIRST_INCIDENT: Final[Link] = {"incident_id": "/incidents/0/incident_id"}
_JOB: Final[Link] = {"job_id": "/job_id"}
_TAKEN: Final[Mapping[str, Link]] = {"get_incident": _INCIDENT, "get_timeline": _INCIDENT}

# By operation: what its good answer leads to, by operation.
LINKS: Final[Mapping[str, Mapping[str, Link]]] = {
    "status": {"get_incident": _FIRST_INCIDENT},
    "list_jobs": {"get_job": {"job_id": "/jobs/0/job_id"}, "list_jobs": {"cursor": "/cursor"}},
    "register_job": {"get_job": _JOB, "checkpoint_job": _JOB, "start_drill": _JOB},
    "get_job": {
        "job_curves": _JOB,
        "job_ledger": _JOB,
        "list_incidents": _JOB,
        "start_drill": _JOB,
        "get_policy": {"name": "/policy"},
        "get_incident": _FIRST_INCIDENT,
    },
    "checkpoint_job": _TAKEN,
    "stop_job": _TAKEN,
    "resubmit_job": _TAKEN,
    "list_incidents": {
        "get_incident": _FIRST_INCIDENT,
        "get_timeline": _FIRST_INCIDENT,
        "incident_ledger": _FIRST_INCIDENT,
        "postmortem": _FIRST_INCIDENT,
        "list_incidents": {"cursor": "/cursor"},
    },
    "get_incident": {
        "get_timeline": _INCIDENT,
        "incident_report": _INCIDENT,
        "cancel_incident": _INCIDENT,
        "get_job": _JOB,
        "answer_approval": {**_INCIDENT, "approval_id": "/approvals/0/approval_id"},
    },
    "cancel_incident": _TAKEN,
    "list_approvals": {
        "get_incident": {"incident_id": "/approvals/0/incident/incident_id"},
        "answer_approval": {
            "incident_id": "/approvals/0/incident/incident_id",
            "approval_id": "/approvals/0/approval_id",
        },
    },
    "answer_approval": _TAKEN,
    "start_drill": {"get_drill": {"drill_id": "/drill_id"}},
    "list_policies": {"get_policy": {"name": "/policies/0/name"}},
    "get_policy": {"put_policy": {"name": "/name"}, "diff_policy": {"name": "/name"}},
    "put_policy": {"get_policy": {"name": "/name"}},
    "list_clusters": {"get_cluster": {"cluster": "/clusters/0/cluster"}},
    "get_cluster": {"repair_node": {"cluster": "/cluster", "node": "/nodes/0/name"}},
    "repair_node": _TAKEN,
}


def link_objects(operation: str) -> dict[str, dict[str, object]]:
    """The Link Objects of an operation's good answer, by name."""
    return {
        target: {
            "operationId": target,
            "parameters": {name: f"$response.body#{pointer}" for name, pointer in link.items()},
        }
        for target, link in LINKS.get(operation, {}).items()
    }
