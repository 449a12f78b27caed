"""Two head nodes: two slurmctlds with one StateSaveLocation, an agent beside each, and the first machine dies."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from chalicelib import bootstrap
from chalicelib.domain.policy.document import overlaid
from localcloud.aws.clock import RealClock
from localcloud.cloud import STACK, Cloud
from localcloud.stack import deploy_rekindle
from rekindle.protocol.cluster.documents import AgentDoc, AttemptDoc
from rekindle.protocol.cluster.lease import LeaseDoc, lease_key, standby_key
from rekindle.protocol.cluster.names import agent_key, attempt_key, cluster_prefix, first_attempt, order_key, queue_name
from rekindle.protocol.cluster.orders import Order, OrderResult, Outcome, Verb
from tests.slurm.lab.commands import BACKUP, on_host
from tests.slurm.lab.conf import Timers
from tests.slurm.lab.hyperpod import HyperPodLab
from tests.slurm.stage import POLICY

PROJECT = Path(__file__).resolve().parents[2]
BUCKET = f"{STACK}-mailbox"
CLUSTER = "hpc"
LEASE_S = 6
pytestmark = pytest.mark.long


@dataclass
class Site:
    cloud: Cloud
    pod: HyperPodLab
    service: bootstrap.Service
    folder: Path
    agents: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def shims(self, host: str) -> Path:
        """Scripts that stand before Slurm's commands on that head node."""
        folder = self.folder / f"{host}-shims"
        folder.mkdir(exist_ok=True)
        return folder

    def start_agent(self, host: str) -> None:
        """On one of the head nodes, with a state directory of its own."""
        lab = self.pod.lab
        own = lab.environ() | self.cloud.environ()
        environ = own | {
            "PATH": f"{self.shims(host)}:{own['PATH']}",
            "PYTHONPATH": str(PROJECT),
            "REKINDLE_BUCKET": BUCKET,
            "REKINDLE_STACK": STACK,
            "REKINDLE_STATE_DIR": str(self.folder / host),
            "REKINDLE_POLL_S": "1",
            "REKINDLE_LEASE_S": str(LEASE_S),
            "SAGEMAKER_RESOURCE_CONFIG_PATH": self.pod.resource_config,
        }
        with (self.folder / f"{host}.log").open("ab") as log:
            self.agents[host] = subprocess.Popen(
                [*on_host(host, lab.folder), sys.executable, "-m", "rekindle.slurm_agent"],
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def kill_agent(self, host: str) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.agents[host].pid, signal.SIGKILL)
        self.agents.pop(host).wait()

    def object(self, key: str) -> bytes | None:
        s3 = self.cloud.client("s3")
        try:
            return bytes(s3.get_object(Bucket=BUCKET, Key=key)["Body"].read())
        except s3.exceptions.NoSuchKey:
            return None

    def objects(self, folder: str) -> list[bytes]:
        prefix = f"{cluster_prefix(CLUSTER)}{folder}/"
        listed = self.cloud.client("s3").list_objects_v2(Bucket=BUCKET, Prefix=prefix).get("Contents", [])
        return [raw for entry in listed if (raw := self.object(entry["Key"])) is not None]

    def lease(self) -> LeaseDoc | None:
        raw = self.object(lease_key(CLUSTER))
        return LeaseDoc.from_json(raw) if raw is not None else None

    def holder(self) -> str:
        lease = self.lease()
        return lease.host if lease is not None and lease.term_s else ""

    def heartbeat(self) -> AgentDoc | None:
        raw = self.object(agent_key(CLUSTER))
        return AgentDoc.from_json(raw) if raw is not None else None

    def is_captured(self, attempt: str) -> bool:
        raw = self.object(attempt_key(attempt))
        return raw is not None and AttemptDoc.from_json(raw).spec is not None

    def send(self, token: str, verb: Verb, **about: Any) -> None:
        """An order of the test's own."""
        now = self.cloud.clock.now()
        order = Order(
            token=token, verb=verb, cluster=CLUSTER, issued_at=now, expires_at=now + timedelta(minutes=30), **about
        )
        self.cloud.client("s3").put_object(Bucket=BUCKET, Key=order_key(CLUSTER, token), Body=order.to_json())
        sqs = self.cloud.client("sqs")
        url = sqs.get_queue_url(QueueName=queue_name(STACK, CLUSTER))["QueueUrl"]
        sqs.send_message(QueueUrl=url, MessageBody=order.to_json().decode())

    def story(self) -> str:
        logs = [f"---- {log.name}\n{log.read_text()[-3000:]}" for log in sorted(self.folder.glob("*.log"))]
        orders = [raw.decode() for raw in (*self.objects("orders"), *self.objects("answers"))]
        return "\n".join([*logs, *orders, str(self.lease()), self.pod.lab.logs(25)])


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with contextlib.ExitStack() as stack:
        log = stack.enter_context((tmp_path / "service.log").open("w", buffering=1))
        stack.enter_context(contextlib.redirect_stdout(log))
        cloud = stack.enter_context(Cloud(http=True, clock=RealClock(), store=tmp_path / "store"))
        stack.callback(bootstrap.install, None)
        service = deploy_rekindle(cloud, policies={"small": overlaid({**POLICY, "name": "small"}, {})})
        timers = Timers(slurmd_timeout_s=60, message_timeout_s=2)
        pod = stack.enter_context(HyperPodLab(cloud, name=CLUSTER, workers=2, timers=timers, with_backup=True))
        made = Site(cloud, pod, service, tmp_path)
        stack.callback(lambda: [made.kill_agent(host) for host in tuple(made.agents)])
        try:
            yield made
        except BaseException as err:
            err.add_note(made.story())
            raise


