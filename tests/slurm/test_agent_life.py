"""The agent on a head node, from its installation to its removal, by the operator's own command against a real Slurm.

The head node is a folder (REKINDLE_ROOT) in which the real script makes real environments from the real wheels.
`systemctl`, and AWS's way onto the node, are stand-ins that say so (tests/slurm/head_node.py).
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from localcloud.aws.clock import RealClock
from localcloud.cloud import STACK, Cloud
from rekindle.protocol.cluster.documents import AttemptDoc
from rekindle.protocol.cluster.names import agent_key, answer_key, attempt_key, order_key, queue_name
from rekindle.protocol.cluster.orders import Barred, Order, OrderResult, Outcome, Verb
from tests.slurm import head_node
from tests.slurm.head import until
from tests.slurm.lab.hyperpod import HyperPodLab

PROJECT = Path(__file__).resolve().parents[2]
BUCKET = f"{STACK}-mailbox"
CLUSTER = "hpc"
SLEEPS = "#!/bin/bash\n#SBATCH --nodes=1 --comment=rekindle --requeue\nsleep 600\n"

pytestmark = pytest.mark.long


@dataclass
class Site:
    cloud: Cloud
    pod: HyperPodLab
    folder: Path
    bundle: Path

    @property
    def root(self) -> Path:
        return self.folder / "root"

    @property
    def environ(self) -> dict[str, str]:
        own = self.pod.lab.environ() | self.cloud.environ()
        return own | {
            "PATH": f"{self.folder / 'bin'}:{own['PATH']}",
            "PYTHONPATH": str(PROJECT),
            "REKINDLE_ROOT": str(self.root),
            "REKINDLE_POLL_S": "1",
            "REKINDLE_SETTLE_S": "3",
            "REKINDLE_PYTHON": sys.executable,
            "SAGEMAKER_RESOURCE_CONFIG_PATH": self.pod.resource_config,
        }

    def agent(self, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
        """`rekindle slurm-agent`, as its operator types it."""
        command = [sys.executable, "-m", "rekindle.cli.main", "slurm-agent", *words, "--cluster", CLUSTER]
        return self._run(command, more)

    def script(self, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
        return self._run(["bash", str(folder / "rekindle_agent.sh"), *words, "--controller"], {})

    def _run(self, command: list[str], more: dict[str, str]) -> subprocess.CompletedProcess[str]:
        env = self.environ | more
        if command[0] == "bash":
            env.pop("PYTHONPATH")
        return subprocess.run(command, env=env, cwd=self.folder, capture_output=True, text=True, check=False)

    def allow(self, text: str) -> None:
        """What the head node's administrator has written."""
        path = self.root / "etc/rekindle/allow.conf"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o600)

    def current(self) -> str:
        return os.readlink(self.root / "opt/rekindle/current")

    def other(self, name: str, **changes: str) -> Path:
        """Another version of the folder: with another unit."""
        made = self.folder / name
        shutil.copytree(self.bundle, made)
        unit = made / "rekindle-agent.service"
        text = unit.read_text() + f"# {name}\n"
        for old, new in changes.items():
            text = text.replace(old, new)
        unit.write_text(text)
        return made

    def order(self, token: str, verb: Verb, **about: Any) -> Order:
        order = self.send(token, verb, **about)
        self.answer(token)
        return order

    def answer(self, token: str) -> OrderResult:
        key = answer_key(CLUSTER, token)
        self.pod.lab.wait(lambda: self.has(key), f"the answer to {token}")
        return OrderResult.from_json(self.cloud.client("s3").get_object(Bucket=BUCKET, Key=key)["Body"].read())

    def send(self, token: str, verb: Verb, **about: Any) -> Order:
        """One that is not waited for."""
        now = self.cloud.clock.now()
        order = Order(
            token=token, verb=verb, cluster=CLUSTER, issued_at=now, expires_at=now + timedelta(minutes=30), **about
        )
        self.cloud.client("s3").put_object(Bucket=BUCKET, Key=order_key(CLUSTER, token), Body=order.to_json())
        sqs = self.cloud.client("sqs")
        url = sqs.get_queue_url(QueueName=queue_name(STACK, CLUSTER))["QueueUrl"]
        sqs.send_message(QueueUrl=url, MessageBody=order.to_json().decode())
        return order

    def stall(self, words: str, seconds: float, *, acts: bool) -> Path:
        """The next scontrol whose arguments begin so stands still, before or after it acts; what shows that it does."""
        stands = self.folder / f"stands-{words.split()[0]}"
        act = '"$real" "$@"; ' if acts else ""
        shim = self.folder / "bin/scontrol"
        shim.write_text(
            f"#!/bin/bash\nreal={shlex.quote(str(self.pod.lab.install.which('scontrol')))}\n"
            f'case "$*" in "{words}"*) if [ ! -e {stands} ]; then {act}touch {stands}; sleep {seconds:g}; '
            'echo "Socket timed out on send/recv operation" >&2; exit 1; fi;; esac\nexec "$real" "$@"\n'
        )
        shim.chmod(0o755)
        return stands

    def has(self, key: str) -> bool:
        return bool(self.cloud.client("s3").list_objects_v2(Bucket=BUCKET, Prefix=key).get("Contents"))

    def journal(self) -> list[str]:
        with closing(sqlite3.connect(self.root / "var/lib/rekindle/agent.sqlite")) as db:
            return [token for (token,) in db.execute("SELECT token FROM orders WHERE state = 'done' ORDER BY token")]


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("bundle")
    place = ["--bucket", BUCKET, "--bus", STACK, "--region", "us-east-1", "--account", "123456789012"]
    command = [sys.executable, "-m", "rekindle.cli.main", "slurm-agent", "bundle", "--cluster", CLUSTER]
    subprocess.run([*command, "--stack", STACK, "--out", str(out), *place], check=True, cwd=PROJECT)
    return out / "rekindle"


