"""Rekindle's own side of a cluster: its stack's bucket, the agent's documents in it, and the queue of its orders."""

from __future__ import annotations

from typing import Any, Final, TypeVar

from rekindle.doctor.aws.account import Account
from rekindle.doctor.base.facts import Missing, NotInspected
from rekindle.protocol.cluster import names
from rekindle.protocol.cluster.documents import AgentDoc, NodesDoc
from rekindle.protocol.message import Message
from rekindle.protocol.wire import MailboxError

BUCKET_OUTPUT: Final = "BucketName"  # infra/template/outputs.yaml
_D = TypeVar("_D", bound=Message)


def find_bucket(account: Account, stack: str, given: str | None) -> str | NotInspected:
    """The stack's bucket: as given, or as the stack's outputs name it."""
    if given:
        return given
    answer = account.ask("cloudformation", "describe_stacks", StackName=stack)
    if not isinstance(answer, dict):
        why = answer.why or "it does not exist"
        return NotInspected(f"the bucket of stack {stack} is not known ({why}); name it with --bucket")
    for output in (answer.get("Stacks") or [{}])[0].get("Outputs") or []:
        if output.get("OutputKey") == BUCKET_OUTPUT and output.get("OutputValue"):
            return str(output["OutputValue"])
    return NotInspected(f"stack {stack} names no bucket; name it with --bucket")


def read_document(
    account: Account, bucket: str | NotInspected, key: str, kind: type[_D]
) -> _D | Missing | NotInspected:
    """One document of the cluster state."""
    if isinstance(bucket, NotInspected):
        return bucket
    answer = account.ask("s3", "get_object", Bucket=bucket, Key=key)
    if not isinstance(answer, dict):
        return answer
    try:
        return kind.from_json(_read_at_most(answer["Body"], kind.LIMIT_BYTES + 1))
    except MailboxError as err:
        return NotInspected(f"{key} is not to be read: {err}")


def _read_at_most(body: Any, limit: int) -> bytes:
    from botocore.exceptions import BotoCoreError

    try:
        return bytes(body.read(limit))
    except (BotoCoreError, OSError) as err:
        raise MailboxError("$", f"broke off ({type(err).__name__})") from err


def read_agent(account: Account, bucket: str | NotInspected, cluster: str) -> AgentDoc | Missing | NotInspected:
    """The agent's heartbeat."""
    return read_document(account, bucket, names.agent_key(cluster), AgentDoc)


def read_slurm_nodes(account: Account, bucket: str | NotInspected, cluster: str) -> NodesDoc | Missing | NotInspected:
    return read_document(account, bucket, names.nodes_key(cluster), NodesDoc)


def read_queue(account: Account, stack: str, cluster: str) -> str | Missing | NotInspected:
    """The queue's address."""
    answer = account.ask("sqs", "get_queue_url", QueueName=names.queue_name(stack, cluster))
    return str(answer.get("QueueUrl", "")) if isinstance(answer, dict) else answer