def test_a_job_that_fails_while_the_first_head_node_dies_is_started_again_once(site: Site, tmp_path: Path) -> None:
    lab = site.pod.lab
    script, starts = tmp_path / "job.sbatch", tmp_path / "starts"
    script.write_text(
        "#!/bin/bash\n#SBATCH --nodes=1 --requeue --open-mode=append --comment=rekindle:small\n"
        f"echo $SLURM_JOB_ID.${{SLURM_RESTART_COUNT:-0}} >> {shlex.quote(str(starts))}\n"
        '[ -n "$SLURM_RESTART_COUNT" ] && exec sleep 600\n'
        f"until [ -e {shlex.quote(str(tmp_path / 'fail'))} ]; do sleep 0.1; done\nexit 3\n"
    )
    site.start_agent("ctl1")
    lab.wait(lambda: site.holder() == "ctl1", "the first agent to hold the lease")
    site.start_agent(BACKUP)
    job = lab.submit(script)
    lab.wait(lambda: lab.job_state(job) == "RUNNING", "the job to run")
    since = time.time()  # slurmctld saves a start with the next change only (seen on 26.05)
    lab.run("scontrol", "update", f"jobid={job}", "comment=rekindle:small")
    name = first_attempt(CLUSTER, job).name
    lab.wait(lambda: site.service.look.registry.job_of_attempt(name), "the job to be registered")
    lab.wait(lambda: (lease := site.lease()) and lease.term_s == LEASE_S, "the holder to see the standby")
    heartbeat = site.heartbeat()
    assert heartbeat is not None
    assert (heartbeat.host, heartbeat.epoch) == ("ctl1", 1)
    lab.wait(lambda: lab.jobs_saved_at() > since, "slurmctld to save that it runs")

    # The machine dies: slurmctld, its agent, and with them whatever either was at. The job fails meanwhile.
    site.kill_agent("ctl1")
    lab.stop_slurmctld(kills=True)
    died = time.monotonic()
    lab.take_over()
    (tmp_path / "fail").touch()
    lab.wait(lambda: site.holder() == BACKUP, "the second agent to take the lease")
    assert time.monotonic() - died > 1  # it waited for the term
    lab.wait(lambda: starts.read_text().split() == [f"{job}.0", f"{job}.1"], "the job to start again")

    lease = site.lease()
    assert lease is not None
    assert (lease.host, lease.epoch) == (BACKUP, 2)
    lab.wait(lambda: (heartbeat := site.heartbeat()) and heartbeat.host == BACKUP, "the second agent's heartbeat")
    orders = [Order.from_json(raw) for raw in site.objects("orders")]
    lab.wait(lambda: len(site.objects("answers")) == len(orders), "all orders to be answered")
    answers = [OrderResult.from_json(raw) for raw in site.objects("answers")]
    assert [answer.outcome for answer in answers if answer.verb == "requeue"] == [Outcome.DONE]
    assert {order.token for order in lease.begun} <= {order.token for order in orders}

    # The first machine comes back: it stands by, and takes no order.
    site.start_agent("ctl1")
    marks = [json.loads(raw) for raw in site.objects("standby") if raw]
    own = next(mark["agent_id"] for mark in marks if mark["host"] == BACKUP)
    lab.wait(lambda: any(json.loads(raw)["host"] == "ctl1" for raw in site.objects("standby") if raw), "its mark")
    assert site.object(standby_key(CLUSTER, own)) is not None
    assert site.holder() == BACKUP
    assert starts.read_text().split() == [f"{job}.0", f"{job}.1"]