@pytest.fixture
def site(bundle: Path, tmp_path: Path) -> Iterator[Site]:
    head_node.lay_out(tmp_path / "bin")
    with (
        Cloud(http=True, clock=RealClock(), set_environ=False) as cloud,
        HyperPodLab(cloud, name=CLUSTER, workers=4) as pod,
    ):
        cloud.client("sqs").create_queue(QueueName=queue_name(STACK, CLUSTER))
        made = Site(cloud, pod, tmp_path, bundle)
        yield made
        subprocess.run(["systemctl", "stop", "rekindle-agent.service"], env=made.environ, check=False)


def said(done: subprocess.CompletedProcess[str], code: int, *words: str) -> None:
    assert done.returncode == code, done.stdout + done.stderr
    for word in words:
        assert word in done.stdout + done.stderr


def test_from_its_installation_to_its_removal(site: Site) -> None:
    lab, where = (
        site.pod.lab,
        ["--bucket", BUCKET, "--bus", STACK, "--region", "us-east-1", "--account", "123456789012"],
    )
    said(site.agent("status", "--region", "us-east-1"), 3, "not installed there")
    said(site.script(site.bundle, "upgrade"), 3, "no agent is installed here")
    said(site.agent("install", *where), 1, "would make", "would start the agent", "no one can be asked")
    assert not (site.root / "opt").exists()
    said(site.agent("install", "--yes", *where), 0, "the agent was started")
    lab.wait(lambda: site.has(agent_key(CLUSTER)), "the heartbeat")
    said(site.agent("status", "--region", "us-east-1"), 0, "the agent runs", "slurmctld: Slurm", "before it: none")
    first = site.current()
    said(site.script(site.bundle, "install"), 0, "nothing to do")

    # It only observes, until its administrator says otherwise.
    site.order("drain-0", Verb.DRAIN, node=lab.nodes[2], incident_id="inc-0")
    observed = site.answer("drain-0")
    assert (observed.outcome, observed.barred) == (Outcome.REFUSED, Barred.OBSERVED), observed
    assert not lab.node_states()[lab.nodes[2]].startswith("drain")
    site.allow("mode = act\n")

    # What it holds, and what others hold.
    (lab.folder / "work/job.sh").write_text(SLEEPS)
    held, users = (lab.submit(lab.folder / "work/job.sh") for _ in range(2))
    for job in (held, users):
        lab.wait(lambda job=job: site.has(attempt_key(f"slurm.{CLUSTER}.{job}")), "the jobs to be followed")
        lab.wait(lambda job=job: lab.job_state(job) == "RUNNING", "the jobs to run")
    lab.run("scontrol", "requeuehold", str(users))
    site.order("hold-1", Verb.HOLD, attempt=f"slurm.{CLUSTER}.{held}", slurm_job=held)
    ours, theirs = lab.nodes[2:4]
    site.order("drain-1", Verb.DRAIN, node=ours, incident_id="inc-1")
    lab.run("scontrol", "update", f"nodename={theirs}", "state=drain", "reason=bob: bad fan")
    lab.wait(lambda: lab.job(users).get("Priority") == "0" and lab.job(held).get("Priority") == "0", "both held")

    # Another version; one that does not run is taken back; back and forth, always with the journal.
    said(site.script(site.other("two"), "upgrade"), 0, "the agent was started")
    second = site.current()
    assert second != first
    assert site.journal() == ["drain-0", "drain-1", "hold-1"]
    broken = site.other("three", **{"-m rekindle.slurm_agent": "-m no_such_module"})  # which ends at once
    said(site.script(broken, "upgrade"), 1, "does not run: the agent is", "as before")
    assert site.current() == second
    assert os.readlink(site.root / "opt/rekindle/previous") == first, "no version that never ran"
    said(site.script(site.other("four"), "upgrade"), 0)
    fourth = site.current()
    said(site.agent("rollback", "--here", "--dry-run"), 0, f"go back from {fourth} to {second}")
    said(site.agent("rollback", "--here", "--yes"), 0, "the next rollback returns to")
    assert site.current() == second
    assert site.journal() == ["drain-0", "drain-1", "hold-1"]
    assert not Path(first).exists(), "the version in force and the one before are kept"
    said(site.agent("status", "--region", "us-east-1"), 0, "the agent runs")

    said(site.agent("stop", "--region", "us-east-1"), 0, "the agent is stopped")
    said(site.agent("status", "--here"), 1, "does not run")
    assert lab.job_state(held) == "PENDING"

    # A Slurm that does not answer: nothing is removed, since nothing could be given back.
    lab.stop_slurmctld()
    said(site.agent("uninstall", "--here", "--yes"), 1)
    assert Path(second).exists()
    lab.start_slurmctld()

    told = site.agent("uninstall", "--region", "us-east-1", "--dry-run")
    said(told, 0, f"would    release job {held}", f"would    resume node {ours}", f"job {users}", "would remove")
    assert lab.job(held).get("Priority") == "0"
    said(site.agent("uninstall", "--region", "us-east-1", "--yes"), 0, f"done     release job {held}", "removed")
    lab.wait(lambda: lab.job_state(held) == "RUNNING", "the job to be let go")
    lab.wait(lambda: lab.node_states().get(ours) in ("idle", "mix", "alloc"), "the node to be given back")
    assert lab.job(users).get("Priority") == "0", "its user holds it"
    assert lab.node_states()[theirs].startswith("drain")
    assert [path for path in ("opt/rekindle", "etc/rekindle", "var/lib/rekindle") if (site.root / path).exists()] == []
    said(site.agent("uninstall", "--here", "--yes"), 3)


