"""What HyperPod's event envelopes leave out, read from SageMaker's cluster APIs. Source: docs/facts-sagemaker.md."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from chalicelib.aws.errors import AwsRefusal, call
from chalicelib.aws.sagemaker.tags import tags_of
from chalicelib.domain.guards.stages import PROD, owner_of

TAG_POLICY: Final = "rekindle:policy"
# A cluster in legacy mode answers ValidationException; an event older than the newest 500 is not found.
_ABSENT: Final = ("ResourceNotFound", "ValidationException")


class SageMakerClusters:
    """ports.ClusterReader; `client` is a boto3 SageMaker client. `cluster` is a name or an ARN throughout.

    `stage` is ours: clusters of other stages are left alone.
    """

    def __init__(self, client: Any, *, stage: str = PROD) -> None:
        self._client = client
        self._stage = stage

    def describe_event(self, cluster: str, event_id: str) -> Mapping[str, Any] | None:
        """See ports.ClusterReader. Times come as ISO-8601 text, as in JSON."""
        try:
            answer = call(self._client.describe_cluster_event, expect=_ABSENT, ClusterName=cluster, EventId=event_id)
        except AwsRefusal:
            return None
        plain: dict[str, Any] = _plain({name: value for name, value in answer.items() if name != "ResponseMetadata"})
        return plain

    def groups_in_motion(self, cluster: str) -> bool | None:
        described = self._describe(cluster)
        groups = described.get("InstanceGroups") if described else None
        if not groups:
            return None
        counts = [(group.get("CurrentCount"), group.get("TargetCount")) for group in groups]
        if any(None not in pair and pair[0] != pair[1] for pair in counts):
            return True
        return None if any(None in pair for pair in counts) else False

    def policy_of(self, cluster: str) -> str | None:
        arn = cluster
        if not cluster.startswith("arn:"):
            described = self._describe(cluster)
            if described is None:
                return None
            arn = described["ClusterArn"]
        tags = tags_of(self._client, arn, absent=_ABSENT)
        if TAG_POLICY not in tags or owner_of(tags) != self._stage:
            return None
        return tags[TAG_POLICY] or "default"

    def _describe(self, cluster: str) -> dict[str, Any] | None:
        try:
            answer: dict[str, Any] = call(self._client.describe_cluster, expect=_ABSENT, ClusterName=cluster)
        except AwsRefusal:
            return None
        return answer


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value.isoformat() if isinstance(value, datetime) else value
