"""What an agent that leaves its cluster gives back: jobs that it holds, copies not let go, nodes that it drained; and
what it removes of the cluster's state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rekindle.protocol.cluster.documents import AttemptDoc, EndedBy, NodeFacts
from rekindle.protocol.cluster.names import cluster_prefix, parse_attempt
from rekindle.protocol.cluster.node_states import StateMeaning, meanings_of, words_of
from rekindle.protocol.wire import MailboxError
from rekindle.slurm_agent.base.aws import AwsError, text_of
from rekindle.slurm_agent.base.ports import OwnActions, SlurmError
from rekindle.slurm_agent.copies.kept import SpecFolder
from rekindle.slurm_agent.privileged.remote import RemoteKept
from rekindle.slurm_agent.slurm.commands import Commands


def give_back(
    slurm: Commands, holds: OwnActions, say: Callable[[str], None], *, is_dry: bool, rest: list[str] | None = None
) -> bool:
    """One line for each thing; True where nothing of ours is left. `is_dry`: say what would be done, and do nothing.
    `rest` holds the names of what is not done yet.

    Idempotent: what was given back is not found again. What others held or drained is not touched.
    """
    try:
        waiting, out = slurm.waiting(), slurm.nodes_out_by_us()
    except SlurmError as err:
        say(f"MISSING  Slurm: {err}")
        return False
    left, rest = 0, rest if rest is not None else []
    rest[:] = [*(f"job {doc.slurm_job}" for doc in waiting), *(f"node {node.name}" for node in out)]
    for doc in waiting:
        left += not _job(slurm, holds, doc, say, is_dry=is_dry)
        del rest[0]
    for node in out:
        left += not _node(slurm, node, say, is_dry=is_dry)
        del rest[0]
    if not waiting and not out:
        say("nothing of ours waits held, and no node is drained by us")
    return left == 0


def remove_state(s3: Any, bucket: str, cluster: str, kept: SpecFolder | RemoteKept, say: Callable[[str], None]) -> bool:
    """What is kept of a cluster, in S3 and on its own file system; True where nothing is left."""
    prefix = cluster_prefix(cluster)
    place, gone = f"s3://{bucket}/{prefix}", 0
    refused: list[dict[str, str]] = []
    try:
        for page in s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix):
            keys = [{"Key": entry["Key"]} for entry in page.get("Contents", ())]
            answer = s3.delete_objects(Bucket=bucket, Delete={"Objects": keys, "Quiet": True}) if keys else {}
            refused += answer.get("Errors", ())
            gone += len(keys)
    except AwsError as err:
        refused.append({"Code": text_of("S3", err)})
    if refused:
        say(f"LEFT     {place}: {refused[0].get('Code')}: aws s3 rm --recursive {place}"[:600])
    else:
        say(f"done     removed {place}, {gone} objects")
    try:
        for folder in kept.remove():
            say(f"done     removed {folder}")
    except OSError as err:
        say(f"LEFT     {err}")
        return False
    return not refused


def _job(slurm: Commands, holds: OwnActions, doc: AttemptDoc, say: Callable[[str], None], *, is_dry: bool) -> bool:
    name = f"job {doc.slurm_job} ({doc.attempt})"

    def job_done(what: str, act: Callable[[int], None]) -> bool:
        def is_left() -> bool:
            return any(waiting.attempt == doc.attempt for waiting in slurm.waiting())

        return _done(say, what, lambda: act(doc.slurm_job), is_left, is_dry=is_dry)

    if doc.restart == 0 and holds.is_unproven(doc.attempt):
        return job_done(f"cancel {name}: a copy that was not found equal to its original", slurm.cancel)
    if doc.restart == 0 and holds.copy_of(doc.attempt) not in (None, doc.slurm_job):
        return job_done(f"cancel {name}: a copy too many", slurm.cancel_copy)
    ours = holds.holds(doc.attempt)
    if ours is None:
        ours = _was_put_back_by_us(slurm, doc)
    try:
        is_ours = ours and not slurm.is_held_by_admin(doc.slurm_job)
    except SlurmError as err:  # then an administrator may hold it as well
        say(f"LEFT     {name} waits held, and by whom is not known: {err}")
        return False
    if not is_ours:
        say(f"note     {name} waits held, not by us: it is left so")
        return True
    return job_done(f"release {name}", slurm.release)


def _done(
    say: Callable[[str], None], what: str, act: Callable[[], None], is_left: Callable[[], bool], *, is_dry: bool
) -> bool:
    """What Slurm refuses is looked at once more, for it may be done all the same: 22.05 resumes a node that has not
    registered since slurmctld started, and answers "Invalid node state specified".
    """
    if is_dry:
        say(f"would    {what}")
        return True
    try:
        act()
    except SlurmError as err:
        if _may_be_left(is_left):
            say(f"LEFT     {what}: {err}")
            return False
    say(f"done     {what}")
    return True


def _may_be_left(is_left: Callable[[], bool]) -> bool:
    try:
        return is_left()
    except SlurmError:
        return True


def _was_put_back_by_us(slurm: Commands, doc: AttemptDoc) -> bool:
    """Where the journal is lost: what the cluster state shows of the start before this one."""
    if doc.restart == 0:
        return False
    try:
        before = slurm.start(parse_attempt(doc.attempt).restarted(doc.restart - 1).name)
    except (SlurmError, MailboxError):
        return False
    return before is not None and before.requeued_by is EndedBy.AGENT


def _node(slurm: Commands, node: NodeFacts, say: Callable[[str], None], *, is_dry: bool) -> bool:
    what = f"resume node {node.name} ({node.reason})"
    if StateMeaning.INVALID in meanings_of(words_of(node.state, node.flags)):
        say(f"note     {what}: slurmctld keeps it out, it has less than slurm.conf says")
        return True

    def is_left() -> bool:
        return any(out.name == node.name for out in slurm.nodes_out_by_us())

    return _done(say, what, lambda: slurm.resume(node.name), is_left, is_dry=is_dry)
