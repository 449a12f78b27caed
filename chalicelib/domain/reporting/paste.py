"""What an on-call person runs or opens next about an Incident: each a label and a command or an address. Pure.

Every value is quoted for a shell: names of jobs and nodes are other people's words.
Sources: docs/facts-sagemaker.md#head-node-access, docs/facts-sagemaker.md#health-agent (streams of HyperPod clusters);
SageMaker developer guide, logging-cloudwatch (/aws/sagemaker/TrainingJobs).
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Final
from urllib.parse import quote

from chalicelib.domain.model.incident import Incident
from chalicelib.domain.model.node_findings import instance_of
from rekindle.protocol.cluster.names import parse_attempt
from rekindle.protocol.wire import MailboxError

MAX_NODES: Final = 3  # a page that holds thirty commands helps nobody; `rekindle show` has all
_TRAINING_LOGS: Final = "/aws/sagemaker/TrainingJobs"
_CONSOLES: Final = (("cn-", "console.amazonaws.cn"), ("us-gov-", "console.amazonaws-us-gov.com"))


def paste_of(incident: Incident, *, region: str, cluster_arn: str = "") -> tuple[tuple[str, str], ...]:
    """The story; a session on each node in trouble; the logs.

    What is not known is left out.

    `cluster_arn` is the HyperPod cluster's, where the Incident's own Signals do not tell it.
    """
    lines = [("Story", f"rekindle show {_word(incident.incident_id)}")]
    arn = cluster_arn or _reported_arn(incident)
    for group, instance in _instances(incident):
        if not arn:
            continue
        target = f"sagemaker-cluster:{arn.rpartition('/')[2]}_{group}-{instance}"
        lines.append((f"Shell on {instance}", _aws(f"ssm start-session --target {_word(target)}", region)))
        group_name = f"/aws/sagemaker/Clusters/{incident.cluster}/{arn.rpartition('/')[2]}"
        stream = f"SagemakerHealthMonitoringAgent/{group}/{instance}"
        lines.append((f"Health agent on {instance}", _tail(group_name, stream, region)))
    attempt = incident.attempt
    if attempt and incident.cluster is not None:
        number = _job_number(attempt)
        if number:
            lines.append(("Slurm job", f"scontrol show job {number}"))
    elif attempt:
        lines.append(("Logs", _tail(_TRAINING_LOGS, attempt, region)))
        if region:
            lines.append(("Logs in the console", _console(_TRAINING_LOGS, attempt, region)))
    return tuple(lines)


def _job_number(attempt: str) -> str:
    """The number in its name; empty where that is a submission of ours, or of a platform without numbers."""
    try:
        base = parse_attempt(attempt).base
    except MailboxError:
        return ""
    return base if base.isdigit() else ""


def needs_arn(incident: Incident) -> bool:
    """Whether the cluster's ARN would add something that the Incident itself does not tell."""
    return not _reported_arn(incident) and any(True for _ in _instances(incident))


def _instances(incident: Incident) -> list[tuple[str, str]]:
    """Group and instance of the nodes in trouble, the newest first, each once."""
    found: list[tuple[str, str]] = []
    for pair in _reported_instances(incident):
        if pair not in found:
            found.append(pair)
    return found[:MAX_NODES]


def _reported_instances(incident: Incident) -> Iterator[tuple[str, str]]:
    if incident.repair is not None and incident.repair.instance_id and incident.repair.group:
        yield incident.repair.group, incident.repair.instance_id
    bad = {item.instance_id for item in incident.resubmission.bad_nodes}
    for signal in reversed(incident.signals):
        instance, group = instance_of(signal), signal.evidence.get("group")
        if instance and isinstance(group, str) and group and (signal.fault is not None or instance in bad):
            yield group, instance


def _reported_arn(incident: Incident) -> str:
    for signal in reversed(incident.signals):
        arn = signal.evidence.get("cluster_arn")
        if isinstance(arn, str) and ":cluster/" in arn:
            return arn
    return ""


def _tail(group: str, stream: str, region: str) -> str:
    return _aws(f"logs tail {_word(group)} --log-stream-name-prefix {_word(stream)} --since 1h", region)


def _aws(command: str, region: str) -> str:
    return f"aws {command}" + (f" --region {_word(region)}" if region else "")


def _console(group: str, stream: str, region: str) -> str:
    """The log group with its streams filtered. CloudWatch's console wants the parts escaped twice, % as $25."""
    host = next((host for prefix, host in _CONSOLES if region.startswith(prefix)), "console.aws.amazon.com")

    def twice(text: str) -> str:
        return quote(quote(text, safe=""), safe="").replace("%", "$")

    where = f"log-groups/log-group/{twice(group)}{quote('?', safe='').replace('%', '$')}"
    name = f"logStreamNameFilter{quote('=', safe='').replace('%', '$')}{twice(stream)}"
    return f"https://{quote(region)}.{host}/cloudwatch/home?region={quote(region)}#logsV2:{where}{name}"


def _word(text: str) -> str:
    return shlex.quote(text)
