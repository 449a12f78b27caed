"""Random walks through decide(): whatever is seen in whatever order, it answers, and its answer can be kept.

Each look of a walk is drawn anew, beside the point or not, and each Action of the last decision is answered somehow.
That finds what no table names: a phase change that TRANSITIONS does not hold, a field that does not survive the wire.
"""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest

from chalicelib.domain.decide import Decision
from chalicelib.domain.model.action import ActionResult, Done, Notify, action_name
from chalicelib.domain.model.incident import NODE_PHASES, Incident, Phase
from chalicelib.domain.model.known import Known, Maybe, Unknown
from chalicelib.domain.model.node import InstanceState, Load, Machines, NodeRecovery, NodesSeen
from chalicelib.domain.model.observation import AttemptStatus, AttemptView, JobRecord, Observation, ReplyView
from chalicelib.domain.model.repair import Allowed, NodeRepair
from chalicelib.domain.model.signal import Signal, SignalKind
from chalicelib.domain.policy.document import DEFAULT_POLICY, Policy
from chalicelib.domain.policy.playbooks import Response
from rekindle.protocol.cluster.documents import EndedBy, SlurmState
from rekindle.protocol.signals import FaultClass
from tests.domain.looks import NOW, checkpoint, decide, incident, seen, signal, view
from tests.domain.node_looks import NODE, OLD, facts, instance, node_view, observed, told
from tests.domain.policies import changed
from tests.domain.slurm_looks import NODES, R0, R1, case, node, node_signal, start
from tests.sizes import examples

Last = tuple[Observation, Decision] | None
LOOKS = 25
WAITS_S = (0, 3, 30, 61, 130, 400, 2000, 9000, 90000)
STEPS = (None, 0, 80, 99, 100, 101, 150)
SHOWN = sorted(spec.name for spec in dataclasses.fields(AttemptView) if spec.name not in ("name", "slurm"))
WORDS = ("", "startup", "training", "saving", "stalled", "finished")
RUN_PHASES = [phase for phase in Phase if not phase.is_terminal and phase not in NODE_PHASES]
NODE_WALKS = (Phase.OPEN, Phase.HOLDING, *sorted(NODE_PHASES))
NODE_STATES = (("idle",), ("allocated",), ("down", "not_responding"), ("idle", "drain"), ("idle", "fail"))


def policy_of(rng: random.Random) -> Policy:
    """One of the policies that a user could write."""
    rows = tuple(
        dataclasses.replace(row, response=rng.choice(list(Response))) if rng.random() < 0.3 else row
        for row in DEFAULT_POLICY.playbooks
    )
    return changed(
        playbooks=rows,
        shadow=rng.random() < 0.1,
        nodes={"repair": rng.choice(list(Allowed))},
        loss={"stop_without_resume_point": rng.random() < 0.5},
    )


def fields_of(rng: random.Random, now: datetime) -> dict[str, Any]:
    """What an attempt shows of itself."""
    heartbeat_at = rng.choice([None, now, now - timedelta(seconds=20), now - timedelta(minutes=10)])
    steps = (None, 90, 100, 140)
    return {
        "step": rng.choice(STEPS),
        "first_step": rng.choice([Unknown("no heartbeat"), Known(1), Known(91)]),
        "heartbeat_at": heartbeat_at,
        "is_heartbeat_unread": heartbeat_at is None and rng.random() < 0.3,
        "work": rng.choice(WORDS),
        "step_s": rng.choice([None, 1.0, 60.0]),
        "loss_state": rng.choice(["none", "finite", "nan", "inf"]),
        "loss_health": rng.choice(["unknown", "ok", "watch", "spiking", "diverging", "non_finite"]),
        "onset_step": rng.choice(steps),
        "healed_step": rng.choice(steps),
        "judged_step": rng.choice(steps),
        "stopping_since": rng.choice([None, now - timedelta(minutes=1)]),
    }


