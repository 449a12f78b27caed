"""A stage for real Slurm: the embedded cloud in real time, the whole service on it, a HyperPod cluster whose nodes are
slurmd of this machine, the real agent as a process beside them, and one training job as a batch script.

Nothing here asserts how long something takes: conditions are polled, for minutes if need be, and a wait that ends in
vain raises with the Incidents' timelines, the agent's log, the job's output and the daemons' logs.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

from chalicelib import bootstrap
from chalicelib.domain.model.incident import Incident
from chalicelib.domain.model.job import Attempt
from chalicelib.domain.policy.document import overlaid
from localcloud.aws.clock import RealClock
from localcloud.cloud import STACK, Cloud
from localcloud.demo.undisturbed import Undisturbed
from localcloud.stack import deploy_rekindle
from rekindle.cli.main import main as rekindle
from rekindle.protocol.cluster.documents import AgentDoc, AttemptDoc
from rekindle.protocol.cluster.names import agent_key, attempt_key, cluster_prefix, first_attempt, order_key, queue_name
from rekindle.protocol.cluster.orders import Order, OrderResult
from rekindle.protocol.keys import fence_key
from rekindle.protocol.mailbox import Fence
from tests.slurm.lab.conf import Timers
from tests.slurm.lab.hyperpod import HyperPodLab
from tests.slurm.lab.lab import SlurmLab
from tests.waiting import ask_until

PROJECT = Path(__file__).resolve().parents[2]
SCRIPT = Path(__file__).with_name("train.py")
EXAMPLE = PROJECT / "examples" / "numpy_lm"
BUCKET = f"{STACK}-mailbox"
CLUSTER = "hpc"
SAVE_EVERY = 20
PACE_S = 0.05
SEED = 7
MAX_STEPS = 20_000  # far beyond what any test needs: a run ends when it is told to
TRAIN_PORTS = 32  # above the lab's own ports, in the block that is reserved for it
PATIENCE_S = 480.0  # a loaded machine may need minutes for what takes seconds
# What takes minutes on a cluster takes seconds here; limits that only a broken run meets stay long.
POLICY: Mapping[str, Any] = {
    "schema": 1,
    "resubmission": {"backoff_s": [0, 1, 2]},
    "timing": {
        "checkpoint_deadline_s": 120,
        "hang_deadline_s": 3,
        "stop_limit_s": 180,
        "start_limit_s": 240,
        "silent_limit_s": 180,
        "auto_resume_grace_s": 5,
        "tell_open_s": 20,
        "look_max_s": 2,
    },
    "nodes": {
        "hma_grace_s": 2,
        "settle_s": 5,
    },
    "budgets": {"max_nodes_in_repair_percent": 100},
}
MONITOR = {
    "REKINDLE_HEARTBEAT_S": "1",
    "REKINDLE_POLL_S": "0.5",
    "REKINDLE_AGREE_S": "0.5",
    "REKINDLE_WATCH_S": "0.5",
    "REKINDLE_METRICS_S": "5",
    "REKINDLE_STALL_FLOOR_S": "60",  # a busy machine may stand still for many seconds; a test of a hang asks for less
    "REKINDLE_STALL_STARTUP_S": "180",
}
# A slow machine is no dead node: what misses a ping for half a minute is.
TIMERS = Timers(slurmd_timeout_s=15, message_timeout_s=5, kill_wait_s=3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """One start of the job, as its rank 0 wrote it down. `name` is `<Slurm job>.<restart>`."""

    name: str
    resumed: int
    uri: str | None
    pid: int


@dataclass(slots=True, kw_only=True)
class Stage:
    """One job and everything around it."""

    cloud: Cloud
    pod: HyperPodLab
    service: bootstrap.Service
    folder: Path
    api_url: str
    mailbox: str
    environ: Mapping[str, str]
    job: int = 0  # the Slurm job's id, of its first submission
    agent: subprocess.Popen[bytes] | None = None
    shims: dict[str, str] = field(default_factory=dict)

    # ---- what tests do ---------------------------------------------------------------------------------------------

    @property
    def lab(self) -> SlurmLab:
        return self.pod.lab

    def submit(self, *options: str) -> int:
        """Submit the batch script, as its owner does; returns the Slurm job's id."""
        self.job = self.lab.submit(self.folder / "job.sbatch", *options)
        return self.job

    def start_agent(self) -> None:
        """On the head node, as its service runs it."""
        with (self.folder / "agent.log").open("ab") as log:
            self.agent = subprocess.Popen(
                [sys.executable, "-m", "rekindle.slurm_agent"],
                env=self.agent_environ(),
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def agent_environ(self) -> dict[str, str]:
        """What the agent's unit file sets. `shims` stands before Slurm's own commands where a test put one there."""
        own = self.lab.environ() | self.cloud.environ()
        return own | {
            "PATH": f"{self.folder / 'shims'}:{own['PATH']}",
            "PYTHONPATH": str(PROJECT),
            "REKINDLE_STACK": STACK,
            "REKINDLE_BUCKET": BUCKET,
            "REKINDLE_BUS": STACK,
            "REKINDLE_STATE_DIR": str(self.folder / "agent"),
            "REKINDLE_ROOT": str(self.folder / "root"),
            "REKINDLE_POLL_S": "1",
            "SAGEMAKER_RESOURCE_CONFIG_PATH": self.pod.resource_config,
        }

    def allow(self, text: str) -> None:
        """What the administrator of the head node allows from now on."""
        path = self.folder / "root/etc/rekindle/allow.conf"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o600)

    def notices(self) -> Callable[[], str]:
        """What people are sent from now on, all of it so far."""
        sns, sqs, sent = self.cloud.client("sns"), self.cloud.client("sqs"), []
        url = sqs.create_queue(QueueName="people")["QueueUrl"]
        arn = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
        topic = sns.create_topic(Name=f"{STACK}-notices")["TopicArn"]
        sns.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=arn)

        def read() -> str:
            while found := sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10).get("Messages"):
                for message in found:
                    sent.append(message["Body"])
                    sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
            return "\n".join(sent)

        return read

    def end_agent(self, number: int = signal.SIGKILL) -> None:
        """Killed, unless told otherwise."""
        if self.agent is not None:
            self.agent.send_signal(number)
            self.agent.wait(PATIENCE_S)

    def shim(self, command: str, body: str) -> None:
        """Put a shell script before one of Slurm's commands, for the agent alone; `$real` is the command itself."""
        folder = self.folder / "shims"
        folder.mkdir(exist_ok=True)
        script = folder / command
        real = self.lab.install.which(command)
        script.write_text(f"#!/bin/bash\nreal={shlex.quote(str(real))}\n{body}\n")
        script.chmod(0o755)

    def say(self, name: str, text: str = "") -> None:
        """Have the run find a file in its folder, whole."""
        beside = self.folder / f".{name}"
        beside.write_text(text)
        beside.replace(self.folder / name)

    def rekindle(self, *arguments: str) -> None:
        """Run the operator's command against this service; it must succeed."""
        assert rekindle([*arguments, "--api", self.api_url]) == 0, self.story()

    def finish(self) -> int:
        """Have the run end in order, a little further on. Returns the last step, which the run itself chooses."""
        self.wait_for_step(self.last_step() + 60)
        self.say("end")
        finish = self.folder / "finish"
        self.wait(finish.exists, "the run to name its last step")
        last = int(finish.read_text())
        self.wait(lambda: self.doc().state == "completed", f"the run to end after step {last}")
        return last

    # ---- what tests see --------------------------------------------------------------------------------------------

    def wait(self, condition: Callable[[], Any], what: str, limit_s: float = PATIENCE_S) -> Any:
        """Ask until the answer is true, and return it. Asking takes a quarter of the time at most."""
        answer = ask_until(condition, limit_s=limit_s, pause_s=0.1, rest=3)
        assert answer, f"waited {limit_s:g} s for {what}"
        return answer

    def wait_for_step(self, step: int) -> None:
        self.wait(lambda: self.last_step() >= step, f"step {step}")

    def wait_for_checkpoints(self, number: int) -> list[dict[str, Any]]:
        """The manifests, once there are so many."""
        self.wait(lambda: len(self.manifests()) >= number, f"{number} checkpoints")
        return self.manifests()

    def wait_protected(self) -> None:
        """Until the service knows the job by its comment, and it has a checkpoint."""
        self.wait(self.attempts, "the job to be registered")
        self.wait_for_checkpoints(1)

    def wait_recovered(self, *faults: str) -> Incident:
        """The first Incident of these faults that led to another attempt, once it has ended; only as recovered."""

        def is_of(incident: Incident) -> bool:
            told = (line.text.startswith(faults) for line in self.service.look.store.timeline(incident.incident_id))
            return incident.fault in faults or any(told)

        def ended() -> Incident | None:
            mine = [incident for incident in self.incidents() if not incident.is_open and is_of(incident)]
            wrong = [
                incident
                for incident in mine
                if incident.phase == "handed_over" or (incident.resubmission.tries and incident.phase != "recovered")
            ]
            if wrong:
                raise AssertionError(f"the {wrong[0].fault} Incident ended as {wrong[0].phase}: {wrong[0].outcome}")
            return next((incident for incident in mine if incident.phase == "recovered"), None)

        incident: Incident = self.wait(ended, f"the recovery from {faults}")
        return incident

    def wait_repaired(self, node: str) -> None:
        """Until the node's own Incident has ended well, and it is there for the next job."""
        closed = self.wait(
            lambda: [incident for incident in self.node_incidents(node) if not incident.is_open], f"{node}'s repair"
        )
        assert [incident.phase for incident in closed] == ["recovered"], [incident.outcome for incident in closed]
        self.wait(lambda: self.lab.node_states().get(node) in ("idle", "alloc", "mix"), f"{node} to be given back")

    def wait_moving(self) -> None:
        """Until the newest start is past everything that was trained before it, and has saved since."""
        before = max((step for start in self.starts()[:-1] for step in self.losses(start.name)), default=0)

        def is_past() -> bool:
            newest = self.starts()[-1]
            return max(self.losses(newest.name), default=0) > before + SAVE_EVERY

        self.wait(is_past, f"the run to get past step {before}")

    @property
    def job_id(self) -> str:
        """The Job's name for the service: that of its first attempt."""
        return first_attempt(CLUSTER, self.job).name

    def attempts(self) -> tuple[Attempt, ...]:
        """In order; none before the job is registered."""
        try:
            return tuple(self.service.look.registry.attempts(self.job_id))
        except LookupError:
            return ()

    def incidents(self) -> list[Incident]:
        """The Job's, oldest first."""
        store = self.service.look.store
        listed = reversed(store.list_for_job(self.job_id, limit=50))
        return [store.load(incident.incident_id).incident for incident in listed]

    def node_incidents(self, node: str) -> list[Incident]:
        """A node's own, oldest first."""
        store = self.service.look.store
        listed = reversed(store.list_for_node(CLUSTER, node, limit=50))
        return [store.load(incident.incident_id).incident for incident in listed]

    def rules(self, incident: Incident) -> list[str]:
        """The rules that spoke, in order."""
        return [line.rule for line in self.service.look.store.timeline(incident.incident_id)]

    def doc(self, attempt: str | None = None) -> AttemptDoc:
        """What the agent has written down about an attempt; of the newest one unless another is named."""
        name = attempt or (self.attempts()[-1].name if self.attempts() else self.job_id)
        return AttemptDoc.from_json(self.wait(lambda: self.object(attempt_key(name)), f"the agent's word on {name}"))

    def agent_doc(self) -> AgentDoc | None:
        raw = self.object(agent_key(CLUSTER))
        return None if raw is None else AgentDoc.from_json(raw)

    def orders(self) -> list[Order]:
        """Every order that was ever given, by when it was issued."""
        found = [Order.from_json(raw) for raw in self.objects(f"{cluster_prefix(CLUSTER)}orders/").values()]
        return sorted(found, key=lambda order: order.issued_at)

    def answers(self) -> dict[str, OrderResult]:
        """By token."""
        found = [OrderResult.from_json(raw) for raw in self.objects(f"{cluster_prefix(CLUSTER)}answers/").values()]
        return {answer.token: answer for answer in found}

    def forged(self, like: Order, *, is_overdue: bool = False, **changes: Any) -> Order:
        """Another order about what `like` is about; an overdue one's time ended a second ago."""
        now = self.cloud.clock.now()
        times = {"issued_at": now, "expires_at": now + timedelta(minutes=15)}
        if is_overdue:
            times = {"issued_at": now - timedelta(minutes=1), "expires_at": now - timedelta(seconds=1)}
        plain = {"new_attempt": None, "spec": None, "environment": {}, "exclude": ()}
        return dataclasses.replace(like, **{**plain, **times, **changes})

    def deliver(self, order: Order) -> None:
        """Put an order into the agent's queue (again); one that is new is written down first, as the service does."""
        key = order_key(CLUSTER, order.token)
        s3 = self.cloud.client("s3")
        if not s3.list_objects_v2(Bucket=BUCKET, Prefix=key).get("Contents"):
            s3.put_object(Bucket=BUCKET, Key=key, Body=order.to_json())
        sqs = self.cloud.client("sqs")
        url = sqs.get_queue_url(QueueName=queue_name(STACK, CLUSTER))["QueueUrl"]
        sqs.send_message(QueueUrl=url, MessageBody=order.to_json().decode())

    def manifests(self) -> list[dict[str, Any]]:
        """By step."""
        return self.messages("manifests")

    def fence(self) -> str:
        """The attempt that may write; "" before there is a fence."""
        if self.mailbox.startswith("s3://"):
            raw = self.object(f"{self.mailbox.removeprefix(f's3://{BUCKET}/')}/{fence_key()}")
        else:
            path = Path(self.mailbox, fence_key())
            raw = path.read_bytes() if path.exists() else None
        return "" if raw is None else Fence.from_json(raw).attempt

    def messages(self, kind: str) -> list[dict[str, Any]]:
        """What stands in the mailbox, wherever that is."""
        if self.mailbox.startswith("s3://"):
            prefix = self.mailbox.removeprefix(f"s3://{BUCKET}/")
            return [json.loads(raw) for raw in self.objects(f"{prefix}/rekindle/{kind}/").values()]
        return [json.loads(path.read_bytes()) for path in sorted(Path(self.mailbox, "rekindle", kind).glob("*.json"))]

    def object(self, key: str) -> bytes | None:
        """An object in the stack's bucket."""
        s3 = self.cloud.client("s3")
        try:
            return bytes(s3.get_object(Bucket=BUCKET, Key=key)["Body"].read())
        except s3.exceptions.NoSuchKey:
            return None

    def objects(self, prefix: str) -> dict[str, bytes]:
        """In the order of their keys."""
        pages = self.cloud.client("s3").get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=prefix)
        keys = [item["Key"] for page in pages for item in page.get("Contents", [])]
        return {key: raw for key in keys if (raw := self.object(key)) is not None}

    def starts(self, rank: int = 0) -> list[Start]:
        """Every start of the job that has got as far as its first step, in order."""
        noted = _lines(self.folder / "trace" / f"starts-{rank}.jsonl")
        return [Start(name=row["start"], resumed=row["resumed"], uri=row["uri"], pid=row["pid"]) for row in noted]

    def trace(self, name: str) -> list[dict[str, Any]]:
        """What the ranks noted under a name."""
        return _lines(self.folder / "trace" / f"{name}.jsonl")

    def losses(self, start: str, rank: int = 0) -> dict[int, str]:
        """Exact loss by step."""
        return {line["step"]: line["loss"] for line in _lines(self.folder / "trace" / f"{start}-{rank}.jsonl")}

    def last_step(self) -> int:
        """Of the newest start that has made one; 0 before the first."""
        made = (max(self.losses(start.name), default=0) for start in reversed(self.starts()))
        return next((step for step in made if step), 0)

    def story(self) -> str:
        """Everything that a person needs who wants to know why a test failed."""
        lines = [f"==== {self.job_id}", *(f"start {start}" for start in self.starts())]
        for attempt in self.attempts():
            raw = self.object(attempt_key(attempt.name))
            lines.append(f"attempt {attempt.name}: {raw.decode() if raw else 'no word of the agent'}")
        for incident in (
            *self.incidents(),
            *(incident for node in self.lab.nodes for incident in self.node_incidents(node)),
        ):
            lines.append(f"incident {incident.incident_id}: {incident.fault}, {incident.phase}, {incident.outcome}")
            lines += [
                f"  {entry.at:%H:%M:%S} {entry.phase} {entry.rule}: {entry.text} {list(entry.actions)}"
                for entry in self.service.look.store.timeline(incident.incident_id)
            ]
        answers = self.answers()
        for order in self.orders():
            answer = answers.get(order.token)
            told = f"{answer.at:%H:%M:%S} {answer.outcome}: {answer.detail}" if answer else "not answered"
            lines.append(f"order {order.issued_at:%H:%M:%S} {order.verb} {order.attempt or order.node}: {told}")
        lines += [f"record {record.job}: {record.state} on {record.nodes}" for record in self.lab.records()]
        lines.append(self.lab.run("scontrol", "-o", "show", "job", fails=True).stdout)
        lines.append(self.lab.run("sinfo", "-N", "-o", "%N %T %E", fails=True).stdout)
        for log in (self.folder / "agent.log", *sorted(self.folder.glob("*.out"))):
            lines += [f"---- {log.name}", *(f"  {line}" for line in _tail(log, 60))]
        return "\n".join([*lines, self.lab.logs(25)])

    def wait_settled(self) -> None:
        """Until nothing is on its way any more: no Incident is open, and a job that came later is known."""
        later = self.lab.submit(self.folder / "job.sbatch", "--hold")
        name = first_attempt(CLUSTER, later).name
        self.wait(lambda: self.service.look.registry.job_of_attempt(name), "a later job to be registered")
        self.wait(lambda: not any(incident.is_open for incident in self.incidents()), "the Incidents to be closed")

    # ---- what tests hold it against --------------------------------------------------------------------------------

    def assert_done_once(self) -> None:
        """Slurm has seen as many starts as the service knows attempts, and no order is left without its answer."""
        names = [attempt.name for attempt in self.attempts()]
        assert len(self.starts()) == len(names) == len(set(names))
        # A requeue of what has ended writes a second line about that start; one that never ran has no nodes.
        ended = {
            (record.job, record.fields["StartTime"]) for record in self.lab.records() if record.nodes != ("(null)",)
        }
        assert len(ended) == len(names), f"{names} against Slurm's {sorted(ended)}"
        self.wait(lambda: {order.token for order in self.orders()} <= set(self.answers()), "all orders to be answered")

    def assert_as_undisturbed(self, last: int, *, skip: Sequence[tuple[int, int]] = ()) -> None:
        """Every step of every start of every rank has, bit for bit, the loss of a run that nothing befell."""
        data = self.folder / "data"
        with contextlib.closing(Undisturbed(EXAMPLE / "reference.py", data=data, seed=SEED, workers=2)) as reference:
            reference.train_to(last, skip=skip)
            expected = reference.losses(limit_s=PATIENCE_S)
        for start in self.starts():
            for rank in range(2):
                for step, loss in self.losses(start.name, rank).items():
                    assert loss == expected[step], f"{start.name} rank {rank} differs at step {step}"
        final = self.starts()[-1]
        skipped = {step for first, end in skip for step in range(first, end)}
        assert list(self.losses(final.name)) == [n for n in range(final.resumed + 1, last + 1) if n not in skipped]


