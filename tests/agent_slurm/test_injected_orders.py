"""Orders that no guard of the service has seen, and changes that no order asks for, beside an administrator who writes
another file at any moment: nothing that the file forbids is run, whatever the state of jobs and nodes."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import pytest

from rekindle.protocol.cluster.orders import NEEDED, Order, Repair, Signal, Verb
from rekindle.protocol.wire import MailboxError
from rekindle.slurm_agent.base.ports import SlurmError
from rekindle.slurm_agent.orders.dispatch import OrderDispatcher
from rekindle.slurm_agent.orders.verbs import OrderNotReady, OrderTry
from rekindle.slurm_agent.privileged.caps import Caps
from rekindle.slurm_agent.privileged.changes import Change, ChangeKind
from rekindle.slurm_agent.privileged.gate import Gate
from tests.agent_slurm.conftest import Head
from tests.agent_slurm.fake_slurm import node_line

WORDS = {
    "partitions": ("gpu", "debug"),
    "accounts": ("chem", "ml"),
    "qos": ("high", "low"),
    "users": ("ann", "bob"),
    "policies": ("default", "bold"),
    "nodes": ("node1", "node2"),
    "verbs": tuple(Verb),
}
STATES = ("RUNNING", "PENDING", "FAILED", "COMPLETED", "SUSPENDED")
REASONS = ("", "rekindle:inc-1", "bob: bad fan", "Action:Replace", "Kill task failed")
COUNTED = {"drain": "drained", "reboot": "rebooted", "mark": "marked", "release": "started"}


@dataclass
class Rules:
    """An administrator's file, as the test knows it."""

    observes: bool = False
    allow: dict[str, tuple[str, ...]] = field(default_factory=dict)
    deny: dict[str, tuple[str, ...]] = field(default_factory=dict)
    caps: dict[str, tuple[int, int]] = field(default_factory=dict)

    def text(self) -> str:
        lines = ["mode = observe" if self.observes else "mode = act"]
        for name, section in (("allow", self.allow), ("deny", self.deny)):
            lines += [f"[{name}]", *(f"{kind} = {', '.join(words)}" for kind, words in section.items())]
        return "\n".join([*lines, "[caps]", *(f"{name} = {hour} {day}" for name, (hour, day) in self.caps.items())])

    def may(self, kind: str, word: str) -> bool:
        if word in self.deny.get(kind, ()):
            return False
        if kind == "verbs" and kind not in self.allow:
            return word not in ("drain", "resume", "mark", "reboot")
        return kind not in self.allow or word in self.allow[kind]


def drawn(rng: random.Random) -> Rules:
    def section(share: float) -> dict[str, tuple[str, ...]]:
        return {
            kind: tuple(rng.sample(words, rng.randint(0, len(words))))
            for kind, words in WORDS.items()
            if rng.random() < share
        }

    made = Rules(observes=rng.random() < 0.1, allow=section(0.15), deny={})
    made.deny = {kind: words[:1] for kind, words in section(0.12).items() if words}
    if rng.random() < 0.7:
        made.allow["verbs"] = tuple(rng.sample(tuple(Verb), rng.randint(8, len(Verb))))
    for name in COUNTED.values():
        if rng.random() < 0.5:
            made.caps[name] = (rng.randint(0, 3), rng.randint(0, 6))
    return made