def test_an_upgrade_and_a_rollback_in_the_middle_of_orders_do_nothing_twice_and_lose_nothing(site: Site) -> None:
    lab, starts = site.pod.lab, site.folder / "starts"
    site.allow("mode = act\n")
    said(site.script(site.bundle, "install"), 0, "the agent was started")
    lab.wait(lambda: site.has(agent_key(CLUSTER)), "the heartbeat")
    job_file = lab.folder / "work/job.sh"
    job_file.write_text(
        "#!/bin/bash\n#SBATCH --nodes=1 --no-requeue --comment=rekindle\n"
        f"echo $SLURM_JOB_ID >> {shlex.quote(str(starts))}\nexec sleep 600\n"
    )
    job = lab.submit(job_file)
    name = f"slurm.{CLUSTER}.{job}"

    def spec() -> str | None:
        if not site.has(attempt_key(name)):
            return None
        body = site.cloud.client("s3").get_object(Bucket=BUCKET, Key=attempt_key(name))["Body"].read()
        return AttemptDoc.from_json(body).spec

    found = lab.wait(spec, "what a copy needs to be known")
    lab.wait(lambda: lab.job_state(job) == "RUNNING", "the job to run")
    site.order("cancel-1", Verb.CANCEL, attempt=name, slurm_job=job)

    # Upgraded while the copy of one order waits, held, and another order is accepted.
    stands = site.stall("release", 8, acts=False)
    node = lab.nodes[3]
    site.send("submit-1", Verb.SUBMIT, attempt=name, slurm_job=job, new_attempt=f"{name}-a2", spec=found)
    site.send("drain-1", Verb.DRAIN, node=node, incident_id="inc-1")
    lab.wait(stands.exists, "the copy to be submitted")
    assert lab.run("squeue", "-h", "-t", "PD", "-o", "%r").stdout.split() == ["JobHeldUser"]
    said(site.script(site.other("two"), "upgrade"), 0, "the agent was started")
    submitted = site.answer("submit-1")
    assert submitted.outcome is Outcome.DONE, submitted
    assert site.answer("drain-1").outcome is Outcome.DONE
    copy = submitted.slurm_job or 0
    lab.wait(lambda: starts.exists() and len(starts.read_text().split()) == 2, "the copy to run")

    # Rolled back while an order has taken effect and is not answered, and its agent was killed; a command of it still
    # stands.
    stands = site.stall("update nodename=", 6, acts=True)
    site.send("resume-1", Verb.RESUME, node=node, incident_id="inc-1")
    lab.wait(stands.exists, "the node to be given back")
    site.send("hold-1", Verb.HOLD, attempt=f"{name}-a2", slurm_job=copy)
    os.kill(int((site.root / "run/rekindle-agent.service/main").read_text()), signal.SIGKILL)
    lab.run("scontrol", "update", f"nodename={node}", "state=drain", "reason=bob: bad fan")
    said(site.agent("rollback", "--here", "--yes"), 0, "the next rollback returns to")
    resumed = site.answer("resume-1")
    assert site.answer("hold-1").outcome in (Outcome.DONE, Outcome.REFUSED), site.answer("hold-1")
    assert site.journal() == ["cancel-1", "drain-1", "hold-1", "resume-1", "submit-1"]
    assert starts.read_text().split() == [str(job), str(copy)]
    shown = lab.run("scontrol", "-o", "show", "node", node).stdout
    assert "bob: bad fan" in shown, (resumed, shown)
    assert lab.run("squeue", "-h", "-t", "PD,R,CG", "-o", "%A").stdout.split() == [str(copy)]

    # Stopped while slurmctld hangs: it tells that it knows nothing. Then what is held is given back.
    ours, give_back = lab.nodes[2], ("stop", "--here", "--give-back")
    site.order("drain-2", Verb.DRAIN, node=ours, incident_id="inc-2")
    slurmctld = int((lab.folder / "run/slurmctld.pid").read_text())
    os.kill(slurmctld, signal.SIGSTOP)
    try:
        said(site.agent(*give_back), 1, "the agent is stopped", "Slurm", "not all was given back")
    finally:
        os.kill(slurmctld, signal.SIGCONT)
    until(lambda: f"would    resume node {ours}" in site.agent(*give_back, "--dry-run").stdout, "Slurm to answer")
    assert "inc-2" in lab.run("scontrol", "-o", "show", "node", ours).stdout
    until(lambda: site.agent(*give_back).returncode == 0, "all to be given back")
    assert "inc-2" not in lab.run("scontrol", "-o", "show", "node", ours).stdout
    assert "bob: bad fan" in lab.run("scontrol", "-o", "show", "node", node).stdout
    assert lab.job(copy).get("Priority") != "0"


def test_a_session_that_breaks_off_is_unknown_and_one_that_never_began_is_told(site: Site) -> None:
    region = ["--region", "us-east-1"]
    said(site.agent("stop", *region, BREAK_SESSION="not-connected"), 4, "cannot be reached")
    said(site.agent("status", *region, BREAK_SESSION="after-begin"), 5, "not known how it ended")
    said(site.agent("status", *region, "--group", "nowhere"), 4, "no instance of the group nowhere")
    said(site.agent("status", "--here", "--group", "x"), 2, "--group")