@contextlib.contextmanager
def raised(
    folder: Path,
    *,
    workers: int = 3,
    shared: bool = False,
    policy: Mapping[str, Any] | None = None,
    environment: Mapping[str, str] | None = None,
    sbatch: Sequence[str] = (),
    node_recovery: str = "None",
    with_auto_resume: bool = False,
    srun: Sequence[str] = (),
    submits: bool = True,
) -> Iterator[Stage]:
    """Raise everything and submit the job; take it all down again. A failure inside carries the whole story.

    workers: nodes, two of which the job takes. shared: the mailbox lies on a shared path instead of S3.
    environment: more for the run's own. sbatch: more `#SBATCH` options; srun: more of srun's.
    """
    from app import app

    with contextlib.ExitStack() as stack:
        log = stack.enter_context((folder / "service.log").open("w", buffering=1))
        stack.enter_context(contextlib.redirect_stdout(log))  # the app logs to standard output, as on Lambda
        cloud = stack.enter_context(Cloud(http=True, clock=RealClock(), store=folder / "store"))
        stack.callback(bootstrap.install, None)
        service = deploy_rekindle(cloud, policies={"small": overlaid({**POLICY, "name": "small"}, policy or {})})
        pod = stack.enter_context(
            HyperPodLab(
                cloud,
                name=CLUSTER,
                workers=workers,
                node_recovery=node_recovery,
                timers=TIMERS,
                with_auto_resume=with_auto_resume,
            )
        )
        mailbox = str(folder / "fsx" / "lm") if shared else f"s3://{BUCKET}/lm"
        stage = Stage(
            cloud=cloud,
            pod=pod,
            service=service,
            folder=folder,
            api_url=cloud.serve_api(app),
            mailbox=mailbox,
            environ=cloud.environ(),
        )
        try:
            _write_job(stage, environment or {}, sbatch=sbatch, srun=srun)
            stack.callback(stage.end_agent)
            stage.start_agent()
            if submits:
                stage.submit()
            yield stage
        except BaseException as err:
            err.add_note(stage.story())
            raise


