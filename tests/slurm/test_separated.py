"""The agent on a real Slurm as it runs where there is a user `rekindle`: root's helper, and a process without rights.

The user is there in a mount namespace of the test's own: nothing of this machine is changed.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
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
from tests.slurm.lab.lab import SlurmLab

PROJECT = Path(__file__).resolve().parents[2]
BUCKET = f"{STACK}-mailbox"
UID = 64_242
USER = 65_534
AS_USER = ("setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups", "--")
# Python of this machine may lie in root's home, which no one else may enter.
NAMESPACE = f"""set -e
mount --make-rprivate /
cp /etc/passwd "$1/passwd"; echo 'rekindle:x:{UID}:{UID}::/:/bin/false' >> "$1/passwd"; chmod 644 "$1/passwd"
mount --bind "$1/passwd" /etc/passwd
case "$2" in /root/*)
    home=$(dirname "$(dirname "$2")"); mkdir -p "$1/python"; mount --bind "$home" "$1/python"
    mount -t tmpfs -o mode=755 tmpfs /root; mkdir -p "$home"; mount --move "$1/python" "$home";;
esac
shift 2
exec "$@"
"""

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(os.geteuid() != 0, reason="another user needs root"),
]


@dataclass
class Site:
    cloud: Cloud
    lab: SlurmLab
    folder: Path
    process: subprocess.Popen[bytes] | None = None

    def agent(self, *words: str) -> subprocess.Popen[bytes]:
        env = (
            self.lab.environ()
            | self.cloud.environ()
            | {
                "PYTHONPATH": str(PROJECT),
                "REKINDLE_ROOT": str(self.folder / "root"),
                "REKINDLE_BUCKET": BUCKET,
                "REKINDLE_CLUSTER": "lab",
                "REKINDLE_POLL_S": "1",
                "SAGEMAKER_RESOURCE_CONFIG_PATH": "/nonexistent",
            }
        )
        command = [sys.executable, "-m", "rekindle.slurm_agent", "--state-dir", str(self.folder / "state"), *words]
        real = os.path.realpath(sys.executable)
        inside = ["unshare", "--mount", "sh", "-c", NAMESPACE, "sh", str(self.folder), real, *command]
        with (self.folder / "log").open("ab") as log:
            return subprocess.Popen(inside, env=env, cwd="/", stdout=log, stderr=log)

    def allow(self, text: str) -> None:
        path = self.folder / "root/etc/rekindle/allow.conf"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o600)

    def carry_out(self, token: str, verb: Verb, **about: Any) -> OrderResult:
        now = self.cloud.clock.now()
        order = Order(
            token=token, verb=verb, cluster="lab", issued_at=now, expires_at=now + timedelta(minutes=30), **about
        )
        self.cloud.client("s3").put_object(Bucket=BUCKET, Key=order_key("lab", token), Body=order.to_json())
        sqs = self.cloud.client("sqs")
        url = sqs.get_queue_url(QueueName=queue_name(STACK, "lab"))["QueueUrl"]
        sqs.send_message(QueueUrl=url, MessageBody=order.to_json().decode())
        self.wait(lambda: self.has(answer_key("lab", token)), f"the answer to {token}")
        return OrderResult.from_json(self.read(answer_key("lab", token)))

    def wait(self, holds: Any, what: str) -> Any:
        try:
            return self.lab.wait(holds, what)
        except Exception as err:
            raise AssertionError((self.folder / "log").read_text()[-4000:]) from err

    def read(self, key: str) -> bytes:
        body: bytes = self.cloud.client("s3").get_object(Bucket=BUCKET, Key=key)["Body"].read()
        return body

    def has(self, key: str) -> bool:
        return bool(self.cloud.client("s3").list_objects_v2(Bucket=BUCKET, Prefix=key).get("Contents"))

    def doc(self, name: str) -> AttemptDoc | None:
        return AttemptDoc.from_json(self.read(attempt_key(name))) if self.has(attempt_key(name)) else None


@pytest.fixture
def site() -> Iterator[Site]:
    folder = Path(tempfile.mkdtemp(prefix="rks-", dir="/var/tmp"))
    folder.chmod(0o755)
    with Cloud(http=True, clock=RealClock(), set_environ=False) as cloud, SlurmLab(nodes=("n1", "n2"), cpus=8) as lab:
        lab.folder.chmod(0o755)
        (lab.folder / "work").chmod(0o1777)
        cloud.client("sqs").create_queue(QueueName=queue_name(STACK, "lab"))
        made = Site(cloud, lab, folder)
        yield made
        if made.process is not None and made.process.poll() is None:
            made.process.kill()
            made.process.wait(60)
    shutil.rmtree(folder)


def status_of(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {name: text.strip() for name, _, text in (line.partition(":") for line in lines)}


def test_the_agent_works_without_rights_and_leaves_nothing(site: Site) -> None:
    lab = site.lab
    site.allow("mode = act\n[allow]\nverbs = *\n")
    old = site.folder / "state"
    old.mkdir(mode=0o700)
    (old / "caps.json").write_text('{"changes": {}, "jobs": {}}')  # of an agent that was root in one process
    site.process = site.agent()
    site.wait(lambda: site.has(agent_key("lab")), "the heartbeat")

    [child] = [
        int(pid) for pid in Path(f"/proc/{site.process.pid}/task/{site.process.pid}/children").read_text().split()
    ][:1]
    seen = status_of(child)
    assert seen["Uid"].split() == [str(UID)] * 4
    assert (seen["Groups"], seen["NoNewPrivs"]) == ("", "1")
    assert {int(seen[name], 16) for name in ("CapPrm", "CapEff", "CapInh", "CapAmb")} == {0}
    assert (site.folder / "state/agent.sqlite").stat().st_uid == UID
    own = site.folder / "state-root"
    assert (own.stat().st_uid, own.stat().st_mode & 0o777, (own / "caps.json").exists()) == (0, 0o700, True)

    # Another user's job, with a mailbox that is his alone, is stopped, submitted again and put back by its orders.
    box = lab.folder / "work/box"
    box.mkdir(mode=0o700)
    os.chown(box, USER, USER)
    script = lab.folder / "work/train.sh"
    script.write_text("#!/bin/bash\nsleep 600\n")
    script.chmod(0o755)
    options = ("-n1", "--requeue", f"--comment=rekindle,mailbox={box}", f"--chdir={lab.folder / 'work'}")
    submitted = lab.run(*AS_USER, "env", "MY_SECRET=x-1", "sbatch", "--parsable", *options, str(script))
    job = int(submitted.stdout)
    name = f"slurm.lab.{job}"
    site.wait(lambda: (doc := site.doc(name)) is not None and doc.spec is not None, "what a copy needs to be known")
    spec = (site.doc(name) or pytest.fail("it was there")).spec
    site.wait(lambda: lab.job_state(job) == "RUNNING", "the job to run")
    held = site.carry_out("hold-1", Verb.HOLD, attempt=name, slurm_job=job)
    assert held.outcome is Outcome.DONE, held
    again = site.carry_out("requeue-1", Verb.REQUEUE, attempt=name, slurm_job=job, new_attempt=f"{name}.r1")
    assert again.outcome is Outcome.DONE, again
    cancelled = site.carry_out("cancel-1", Verb.CANCEL, attempt=f"{name}.r1", slurm_job=job)
    assert cancelled.outcome is Outcome.DONE, cancelled
    about = {"attempt": f"{name}.r1", "slurm_job": job, "new_attempt": f"{name}-a2", "spec": spec}
    site.wait(lambda: lab.job_state(job) == "CANCELLED", "its end")
    copy = site.carry_out("submit-1", Verb.SUBMIT, **about)
    assert (copy.outcome, copy.slurm_job is not None) == (Outcome.DONE, True), copy
    assert lab.job(copy.slurm_job or 0)["UserId"].endswith(f"({USER})")
    kept = lab.folder / "state/rekindle"
    assert (kept.stat().st_uid, kept.stat().st_mode & 0o777) == (0, 0o700)
    drained = site.carry_out("drain-1", Verb.DRAIN, node="n2", incident_id="inc-1")
    assert drained.outcome is Outcome.DONE, drained

    # The administrator's file binds it.
    site.allow("mode = observe\n[allow]\nverbs = *\n")
    barred = site.carry_out("resume-1", Verb.RESUME, node="n2", incident_id="inc-1")
    assert (barred.outcome, barred.barred) == (Outcome.REFUSED, Barred.OBSERVED), barred

    site.process.send_signal(signal.SIGTERM)
    assert site.process.wait(60) == 0, (site.folder / "log").read_text()[-2000:]
    assert not Path(f"/proc/{child}").exists()
    site.allow("mode = act\n[allow]\nverbs = *\n")
    assert site.agent("--give-back").wait(120) == 0, (site.folder / "log").read_text()[-2000:]
    lab.wait(lambda: not lab.node_states()["n2"].startswith("drain"), "the node to be given back")
    assert site.agent("--remove-state").wait(120) == 0, (site.folder / "log").read_text()[-2000:]
    assert (kept.exists(), (own / "specs").exists()) == (False, False)


def test_the_agent_ends_with_its_helper(site: Site) -> None:
    site.process = site.agent()
    site.wait(lambda: site.has(agent_key("lab")), "the heartbeat")
    [child] = [*Path(f"/proc/{site.process.pid}/task/{site.process.pid}/children").read_text().split()][:1]
    site.process.kill()
    site.process.wait(60)
    site.wait(lambda: not Path(f"/proc/{child}").exists() or status_of(int(child))["State"].startswith("Z"), "its end")
