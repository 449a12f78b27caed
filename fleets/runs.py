"""One run under one policy: a history of failures in, what it cost out. Pure; no step is played one by one.

The run saves at fixed steps of its own (every `interval_s` productive seconds, counted from its beginning), as trainers
do; so more failures leave it further behind and never ahead, where nothing is saved in an emergency.
Where nothing runs nothing fails: of the failures that fall into a recovery only those of a node count, which the new
start finds.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from chalicelib.domain.model.hardware_ledger import SUSPECT_FAULTS, SUSPECT_WINDOW
from chalicelib.domain.model.known import Known
from chalicelib.domain.model.node_findings import Rung
from chalicelib.domain.model.repair import HISTORY
from chalicelib.domain.policy.document import DEFAULT_POLICY
from chalicelib.domain.reporting.sums import ettr
from fleets.answers import Answer, Case, Rules
from fleets.causes import Cause, Remedy, Symptom
from fleets.figures import HUMAN, NODE_BY_PERSON, REBOOT_LIMIT, Setting

DAY_S: Final = 86_400.0
MAX_TRIES: Final = 2000  # of one failure: a rule that never ends must not hold up the play
FRUITLESS: Final = DEFAULT_POLICY.budgets.max_no_progress  # further restarts that gain nothing are counted as unsafe


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Failure:
    """One failure, `at_s` from the run's beginning, of node number `node`. `lasts`: that node fails again and again
    until it is replaced.
    """

    at_s: float
    cause: Cause = field(compare=False)
    node: int = 0
    lasts: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What one run came to. `lost_s` of each Incident; `saving_s` that saves stopped the run for; `trained_s` that
    count. `by_itself`: Incidents that ended, the run past its old step, without a person.
    """

    wall_s: float
    gpus: int
    spare_gpus: int
    trained_s: float
    saving_s: float
    lost_s: tuple[float, ...]
    recovery_s: tuple[float, ...]
    by_itself: int
    pages: int
    unsafe: int

    @property
    def incidents(self) -> int:
        return len(self.lost_s)

    @property
    def ettr(self) -> float:
        """The ledger's ETTR, with the time that saves take as one more loss."""
        share = ettr(Known(self.wall_s), [*(Known(seconds) for seconds in self.lost_s), Known(self.saving_s)])
        assert isinstance(share, Known)  # noqa: S101  the wall time is above zero and every loss is known
        return share.value

    @property
    def gpu_hours_lost(self) -> float:
        """Of the run, and of the spares for as long as it ran."""
        return ((sum(self.lost_s) + self.saving_s) * self.gpus + self.wall_s * self.spare_gpus) / 3600.0


def play(failures: Sequence[Failure], rules: Rules, setting: Setting, *, wall_s: float) -> Outcome:
    """Play `failures`, in their order, for `wall_s` seconds."""
    return _Run(rules, setting, wall_s).through(failures)