@pytest.mark.parametrize("slurmctld_dies", [False, True], ids=["the agent alone", "the whole head node"])
def test_an_agent_that_dies_between_a_copys_submission_and_its_release_leaves_one_copy(
    site: Site, tmp_path: Path, slurmctld_dies: bool
) -> None:
    """Another order was accepted meanwhile. With slurmctld dies what it has not saved: the copy, perhaps."""
    lab = site.pod.lab
    script, starts, stands = tmp_path / "job.sbatch", tmp_path / "starts", tmp_path / "stands"
    script.write_text(
        "#!/bin/bash\n#SBATCH --nodes=1 --no-requeue --open-mode=append --comment=rekindle:small\n"
        f"echo $SLURM_JOB_ID >> {shlex.quote(str(starts))}\n"
        f"[ $(wc -l <{shlex.quote(str(starts))}) -gt 1 ] && exec sleep 600\n"
        f"until [ -e {shlex.quote(str(tmp_path / 'fail'))} ]; do sleep 0.1; done\nexit 3\n"
    )
    hangs = site.shims("ctl1") / "scontrol"
    hangs.write_text(
        f'#!/bin/bash\n[ "$1" = release ] && {{ touch {shlex.quote(str(stands))}; sleep 600; }}\n'
        f'exec {shlex.quote(str(lab.install.which("scontrol")))} "$@"\n'
    )
    hangs.chmod(0o755)
    site.start_agent("ctl1")
    lab.wait(lambda: site.holder() == "ctl1", "the first agent to hold the lease")
    site.start_agent(BACKUP)
    job = lab.submit(script)
    name = first_attempt(CLUSTER, job).name
    lab.wait(lambda: site.service.look.registry.job_of_attempt(name), "the job to be registered")
    lab.wait(lambda: (lease := site.lease()) and lease.term_s == LEASE_S, "the holder to see the standby")
    lab.wait(lambda: site.is_captured(name), "what a copy needs to be known")
    (tmp_path / "fail").touch()
    lab.wait(stands.exists, "the copy to be submitted")
    assert lab.run("squeue", "-h", "-t", "PD", "-o", "%r").stdout.split() == ["JobHeldUser"]
    drained = lab.nodes[1]
    site.send("drain-1", Verb.DRAIN, node=drained, incident_id="inc-1")
    site.kill_agent("ctl1")
    if slurmctld_dies:
        lab.stop_slurmctld(kills=True)
        lab.take_over()

    lab.wait(lambda: site.holder() == BACKUP, "the second agent to take the lease")
    # A slurmctld that dies within five seconds of a job's end may not have saved it. The second one then took the job
    # for running for more than two minutes (seen on 26.05), until its node registers again, and so does the agent.
    lab.wait(lambda: len(starts.read_text().split()) > 1, "the copy to run", limit_s=600)
    lab.wait(lambda: len(site.objects("answers")) == len(site.objects("orders")), "all orders to be answered")
    lab.wait(lambda: lab.node_states().get(drained, "").startswith("drain"), "the node to be drained")
    answers = [OrderResult.from_json(raw) for raw in site.objects("answers")]
    (submitted,) = [answer for answer in answers if answer.verb == "submit"]
    assert submitted.outcome is Outcome.DONE
    assert lab.run("squeue", "-h", "-t", "PD,R,CG", "-o", "%A").stdout.split() == [str(submitted.slurm_job)]
    assert starts.read_text().split() == [str(job), str(submitted.slurm_job)]
