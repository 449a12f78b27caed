"""Whether a cluster's state in the bucket is evidence about now. Pure.

The agent writes its heartbeat every 30 s and its other documents when they change, so what they say holds as long as
the heartbeat is fresh and the cluster is being read. After that everything in the cluster state is Unknown.
"""

from __future__ import annotations

from datetime import datetime

from chalicelib.domain.model.known import Known, Maybe
from rekindle.protocol.cluster.documents import SILENT_AFTER as SILENT_AFTER
from rekindle.protocol.cluster.documents import AgentDoc


def why_unknown(agent: Maybe[AgentDoc], *, now: datetime) -> str:
    """Why the cluster's state is unknown now; empty while its agent lives and reads it."""
    if not isinstance(agent, Known):
        return agent.why
    doc = agent.value
    if now - doc.at > SILENT_AFTER:
        where = f" on {doc.host}" if doc.host else ""
        left = f", and {', '.join(doc.standbys[:3])} has not taken over" if doc.standbys else ""
        return f"the agent of {doc.cluster}{where} is silent since {doc.at:%Y-%m-%d %H:%M:%S}{left}"
    if doc.read_at is None:
        return f"the agent of {doc.cluster} has not read its scheduler yet"
    if now - doc.read_at > SILENT_AFTER:
        return f"the agent of {doc.cluster} could not read its scheduler since {doc.read_at:%Y-%m-%d %H:%M:%S}"
    return ""