class _Run:
    def __init__(self, rules: Rules, setting: Setting, wall_s: float) -> None:
        self.rules, self.setting, self.wall_s = rules, setting, wall_s
        share = rules.save_share
        self.interval_s = setting.interval_s
        self.save_s = setting.save_s if share is None else setting.interval_s * share / (1.0 - share)
        self.now = 0.0
        self.trained = 0.0  # productive seconds that the run is at
        self.saved = 0.0  # of the newest checkpoint
        self.saving: float | None = None  # seconds into a save; None: it trains
        self.stalled = 0.0  # by saves, in all
        self.spares = rules.spares
        self.away: list[float] = []  # when nodes come back from repair
        self.replaced: set[int] = set()
        self.rebooted: dict[int, list[float]] = {}  # when each node was
        self.repairs: list[float] = []  # when ours were ordered
        self.lost: list[float] = []
        self.recovery: list[float] = []
        self.by_itself = self.pages = self.unsafe = 0

    def through(self, failures: Sequence[Failure]) -> Outcome:
        for failure in failures:
            if max(failure.at_s, self.now) >= self.wall_s:
                break
            if failure.lasts and failure.node in self.replaced:
                continue  # it no longer stands there
            if failure.at_s < self.now and self._joins(failure):
                continue
            self._train(max(0.0, failure.at_s - self.now))
            self._recover(failure)
        self._train(max(0.0, self.wall_s - self.now))
        return Outcome(
            wall_s=self.wall_s,
            gpus=self.setting.gpus,
            spare_gpus=self.rules.spares * self.setting.gpus_per_node,
            trained_s=self.trained,
            saving_s=self.stalled,
            lost_s=tuple(self.lost),
            recovery_s=tuple(self.recovery),
            by_itself=self.by_itself,
            pages=self.pages,
            unsafe=self.unsafe,
        )

    # --- training and saving ---

    def _train(self, seconds: float) -> None:
        """Let the run train for `seconds` of wall time, saves included."""
        self.now += seconds
        left = seconds
        while left > 0:
            if self.saving is not None:
                took = min(left, self.save_s - self.saving)
                self.saving += took
                self.stalled += took
                left -= took
                if self.saving < self.save_s:
                    return
                self.saving, self.saved = None, self.trained
            gap = self._to_next_save()
            if left < gap:
                self.trained += left
                return
            left -= gap
            self.trained += gap
            whole = int(left // (self.interval_s + self.save_s))
            if whole:
                self.trained += whole * self.interval_s
                self.saved = self.trained - self.interval_s
                self.stalled += whole * self.save_s
                left -= whole * (self.interval_s + self.save_s)
            self.saving = 0.0
            if not self.save_s:
                self.saving, self.saved = None, self.trained

    def _to_next_save(self) -> float:
        done = int(self.trained / self.interval_s + 1e-9)
        return (done + 1) * self.interval_s - self.trained

    # --- one failure ---

    def _joins(self, failure: Failure) -> bool:
        """One that falls into the recovery under way. False: its rules know nothing of the node, and start on it."""
        ended = self.now
        if failure.cause.is_of_a_node:
            answer = self.rules.answer(Case(cause=failure.cause, setting=self.setting))
            if not answer.excludes:
                return False
            self._node(failure, answer, since=failure.at_s)
        self.now = min(self.now, self.wall_s)
        self.lost[-1] += self.now - ended
        self.recovery[-1] += self.now - ended
        return True

    def _recover(self, failure: Failure) -> None:
        struck, reached, good = self.now, self.trained, self.saved
        cause, stalled = failure.cause, self.stalled
        repaired = self._is_rebooted_enough(failure.node)
        by_person = False
        resume = good
        for tries in range(MAX_TRIES):
            case = Case(cause=cause, setting=self.setting, tries=tries, since_s=self.now - struck, repaired=repaired)
            answer = self.rules.answer(case)
            if tries == 0:
                self._goes_on(cause, answer)
            else:
                self.now += answer.detect_s
            self.now += answer.down_s
            by_person |= answer.by_person
            self.pages += answer.pages + answer.by_person
            self.unsafe += answer.unsafe + answer.over_evicts + (tries > FRUITLESS)
            resume, is_poisoned = self._resumes(cause, answer, reached=reached, good=good)
            self.unsafe += is_poisoned
            fails_again = is_poisoned or (cause.is_of_a_node and not answer.excludes)
            if not fails_again or self.now >= self.wall_s:
                self._node(failure, answer, since=self.now - self.setting.restart_s)
                break
        self.now = min(self.now, self.wall_s)
        self.trained = self.saved = resume
        self.saving = None
        self.lost.append((self.now - struck) - (resume - reached) - (self.stalled - stalled))
        pace = 1.0 + self.save_s / self.interval_s
        self.recovery.append(self.now - struck + max(0.0, reached - resume) * pace)
        self.by_itself += not by_person

    def _is_rebooted_enough(self, node: int) -> bool:
        """Whether the node was rebooted in the last days, or counts as suspect hardware: it is replaced."""
        past = [self.now - at for at in self.rebooted.get(node, ())]
        if any(age < HISTORY.total_seconds() for age in past):
            return True
        return 1 + sum(age < SUSPECT_WINDOW.total_seconds() for age in past) >= SUSPECT_FAULTS

    def _goes_on(self, cause: Cause, answer: Answer) -> None:
        """What the run still does until the failure is known."""
        if cause.shows is Symptom.NON_FINITE:
            self._train(answer.detect_s)
        else:
            self.now += answer.detect_s

    def _resumes(self, cause: Cause, answer: Answer, *, reached: float, good: float) -> tuple[float, bool]:
        """Where the new attempt resumes, and whether that checkpoint is poisoned."""
        if cause.shows is Symptom.NON_FINITE:
            is_poisoned = self.saved > good and not answer.goes_back
            return (reached if answer.keeps_all and answer.goes_back else good), is_poisoned
        if answer.keeps_all:
            return max(reached, self.trained), False
        return max(good, self.saved), False

    def _node(self, failure: Failure, answer: Answer, *, since: float) -> None:
        """Take the broken node out, its repair beginning at `since`, and wait for one in its place."""
        if not (failure.cause.is_of_a_node and answer.excludes):
            return
        back_at = since + self._repair_s(failure, answer)
        for _ in range(answer.over_evicts):
            heapq.heappush(self.away, self.now + self.setting.reboot_s)
        heapq.heappush(self.away, back_at)
        for _ in range(1 + answer.over_evicts):
            self._take_one()

    def _take_one(self) -> None:
        """One node for the run: a spare that stands by, else the next that comes back."""
        ready = self.now - self.setting.restart_s  # when the start began
        while self.away and self.away[0] <= ready:
            heapq.heappop(self.away)
            self.spares += 1
        if self.spares > 0:
            self.spares -= 1
        elif self.away:
            self.now = max(self.now, heapq.heappop(self.away) + self.setting.restart_s)

    def _repair_s(self, failure: Failure, answer: Answer) -> float:
        """How long the node is away, from the new start on."""
        if answer.by_person or answer.rung is None:
            self.replaced.add(failure.node)
            return NODE_BY_PERSON.value if answer.by_person else HUMAN.value + NODE_BY_PERSON.value
        late = 0.0 if answer.by_platform else self._late()
        if answer.rung is Rung.REPLACE:
            self.replaced.add(failure.node)
            return late + self.setting.replace_s
        self.rebooted.setdefault(failure.node, []).append(self.now)
        if failure.cause.cure is Remedy.REPLACE and failure.cause.is_named:
            self.replaced.add(failure.node)
            return late + REBOOT_LIMIT.value + self.setting.replace_s  # it does not come back
        return late + self.setting.reboot_s

    def _late(self) -> float:
        """What a repair waits where the day's budget is spent: a person is called."""
        bound = self.rules.repairs_per_day
        self.repairs = [at for at in self.repairs if self.now - at < DAY_S]
        is_over = bound is not None and len(self.repairs) >= bound
        self.repairs.append(self.now)
        self.pages += is_over
        return HUMAN.value if is_over else 0.0