def _write_job(stage: Stage, environment: Mapping[str, str], *, sbatch: Sequence[str], srun: Sequence[str]) -> None:
    """The batch script and what belongs to it. Its credentials come from a file, on a cluster from the instance."""
    folder = stage.folder
    code = "import pathlib, sys, corpus; corpus.write_dataset(pathlib.Path(sys.argv[1]), batches=int(sys.argv[2]))"
    command = [sys.executable, "-c", code, str(folder / "data"), str(MAX_STEPS)]
    subprocess.run(command, cwd=EXAMPLE, check=True)
    if not stage.mailbox.startswith("s3://"):
        Path(stage.mailbox).mkdir(parents=True)
    own = {
        "PYTHONPATH": str(PROJECT),
        "PYTHONDONTWRITEBYTECODE": "1",
        "LM_FOLDER": str(folder),
        "LM_PORT0": str(stage.lab.port + TRAIN_PORTS),
        "LM_SAVE_EVERY": str(SAVE_EVERY),
        "LM_PACE_S": str(PACE_S),
        "LM_SEED": str(SEED),
        "SAGEMAKER_RESOURCE_CONFIG_PATH": stage.pod.resource_config,
        "REKINDLE_MAILBOX": stage.mailbox,
        "REKINDLE_BUS": STACK,
        **MONITOR,
        **environment,
    }
    aws = {name: value for name, value in stage.environ.items() if name.startswith("AWS_")}
    lines = [f"export {name}={shlex.quote(value)}" for name, value in {**aws, **own}.items()]
    (folder / "env.sh").write_text("\n".join(lines) + "\n")
    options = [
        "--job-name=lm",
        "--nodes=2",
        "--ntasks-per-node=1",
        "--exclusive",
        "--open-mode=append",
        f"--output={folder}/lm-%j.out",
        f"--comment=rekindle:small,mailbox={stage.mailbox}",
        *sbatch,
    ]
    train = ["srun", "--kill-on-bad-exit=1", *srun, sys.executable, str(SCRIPT)]
    script = [
        "#!/bin/bash",
        *(f"#SBATCH {option}" for option in options),
        f"source {shlex.quote(str(folder / 'env.sh'))}",
        shlex.join(train),
    ]
    (folder / "job.sbatch").write_text("\n".join(script) + "\n")


def _lines(path: Path) -> list[dict[str, Any]]:
    """Whole lines; the last one may still be half written."""
    try:
        return [json.loads(line) for line in path.read_text().rpartition("\n")[0].splitlines()]
    except FileNotFoundError:
        return []


def _tail(path: Path, lines: int) -> list[str]:
    try:
        return path.read_text(errors="replace").splitlines()[-lines:]
    except FileNotFoundError:
        return ["(is not there)"]