def view_of(rng: random.Random, case: Incident, now: datetime, before: AttemptView | None) -> AttemptView | Unknown:
    """Often the same as before, but for a field or two: what needs several looks in a row comes about so."""
    if rng.random() < 0.1:
        return Unknown("throttled")
    name = case.attempt or "lm"
    status = AttemptStatus.RUNNING if rng.random() < 0.6 else rng.choice(list(AttemptStatus))
    shown = fields_of(rng, now)
    if not name.startswith("slurm."):
        made = view(status, name=name, **shown)
    else:
        more: dict[str, Any] = {"has_mailbox": rng.random() < 0.8, "has_spec": rng.random() < 0.8}
        more |= {"is_requeueable": rng.random() < 0.8, "has_auto_resume": rng.choice([None, True, False])}
        more |= {"ended_by": rng.choice(list(EndedBy)), "requeued_by": rng.choice(list(EndedBy))}
        if rng.random() < 0.3:
            more |= {"state": rng.choice(list(SlurmState))}
        if rng.random() < 0.2 and status.has_ended:
            more |= {"successor": R1 if name == R0 else R0}
        made = start(status, name, **(shown | more))
    if before is None or before.name != name or rng.random() < 0.3:
        return made
    changed = rng.sample(SHOWN, rng.choice([0, 1, 2]))
    return dataclasses.replace(before, **{field: getattr(made, field) for field in changed})


def news_of(rng: random.Random, case: Incident, now: datetime) -> tuple[Signal, ...]:
    found = []
    for _ in range(rng.choice([0, 0, 1, 2])):
        fault = rng.choice([None, *FaultClass])
        at = now - timedelta(seconds=rng.choice(WAITS_S))
        kind = rng.choice(list(SignalKind))
        if case.attempt is not None and case.attempt.startswith("slurm.") and fault is not None and rng.random() < 0.5:
            found.append(node_signal(fault, rng.choice(NODES), case.attempt, kind=kind, at=at))
        else:
            said = {"step": 100, "who": "ann", "health_status": rng.choice(["Healthy", "Unhealthy"])}
            found.append(signal(fault, kind=kind, attempt=case.attempt, at=at, evidence=said))
    return tuple(found)


def look_at_run(rng: random.Random, case: Incident, now: datetime, last: Last) -> Observation:
    before = last[0].attempt if last is not None else None
    shown = view_of(rng, case, now, before.value if isinstance(before, Known) else None)
    ask = case.halt.ask
    reply: Any = Unknown("nothing asked")
    if ask is not None and ask.outcome is None and rng.random() < 0.5:
        outcome = rng.choice(["saved", "cannot", "failed", "late"])
        reply = Known(ReplyView(request_id=ask.request_id, outcome=outcome, step=100, why="because"))
    points: Any = Known(tuple(checkpoint(step, attempt=case.attempt or "lm") for step in rng.choice([(), (80, 90)])))
    if rng.random() < 0.1:
        points = Unknown("throttled")
    states = tuple(node(name, *rng.choice(NODE_STATES), seen_at=now) for name in NODES)
    shown_nodes = NodesSeen(facts=states, total=8, down=rng.choice([0, 5]))
    made = seen(
        shown,
        paused=rng.random() < 0.05,
        has_job=rng.random() < 0.97,
        reply=reply,
        checkpoints=points,
        new_signals=news_of(rng, case, now),
        results=answers_to(rng, last),
        record=JobRecord(
            best_before=rng.choice([Unknown("not needed yet"), Known(60), Known(100)]),
            fruitless_before=rng.choice([0, 0, 1, 5]),
        ),
        next_number=case.attempt_number + 1,
        sibling=rng.choice([Unknown("none that is known")] * 4 + [Known("lm-by-hand")]),
        nodes=rng.choice([Unknown("not needed"), Known(shown_nodes)]),
    )
    return dataclasses.replace(made, observed_at=now)