class Play:
    def __init__(self, folder: Path, seed: int) -> None:
        self.rng, self.head, self.at = random.Random(seed), Head(folder), 0.0
        self.path = folder / "allow.conf"
        gate = Gate(
            runner=self.head.reads._runner,
            reads=self.head.reads,
            caps=Caps(folder / "caps.json", lambda: self.at),
            path=str(self.path),
        )
        self.gate = self.head.commands._gate = self.head.commands._copies._gate = gate
        self.dispatcher = OrderDispatcher(slurm=self.head.commands, specs=None, reread=None)  # type: ignore[arg-type]
        self.held: set[str] = set()
        self.done: dict[str, list[float]] = {name: [] for name in COUNTED.values()}
        self.ran = self.barred = 0
        self.rules = Rules()

    def others_act(self) -> None:
        """What users and administrators do."""
        rng, fake = self.rng, self.head.fake
        self.rules = drawn(rng) if rng.random() < 0.5 else self.rules
        self.path.write_text(self.rules.text())
        self.path.chmod(0o600)
        self.at += rng.choice((1.0, 60.0, 1800.0, 40_000.0))
        self.jobs = [
            {
                "JobID": str(number),
                "State": rng.choice(STATES),
                "Partition": rng.choice(WORDS["partitions"]),
                "Account": rng.choice(WORDS["accounts"]),
                "QOS": rng.choice(WORDS["qos"]),
                "UserName": rng.choice(WORDS["users"]),
                "Comment": rng.choice(("rekindle", "rekindle:bold", "norekindle", "grant=7 Account=ml QOS=low")),
                "AdminComment": rng.choice(("", "", "norekindle", "rekindle:bold")),
                "PriorityLong": rng.choice(("0", "4294901757")),
                "Dependency": rng.choice(("(null)", "afterok:7(unfulfilled)")),
            }
            for number in range(7, 11)
        ]
        self.why = {job["JobID"]: rng.choice(("JobHeldUser", "JobHeldAdmin", "Priority")) for job in self.jobs}
        fake.jobs(self.jobs)
        shown = [{"job_id": int(job), "state_reason": why} for job, why in self.why.items()]
        (fake.folder / "json").write_text(json.dumps({"jobs": shown}))
        self.nodes = {
            name: (rng.choice(("IDLE", "IDLE+DRAIN", "DOWN", "MIXED")), rng.choice(REASONS)) for name in WORDS["nodes"]
        }
        fake.nodes([node_line(name, state, reason) for name, (state, reason) in self.nodes.items()])
        for name in self.nodes:
            (fake.folder / f"on-{name}").write_text(rng.choice(("", "7#\n")))

    def inject(self) -> None:
        """An order as it may come, or a change as none would."""
        rng = self.rng
        job = rng.randint(7, 11)
        before = len(self.head.fake.calls())
        try:
            if rng.random() < 0.5:
                self.gate.make(self._change(job))
            else:
                order = self._order(job)
                order_try = OrderTry(
                    order=order,
                    begun_at=None,
                    tried_at=None,
                    now=self.head.now,
                    begin=lambda: self.head.commands.check(order),
                )
                self.dispatcher.carry_out(order_try)
        except (SlurmError, OrderNotReady, MailboxError):
            self.barred += 1
        for call in self.head.fake.calls()[before:]:
            self._judge(call)

    def _change(self, job: int) -> Change:
        rng = self.rng
        is_node = rng.random() < 0.4
        of_node = {ChangeKind.DRAIN, ChangeKind.RESUME, ChangeKind.MARK, ChangeKind.REBOOT}
        wire = {
            "kind": rng.choice([kind for kind in ChangeKind if (kind in of_node) is is_node]).value,
            "text": "rekindle:x",
        }
        about = (
            {"node": rng.choice(WORDS["nodes"]), "repair": rng.choice(list(Repair)).value} if is_node else {"job": job}
        )
        more = {"signal": "USR1", "low": 1, "high": 2, "for_job": rng.randint(7, 10), "nodes": ["node1"]}
        return Change.from_wire(wire | about | ({} if is_node else more))

    def _order(self, job: int) -> Order:
        rng = self.rng
        verb = rng.choice([verb for verb in Verb if verb is not Verb.SUBMIT])
        about = {
            "attempt": f"slurm.ml.{job}",
            "slurm_job": job,
            "new_attempt": f"slurm.ml.{job}.r1",
            "signal": rng.choice(list(Signal)),
            "nodes_min": 1,
            "nodes_max": 2,
            "node": rng.choice(WORDS["nodes"]),
            "repair": rng.choice(list(Repair)),
        }
        now = self.head.now
        needed = {name: about[name] for name in NEEDED[verb]}
        return Order(token="t", verb=verb, cluster="ml", issued_at=now, expires_at=now + timedelta(hours=1), **needed)  # type: ignore[arg-type]

    # ---- the judge, which knows nothing of the gate

    def _judge(self, call: list[str]) -> None:
        self.ran += 1
        assert not self.rules.observes, call
        named = next((word for word in call if word.startswith("nodename=")), "")
        if named or "reboot" in call:
            self._judge_node(call, named.removeprefix("nodename=") or call[-1])
        else:
            self._judge_job(call)

    def _judge_node(self, call: list[str], name: str) -> None:
        rules, (state, reason) = self.rules, self.nodes[name]
        words = " ".join(call)
        verb = next(verb for verb, mark in VERBS_OF_NODES.items() if mark in words)
        assert rules.may("nodes", name), call
        assert rules.may("verbs", verb), call
        if verb == "resume":
            assert reason.startswith("rekindle:"), call
        else:
            assert not (reason.startswith("bob") and state != "MIXED" and state != "IDLE"), (call, state, reason)
        if verb == "mark":
            assert reason.startswith("rekindle:"), call
            assert not (self.head.fake.folder / f"on-{name}").read_text(), call
        self._counts(verb)

    def _judge_job(self, call: list[str]) -> None:
        number = next(word for word in (word.removeprefix("jobid=") for word in call) if word.isdigit())
        job = next(job for job in self.jobs if job["JobID"] == number)
        is_out = "norekindle" in (job["Comment"], job["AdminComment"])
        is_given_back = "release" in call and number in self.held
        if is_given_back:
            self.held.discard(number) if self.why[number] != "JobHeldAdmin" else None
        else:
            policy = next(
                (
                    word[9:] or "default"
                    for word in (job["Comment"], job["AdminComment"])
                    if word.startswith("rekindle")
                ),
                "default",
            )
            about = {"partitions": job["Partition"], "accounts": job["Account"], "qos": job["QOS"]}
            for kind, word in (about | {"users": job["UserName"], "policies": policy}).items():
                assert self.rules.may(kind, word), (call, kind, word)
            assert not is_out or "release" in call, call
            assert any(self.rules.may("verbs", verb) for verb in self._verbs(call, job)), call
        if "release" in call:
            is_held = job["State"] == "PENDING" and job["PriorityLong"] == "0"
            assert not (is_held and self.why[number] == "JobHeldAdmin"), call
            if not is_given_back:
                self._counts("release")
        if "uhold" in call or "requeuehold" in call:
            self.held.add(number)

    def _verbs(self, call: list[str], job: dict[str, str]) -> tuple[str, ...]:
        words = " ".join(call)
        if "requeuehold" in call:
            return ("requeue",) if job["State"] in ("FAILED", "COMPLETED") else ("hold",)
        return next(verbs for mark, verbs in VERBS_OF_JOBS.items() if mark in words)

    def _counts(self, verb: str) -> None:
        if (name := COUNTED.get(verb)) is None:
            return
        hour, day = self.rules.caps.get(name, (5, 20))
        self.done[name].append(self.at)
        for cap, span in ((hour, 3600.0), (day, 86_400.0)):
            if name in self.rules.caps:
                assert sum(at > self.at - span for at in self.done[name]) <= cap, (verb, self.at)


VERBS_OF_NODES = {"drain": "state=drain", "resume": "state=resume", "mark": "state=fail", "reboot": "reboot"}
VERBS_OF_JOBS: dict[str, tuple[str, ...]] = {
    "--signal": ("signal",),
    "--state=PENDING": ("cancel", "submit"),
    "scancel": ("cancel",),
    "uhold": ("hold",),
    "release": ("requeue", "submit"),
    "admincomment": ("cancel", "hold", "requeue", "submit"),
    "starttime": ("requeue",),
    "excnodelist": ("exclude", "requeue"),
    "numnodes": ("shrink", "requeue"),
    "dependency": ("requeue", "submit"),
}


@pytest.mark.parametrize(
    ("seed", "times"), [(1, 60), *(pytest.param(seed, 400, marks=pytest.mark.long) for seed in range(2, 7))]
)
def test_nothing_that_the_file_forbids_is_run(tmp_path: Path, seed: int, times: int) -> None:
    play = Play(tmp_path, seed)
    for _ in range(times):
        play.others_act()
        play.inject()
    assert play.ran > times / 20, "the judge has judged something"
    assert play.barred > times / 4
