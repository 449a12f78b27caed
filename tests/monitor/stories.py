"""Random runs of several ranks, in threads of one process, with the faults of a network and of a process."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

from rekindle.monitor.base.run import Identity, Run
from rekindle.monitor.saving.agreement import Agreement
from rekindle.monitor.saving.agreement_terms import Bounds, Plan, RankRequest
from rekindle.monitor.saving.leading import Hooks, Leader
from rekindle.monitor.saving.negotiation import Negotiation
from tests.monitor.boxes import PATIENCE_S
from tests.monitor.exchanges import MemoryExchange, Shared


class Fault(StrEnum):
    """What befalls one rank, at one operation of its exchange or at one step."""

    NONE = "none"
    ONCE_BEFORE = "an operation fails"
    ONCE_AFTER = "an operation is carried out, and its answer is lost"
    BROKEN = "every operation fails from one on"
    SILENT = "an operation never returns"
    DIES = "the process ends without a word"
    FREEZES = "the training thread does not move for longer than the others wait"
    DIES_SAVING = "the process ends without a word in its part of a save"
    FAILS_TO_SAVE = "its part of each save fails"
    FINISHES = "it comes to the end of its loop before the others"

    @property
    def passes(self) -> bool:
        """Whether the ranks can agree again afterwards."""
        return self in (Fault.NONE, Fault.ONCE_BEFORE, Fault.ONCE_AFTER, Fault.FREEZES)

    @property
    def cuts_off(self) -> bool:
        """Whether this rank may miss a save of the others: it is dead, or its exchange breaks."""
        return self in (
            Fault.ONCE_BEFORE, Fault.ONCE_AFTER, Fault.BROKEN, Fault.SILENT, Fault.DIES, Fault.DIES_SAVING,
        )  # fmt: skip


QUICK = Bounds(
    answer_s=5.0,
    meet_s=0.4,
    meet_at_most_s=0.4,
    hold_s=2.0,
    enter_s=0.3,
    stuck_s=0.2,
    pulse_s=0.02,
    lifeless_s=1.0,
    must_join_s=0.5,
    must_ack_s=0.3,
    unheard_s=0.3,
    silent_s=20.0,
    lost_s=0.05,
    lost_at_most_s=0.1,
    reopen_s=0.01,
    reopen_at_most_s=0.05,
)
IMPATIENT = Bounds(
    **({name: getattr(QUICK, name) for name in QUICK.__dataclass_fields__} | {"answer_s": 0.5, "silent_s": 0.5})
)


APART = 4


class NoConnection(OSError):
    pass


@dataclass
class Story:
    """One run. `play` returns what went wrong; empty where every guarantee was kept."""

    seed: int
    make_exchange: Callable[..., MemoryExchange] = MemoryExchange
    faults: tuple[Fault, ...] = tuple(Fault)
    asks_again: bool = False  # once the fault is over, every rank's wish is met by all
    patience_s: float = PATIENCE_S
    lock: threading.Lock = field(default_factory=threading.Lock)
    calls: dict[int, int] = field(default_factory=dict)  # of the ranks that still step
    entered: dict[int, dict[int, int]] = field(default_factory=dict)  # plan → rank → call
    stopped: dict[int, int] = field(default_factory=dict)  # rank → call
    ended: threading.Event = field(default_factory=threading.Event)
    has_agreed_again: threading.Event = field(default_factory=threading.Event)
    completed: list[tuple[int, str | None]] = field(default_factory=list)

    def __post_init__(self) -> None:
        chance = self.chance = random.Random(self.seed)
        self.world = chance.randint(2, 4)
        self.fault = chance.choice(self.faults)
        self.victim = chance.randrange(self.world)
        self.at = chance.randint(1, 80)
        self.pace_s = chance.choice((0.0005, 0.002, 0.004))
        self.claimed_step_s = chance.choice((None, 0.001, 0.004, 0.02))
        self.steps = chance.randint(60, 250)
        self.wishes = [
            (
                chance.randrange(self.world),
                chance.randint(1, self.steps // 2),
                chance.choice((RankRequest.SAVE, RankRequest.SAVE, RankRequest.SAVE_AND_STOP, RankRequest.STOP)),
            )
            for _ in range(chance.randint(1, 4))
        ]
        self.shared = Shared()
        if self.asks_again:
            self.wishes = [(rank, at, RankRequest.SAVE) for rank, at, _ in self.wishes]

    @property
    def title(self) -> str:
        return f"seed {self.seed}: {self.world} ranks, rank {self.victim}: {self.fault} at {self.at}"

    def play(self) -> list[str]:
        ranks = [Rank(self, rank) for rank in range(self.world)]
        self.calls = dict.fromkeys(range(self.world), 0)
        threads = [threading.Thread(target=rank.train, daemon=True) for rank in ranks]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(self.patience_s)
        wrong = [f"rank {ranks[i].rank} hangs" for i, thread in enumerate(threads) if thread.is_alive()]
        self.ended.set()  # whatever still waits comes out of it
        for rank in ranks:
            rank.worker.stop()
        for thread in threads:
            thread.join(PATIENCE_S)
        return [f"{self.title}: {what}" for what in wrong + self._judge(ranks)]

    def _judge(self, ranks: list[Rank]) -> list[str]:
        wrong: list[str] = []
        everyone = set(range(self.world))
        for number, calls in self.entered.items():
            missing = everyone - set(calls)
            if len(set(calls.values())) > 1:
                wrong.append(f"plan {number} was kept at different calls: {calls}")
            if missing and not (self.fault.cuts_off and missing == {self.victim}):
                wrong.append(f"plan {number}: ranks {missing} did not save, the others did")
        over = [number for number, _ in self.completed]
        if len(over) != len(set(over)):
            wrong.append(f"a plan was completed twice: {over}")
        if self.fault is Fault.NONE and self.stopped and len(set(self.stopped.values())) > 1:
            wrong.append(f"the ranks stopped at different calls: {self.stopped}")
        is_over = any(rank.abandoned for rank in ranks)
        if self.asks_again and not self.has_agreed_again.is_set() and not is_over:
            wrong.append("the ranks never agreed again")
        if self.fault is Fault.NONE and any(rank.abandoned for rank in ranks):
            wrong.append("a save without a fault was abandoned")
        return wrong


class Rank:
    def __init__(self, story: Story, rank: int) -> None:
        self.story, self.rank = story, rank
        self.wish = RankRequest.NOTHING
        self.should_stop = False
        self.abandoned: list[str] = []
        self.is_waiting = False
        self.is_dead = False
        self.operations = 0
        self.is_victim = rank == story.victim
        bounds = IMPATIENT if self.is_victim and story.fault in (Fault.SILENT, Fault.DIES) else QUICK
        run = Run(identity=Identity(job_id="job", attempt="run-1", attempt_number=1, rank=rank, world_size=story.world))
        self.agreement = Agreement(run, wish=lambda: self.wish, take=self._take, bounds=bounds)
        leader = Leader(
            run,
            agreement=self.agreement,
            hooks=Hooks(
                objection=lambda: "",
                refused=lambda why: None,
                completed=lambda plan, why, _told: story.completed.append((plan.number, why)),
                resumed_apart=lambda why: None,
            ),
            step_s=lambda: story.claimed_step_s,
        )
        self.negotiation = Negotiation(
            run,
            agreement=self.agreement,
            open_exchange=self._open,
            resume_step=None,
            leader=leader if rank == 0 else None,
            judging_rank=None,
            abandoned=self.abandoned.append,
            is_waiting=lambda: self.is_waiting,
        )
        self.trouble = run.trouble
        self.worker = self.negotiation.worker

    def _take(self, wish: RankRequest) -> None:
        self.should_stop = self.should_stop or wish.stops
        if wish >= self.wish or not self.wish.stops:
            self.wish = RankRequest.NOTHING

    # ---- the exchange and its faults ---------------------------------------------------------------------------

    def _open(self) -> MemoryExchange:
        if self.is_victim and self.story.fault is Fault.BROKEN and self.operations >= self.story.at:
            raise NoConnection("refused")
        return self.story.make_exchange(self.story.shared, self._before, self._after)

    def _before(self, operation: str, key: str) -> None:
        if self.is_dead:
            self.story.ended.wait()
            raise NoConnection("the story is over")
        if not self.is_victim or self.story.fault is Fault.ONCE_AFTER:
            return
        self.operations += 1
        fault, is_there = self.story.fault, self.operations == self.story.at
        if (fault is Fault.ONCE_BEFORE and is_there) or (fault is Fault.BROKEN and self.operations >= self.story.at):
            raise NoConnection(f"{operation} {key}")
        if fault in (Fault.SILENT, Fault.DIES) and self.operations >= self.story.at:
            self.story.ended.wait()
            raise NoConnection("the story is over")

    def _after(self, operation: str, key: str) -> None:
        if self.is_victim and self.story.fault is Fault.ONCE_AFTER:
            self.operations += 1
            if self.operations == self.story.at:
                raise NoConnection(f"after {operation} {key}")

    # ---- the training thread -----------------------------------------------------------------------------------

    def train(self) -> None:
        try:
            self._train()
        finally:
            with self.story.lock:
                self.story.calls.pop(self.rank, None)

    def _keep_together(self, call: int) -> None:
        """As the collectives of training do: no rank is more than a few steps ahead of another."""
        story, pause = self.story, threading.Event()
        while not (self.abandoned or story.ended.is_set()):
            with story.lock:
                story.calls[self.rank] = call
                if call <= min(story.calls.values()) + APART:
                    return
            pause.wait(0.001)

    def _train(self) -> None:
        story, pause = self.story, threading.Event()
        self.worker.start()
        chance = random.Random(story.seed * 31 + self.rank)
        steps = story.steps
        if self.is_victim and story.fault is Fault.FINISHES:
            steps = min(steps, story.at)
        for call in range(1, steps + 1):
            if self.should_stop or self.abandoned or story.ended.is_set():
                break
            if self.is_victim and story.fault is Fault.DIES and self.operations >= story.at:
                return
            if self.is_victim and story.fault is Fault.FREEZES and call == story.at:
                pause.wait(0.6)
            pause.wait(story.pace_s * chance.random() * 2)
            self._keep_together(call)
            for rank, at, wish in story.wishes:
                if (rank, at) == (self.rank, call):
                    self.wish = max(self.wish, wish)
            plan = self.agreement.due()
            if plan is not None:
                self._act(plan, call)
            if self.is_dead:
                return
        if story.asks_again and not self.abandoned:
            self._ask_again(steps)
        self.negotiation.end()
        self.worker.stop()

    def _ask_again(self, call: int) -> None:
        """Step on until a save that was asked for after the fault was made by all."""
        story, pause = self.story, threading.Event()
        while not (story.has_agreed_again.is_set() or self.abandoned or story.ended.is_set()):
            call += 1
            pause.wait(0.01)
            self._keep_together(call)
            if story.fault is Fault.NONE or self.rank == 0:
                self.wish = max(self.wish, RankRequest.SAVE)
            plan = self.agreement.due()
            if plan is not None:
                self._act(plan, call)
                with story.lock:
                    if len(story.entered.get(plan.number, ())) == story.world:
                        story.has_agreed_again.set()

    def _act(self, plan: Plan, call: int) -> None:
        if plan.wish.stops and plan.is_shared:
            with self.story.lock:
                self.story.stopped[self.rank] = call
        if not plan.wish.saves or not plan.is_shared or self.agreement.meet(plan, call, "") is not None:
            return
        with self.story.lock:
            self.story.entered.setdefault(plan.number, {})[self.rank] = call
        if self.is_victim and self.story.fault is Fault.DIES_SAVING:
            self.is_dead = True
            return
        failure = self._save(plan)
        self.agreement.finished(str(plan.number), failure)
        if failure is not None:
            self.agreement.hold(plan)

    def _save(self, plan: Plan) -> str | None:
        """Collective, as a user's is: a rank that fails or does not come keeps the others waiting in it."""
        if self.is_victim and self.story.fault is Fault.FAILS_TO_SAVE:
            return "no space left on device"
        victim = self.story.victim if self.story.fault in (Fault.FAILS_TO_SAVE, Fault.DIES_SAVING) else None
        self.is_waiting, pause = True, threading.Event()
        try:
            while True:
                with self.story.lock:
                    there = set(self.story.entered[plan.number])
                if len(there - {victim}) == self.story.world:
                    return None
                if self.abandoned or self.story.ended.is_set():
                    return "connection closed by peer"
                pause.wait(0.002)
        finally:
            self.is_waiting = False