def look_at_node(rng: random.Random, case: Incident, now: datetime, last: Last) -> Observation:
    shown: Any = facts(*rng.choice(NODE_STATES), reason=rng.choice(["", "rekindle:inc-lm-1", "by ann"]), seen_at=now)
    shown = rng.choice([shown, shown, Known(None), Unknown("the agent is silent")])
    its: Any = instance(rng.choice(list(InstanceState)), rng.choice([OLD, OLD, "i-0bbbbbbbbbbbbbbb2"]))
    its = rng.choice([its, its, Known(None), Unknown("throttled")])
    signals = []
    for _ in range(rng.choice([0, 1])):
        kind, fault = rng.choice(list(SignalKind)), rng.choice([None, FaultClass.NODE_HARDWARE, FaultClass.NODE_LOST])
        said: dict[str, Any] = {
            "repair_action": rng.choice(["Reboot", "Replace"]),
            "health_status": "Healthy",
            "who": "ann",
        }
        one = told(kind, fault=fault, **said)
        signals.append(dataclasses.replace(one, occurred_at=now - timedelta(seconds=rng.choice(WAITS_S))))
    load = Load(ahead=rng.choice([0, 9]), last_day=rng.choice([0, 99]))
    loads: list[Maybe[Load]] = [Unknown("not needed yet"), Known(load)]
    what = node_view(
        shown,
        its,
        recovery=rng.choice(list(NodeRecovery)),
        machines=rng.choice(list(Machines)),
        load=rng.choice(loads),
        down=rng.choice([0, 5]),
    )
    answers = answers_to(rng, last)
    made: Observation = observed(what, *signals, results=answers, observed_at=now, paused=rng.random() < 0.05)
    return made


def answers_to(rng: random.Random, last: Last) -> tuple[ActionResult, ...]:
    actions = last[1].actions if last is not None else ()
    return tuple(
        ActionResult(action=action_name(action), done=rng.choice(list(Done)), detail="said so")
        for action in actions
        if rng.random() < 0.9
    )


Looks = Callable[[random.Random, Incident, datetime, Last], Observation]


def walk(rng: random.Random, case: Incident, looks: Looks) -> int:
    """How many looks it was open for."""
    policy, now = policy_of(rng), NOW
    case = dataclasses.replace(case, policy_document=policy.to_wire())
    last: Last = None
    for number in range(LOOKS):
        now += timedelta(seconds=rng.choice(WAITS_S))
        what = looks(rng, case, now, last)
        assert Observation.from_wire(json.loads(json.dumps(what.to_wire()))) == what
        decision = decide(case, what, now=now, policy=policy)
        assert decision.rule
        assert decision.reason
        assert decision == decide(case, what, now=now, policy=policy), "the same look decides the same"
        assert (decision.look_again_in is None) == (not decision.incident.is_open)
        if what.paused or policy.shadow:
            assert all(isinstance(action, Notify) for action in decision.actions), decision.rule
        case, last = decision.incident, (what, decision)
        assert Incident.from_wire(json.loads(json.dumps(case.to_wire()))) == case, decision.rule
        if not case.is_open:
            return number
    return LOOKS


def run_case(rng: random.Random) -> Incident:
    made = rng.choice([incident, case])
    return made(
        rng.choice(RUN_PHASES), rng.choice(list(FaultClass)), target_step=rng.choice([Unknown("none"), Known(100)])
    )


def node_case(rng: random.Random) -> Incident:
    fault = rng.choice([FaultClass.NODE_HARDWARE, FaultClass.NODE_LOST])
    made = incident(rng.choice(NODE_WALKS), fault, job_id=None, attempt=None, cluster="pretrain")
    return dataclasses.replace(made, node=NODE, repair=NodeRepair())


def walks(seeds: range) -> None:
    for seed in seeds:
        rng = random.Random(seed)
        walk(rng, run_case(rng), look_at_run)
        walk(rng, node_case(rng), look_at_node)


def test_a_few_walks() -> None:
    walks(range(150))


@pytest.mark.long
def test_many_walks() -> None:
    walks(range(1000, 1000 + examples(1500)))
