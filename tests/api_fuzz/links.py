"""Where a good answer leads: the operations that take a name which it holds. `make test-api` follows them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

Link = Mapping[str, str]  # the target's parameter -> JSON pointer into the answer's body

_INCIDENT: Final[Link] = {"incident_id": "/incident_id"}
_FIRST_INCIDENT: Final[Link] = {"incident_id": "/incidents/0/incident_id"}
_ASKED_OF: Final[Link] = {"incident_id": "/approvals/0/incident/incident_id"}
_JOB: Final[Link] = {"job_id": "/job_id"}
_POLICY: Final[Link] = {"name": "/name"}
_TAKEN: Final[Mapping[str, Link]] = {"get_incident": _INCIDENT, "get_timeline": _INCIDENT}

LINKS: Final[Mapping[str, Mapping[str, Link]]] = {
    "status": {"get_incident": _FIRST_INCIDENT},
    "list_jobs": {"get_job": {"job_id": "/jobs/0/job_id"}, "list_jobs": {"cursor": "/cursor"}},
    "register_job": {"get_job": _JOB, "checkpoint_job": _JOB, "start_drill": _JOB},
    "get_job": {
        **dict.fromkeys(("job_curves", "job_ledger", "list_incidents", "start_drill"), _JOB),
        "get_policy": {"name": "/policy"},
        "get_incident": _FIRST_INCIDENT,
    },
    **dict.fromkeys(("checkpoint_job", "stop_job", "resubmit_job", "cancel_incident", "repair_node"), _TAKEN),
    "answer_approval": _TAKEN,
    "list_incidents": {
        **dict.fromkeys(("get_incident", "get_timeline", "incident_ledger", "postmortem"), _FIRST_INCIDENT),
        "list_incidents": {"cursor": "/cursor"},
    },
    "get_incident": {
        **dict.fromkeys(("get_timeline", "incident_report", "cancel_incident"), _INCIDENT),
        "get_job": _JOB,
        "answer_approval": {**_INCIDENT, "approval_id": "/approvals/0/approval_id"},
    },
    "start_drill": {"get_drill": {"drill_id": "/drill_id"}},
    "list_approvals": {
        "get_incident": _ASKED_OF,
        "answer_approval": {**_ASKED_OF, "approval_id": "/approvals/0/approval_id"},
    },
    "list_policies": {"get_policy": {"name": "/policies/0/name"}},
    "get_policy": {"put_policy": _POLICY, "diff_policy": _POLICY},
    "put_policy": {"get_policy": _POLICY},
    "list_clusters": {"get_cluster": {"cluster": "/clusters/0/cluster"}},
    "get_cluster": {"repair_node": {"cluster": "/cluster", "node": "/nodes/0/name"}},
}


def add_links(document: dict[str, Any]) -> None:
    """Put them into an OpenAPI document. Source: spec.openapis.org/oas/v3.1.1, Link Object and Runtime Expressions."""
    for methods in document["paths"].values():
        for operation in methods.values():
            for target, link in LINKS.get(operation["operationId"], {}).items():
                (good,) = (answer for status, answer in operation["responses"].items() if status.startswith("2"))
                good.setdefault("links", {})[target] = {
                    "operationId": target,
                    "parameters": {name: f"$response.body#{pointer}" for name, pointer in link.items()},
                }
