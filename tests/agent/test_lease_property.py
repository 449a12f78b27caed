"""Two and three agents on one lease, in a world whose network loses, delays and answers late, and whose clocks differ.

The store is a model of S3's conditional writes, which test_lease tries on moto's over HTTP: one object per key, an ETag
for each content, dates of whole seconds by a clock of its own. Time is ours.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import hypothesis.strategies as st
from botocore.exceptions import ClientError, ReadTimeoutError
from hypothesis import example, given, settings

from rekindle.slurm_agent.base.ports import NotHolder
from rekindle.slurm_agent.leases.lease import Lease, LeaseState
from rekindle.slurm_agent.leases.store import AgentIdentity
from tests.agent.ctld import START
from tests.sizes import examples

TERM_S = 60.0
LATE = ReadTimeoutError(endpoint_url="https://s3")


def refusal(code: str, status: int) -> ClientError:
    answer: Any = {"Error": {"Code": code, "Message": code}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return ClientError(answer, "PutObject")


@dataclass
class Model:
    """S3, in the world's own time."""

    at: float = 0.0
    objects: dict[str, tuple[bytes, float]] = field(default_factory=dict)
    under_way: list[tuple[float, Callable[[], None]]] = field(default_factory=list)

    def date(self, at: float) -> datetime:
        return (START + timedelta(seconds=at)).replace(microsecond=0)

    def forward(self, seconds: float) -> None:
        end = self.at + seconds
        for at, land in sorted((one for one in self.under_way if one[0] <= end), key=lambda one: one[0]):
            self.at = max(self.at, at)
            land()
        self.under_way = [one for one in self.under_way if one[0] > end]
        self.at = end

    def tag(self, key: str) -> str | None:
        return hashlib.md5(self.objects[key][0]).hexdigest() if key in self.objects else None  # noqa: S324

    def put(self, key: str, body: bytes, condition: dict[str, str]) -> str:
        there = self.tag(key)
        if "IfNoneMatch" in condition and there is not None:
            raise refusal("PreconditionFailed", 412)
        if "IfMatch" in condition and there != condition["IfMatch"]:
            raise refusal("PreconditionFailed", 412) if there is not None else refusal("NoSuchKey", 404)
        self.objects[key] = (body, self.at)
        return str(self.tag(key))


@dataclass
class Road:
    """One agent's way to the store. `fate`: of its writes; "cut" loses everything."""

    model: Model
    fate: str = "well"

    def put_object(self, *, Bucket: str, Key: str, Body: bytes, **more: Any) -> Any:
        condition = {name: more[name] for name in ("IfMatch", "IfNoneMatch") if name in more}
        if self.fate == "cut":
            raise LATE
        if self.fate == "late":  # it arrives when nobody waits for it any more

            def land() -> None:
                try:
                    self.model.put(Key, Body, condition)
                except ClientError:
                    return

            self.model.under_way.append((self.model.at + 20, land))
            raise LATE
        tag = self.model.put(Key, Body, condition)
        if self.fate == "unanswered":
            raise LATE
        return {"ETag": tag}

    def get_object(self, *, Bucket: str, Key: str) -> Any:
        if self.fate == "cut":
            raise LATE
        if Key not in self.model.objects:
            raise refusal("NoSuchKey", 404)
        body, at = self.model.objects[Key]
        return {
            "Body": io.BytesIO(body),
            "ETag": self.model.tag(Key),
            "LastModified": self.model.date(at),
            "ResponseMetadata": {"HTTPHeaders": {"date": self.date()}},
        }

    def list_objects_v2(self, *, Bucket: str, Prefix: str) -> Any:
        if self.fate == "cut":
            raise LATE
        found = [
            {"Key": key, "Size": len(body), "LastModified": self.model.date(at)}
            for key, (body, at) in self.model.objects.items()
            if key.startswith(Prefix)
        ]
        return {"Contents": found, "ResponseMetadata": {"HTTPHeaders": {"date": self.date()}}}

    def date(self) -> str:
        return self.model.date(self.model.at).strftime("%a, %d %b %Y %H:%M:%S GMT")


@dataclass
class Agent:
    """`skew_s` and `drift` are its clock's; `slept_s` is what its other clock missed."""

    name: str
    model: Model
    skew_s: float
    drift: float
    slept_s: float = 0.0
    is_stuck: bool = False  # its loop has no turns, as in a process that is starved
    due_at: float = 0.0
    boots: int = 0
    knows: set[str] = field(default_factory=set)
    road: Road = field(init=False)
    lease: Lease = field(init=False)

    def __post_init__(self) -> None:
        self.road = Road(self.model)
        self.restart()

    def restart(self) -> None:
        """On another boot: what the same boot may do needs the lock of the state directory."""
        self.boots += 1
        who = AgentIdentity(cluster="lab", agent_id=self.name, host=self.name, boot=f"{self.name}-{self.boots}")
        self.lease = Lease(who=who, s3=self.road, bucket="b", clock=self, term_s=TERM_S)
        self.knows = set()

    def now(self) -> datetime:
        return START + timedelta(seconds=self.skew_s + self.model.at * self.drift)

    def monotonic(self) -> float:
        return self.model.at * self.drift - self.slept_s

    def wall(self) -> datetime:
        return self.now()

    def is_sure(self) -> bool:
        return True

    def run_once(self) -> None:
        was = self.lease.standing
        self.due_at = self.model.at + self.lease.run_once()
        if was is LeaseState.STANDBY and self.lease.standing is LeaseState.HELD and self.lease.previous is not None:
            self.knows = {order.token for order in self.lease.previous.begun}  # `takeover.settle`
        if self.lease.standing is LeaseState.LOST:
            self.restart()


