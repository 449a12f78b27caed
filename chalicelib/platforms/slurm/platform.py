"""What Slurm can do, through the agent on its head node. Facts: docs/slurm.md."""

from __future__ import annotations

from typing import Final

from chalicelib.domain.model.platform import Platform, Resize

SLURM: Final = Platform(
    name="slurm",
    title="Slurm",
    orders_wait=True,
    holds_own_queue=True,
    can_hold=True,  # scontrol requeuehold
    can_requeue=True,  # scontrol requeue; slurm.conf, JobRequeue
    can_exclude_nodes=True,  # scontrol update ExcNodeList; node state=drain
    restarts_by_itself=True,  # slurm.conf, JobRequeue: after NODE_FAIL and preemption
    job_restarts_itself=True,  # HyperPod, srun --auto-resume=1
    ends_lost_runs=True,  # slurm.conf, SlurmdTimeout
    names_recur=True,  # job ids start over with a new cluster
    tells_who_ended=True,  # the agent reads it from slurmctld's log and its own journal
    checks_users=True,  # the agent lets a comment name Jobs of its own user only
    relays_heartbeats=True,  # mailboxes on shared paths are copied to S3
    release_command="scontrol release {id}",
    end_command="scancel {id}",
    again_command="scontrol requeue {id}",
    uncordon_command="scontrol update nodename={node} state=resume",
    resize=Resize.WHILE_QUEUED,  # scontrol update NumNodes of a pending job
)