@dataclass
class World:
    agents: list[Agent]
    model: Model
    run: dict[str, list[str]] = field(default_factory=dict)  # token -> who has run it anew
    unwritten: set[str] = field(default_factory=set)
    takeovers: int = 0

    def acting(self) -> list[str]:
        return [agent.name for agent in self.agents if agent.lease.left_s() > 0]

    def obey(self, agent: Agent, token: str) -> None:
        """An order is delivered: begun, and run by whoever does not know that it was."""
        if token in agent.knows or agent.lease.left_s() <= 0:
            return
        alone = agent.lease._is_alone
        try:
            agent.lease.begin(token, agent.now())
        except NotHolder:
            return
        doc = agent.lease.doc
        assert doc is not None
        if token not in {order.token for order in doc.begun}:
            assert alone  # S3 is away, and no other is known
            self.unwritten.add(token)
        agent.knows.add(token)
        self.run.setdefault(token, []).append(agent.name)


FATES = ("well", "well", "cut", "late", "unanswered")
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("pass"), st.just(0), st.sampled_from((1, 4, 16, 40, 64, 130, 200))),
        st.tuples(st.just("fate"), st.integers(0, 2), st.sampled_from(FATES)),
        st.tuples(st.just("order"), st.integers(0, 2), st.integers(0, 5)),
        st.tuples(st.sampled_from(("crash", "leave", "stick", "go on")), st.integers(0, 2), st.just(0)),
        st.tuples(st.just("sleep"), st.integers(0, 2), st.sampled_from((5, 70))),
    ),
    min_size=10,
    max_size=60,
)
SKEWS = st.tuples(*[st.sampled_from((-90_000.0, -40.0, 0.0, 3.0, 90_000.0))] * 3)
DRIFTS = st.tuples(*[st.sampled_from((0.99, 1.0, 1.01))] * 3)


@settings(max_examples=examples(300), deadline=None)
@given(steps=STEPS, skews=SKEWS, drifts=DRIFTS, number=st.integers(2, 3))
@example(  # it was alone, hears of another, and no answer to its shorter term
    steps=[
        ("pass", 0, 1),
        ("fate", 0, "unanswered"),
        ("pass", 0, 64),
        ("fate", 0, "cut"),
        ("order", 0, 1),
        ("pass", 0, 130),
        ("order", 1, 1),
    ],
    skews=(0.0, 0.0, 0.0),
    drifts=(1.0, 1.0, 1.0),
    number=2,
)
@example(  # its machine is suspended, and one of its clocks with it
    steps=[("pass", 0, 200), ("stick", 0, 0), ("sleep", 0, 70), ("order", 0, 1), ("order", 1, 1)],
    skews=(0.0, 0.0, 0.0),
    drifts=(0.99, 1.0, 1.0),
    number=2,
)
def test_never_two_act_and_nothing_is_run_twice(
    steps: list[tuple[str, int, Any]],
    skews: tuple[float, ...],
    drifts: tuple[float, ...],
    number: int,
) -> None:
    """The bound that ADR 0113 states: at no moment may two agents begin anything."""
    model = Model()
    agents = [Agent(f"ctl{n}", model, skews[n], drifts[n]) for n in range(number)]
    world = World(agents, model)
    for step, who, what in steps:
        agent = agents[who % number]
        match step:
            case "pass":
                _pass(world, what)
            case "fate":
                agent.road.fate = what
            case "order":
                world.obey(agent, f"order-{what}")
            case "crash":
                agent.restart()
            case "leave":
                agent.lease.give_back()
                agent.restart()
            case "stick" | "go on":
                agent.is_stuck = step == "stick"
            case "sleep":
                agent.is_stuck, was_stuck = True, agent.is_stuck
                agent.slept_s += what
                _pass(world, what)
                agent.is_stuck = was_stuck
    for token, by in world.run.items():
        assert len(by) == 1 or token in world.unwritten, (token, by)


def _pass(world: World, seconds: int) -> None:
    """Second by second: whose turn it is has it, and then it is looked who may act."""
    for _ in range(seconds):
        world.model.forward(1.0)
        for agent in world.agents:
            if world.model.at >= agent.due_at and not agent.is_stuck:
                agent.run_once()
            assert len(world.acting()) <= 1, world.acting()


def test_with_their_loops_running_one_always_acts_again() -> None:
    """It is not safe by standing still: after each loss another acts within the term and what is looked for."""
    model = Model()
    agents = [Agent(f"ctl{n}", model, 0.0, 1.0) for n in range(3)]
    world = World(agents, model)
    for round_ in range(30):
        holder = next((agent for agent in agents if agent.lease.left_s() > 0), None)
        if round_ % 3 == 2 and holder is not None:
            holder.road.fate = "cut"
        silent_s = 0
        for _ in range(300):
            model.forward(1.0)
            if int(model.at) % 5 == 0:
                for one in agents:
                    one.run_once()
            silent_s = 0 if world.acting() else silent_s + 1
            assert silent_s <= TERM_S + 10
            assert len(world.acting()) <= 1
        for one in agents:
            one.road.fate = "well"
    assert max(agent.lease.doc.epoch for agent in agents if agent.lease.doc) > 5
