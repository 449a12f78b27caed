"""What the service could have known of a run, by what its sources can show at all."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

from chalicelib.domain.model.job import FAR_BELOW_STEPS
from rekindle.protocol.mailbox import RunPhase
from simulation.runs.course import CONFIRMED_AFTER
from simulation.runs.monitor import HEARTBEAT_S
from simulation.runs.training import STALL_LIMIT
from simulation.runs.truth import MISSES_NOTHING, ActiveTrouble, Attempt, Saved, TrueRun
from simulation.stories.source_faults import SourceFaults


def began_over(attempt: Attempt) -> int:
    """The attempts in a row before it that trained, and began no further on than the one before them."""
    trained = [
        other for other in attempt.run.attempts.values() if other is not attempt and other.trains_since is not None
    ]
    count = 0
    for before, now in zip(reversed(trained[:-1]), reversed(trained[1:]), strict=True):
        if now.first_step > before.first_step:
            break
        count += 1
    return count


def without_gain(attempt: Attempt) -> int:
    """The attempts in a row before it that left no good checkpoint beyond all earlier ones, by any starter."""
    best = count = 0
    for other in attempt.run.attempts.values():
        if other is attempt:
            break
        steps = [item.step for item in attempt.run.saved if item.attempt == other.name and item.is_good]
        count = 0 if max(steps, default=0) > best else count + 1
        best = max((best, *steps))
    return count


def was_shown(attempt: Attempt, source_faults: SourceFaults, now: datetime) -> bool:
    """One of its heartbeats could be read around its end, when it is weighed, or something that it has saved. It is
    weighed before the next one is ordered: what can be read of it only then is an earlier attempt's.
    """
    later = (
        other.ordered_at or other.job.created_at
        for other in attempt.run.attempts.values()
        if other.job.created_at > attempt.job.created_at
    )
    weighed_by = min((attempt.job.ended_at or now) + MISSES_NOTHING, *later, now + MISSES_NOTHING)
    seen_at = source_faults.seen_at(attempt.run.name, weighed_by)
    has_saved = any(item.attempt == attempt.name for item in attempt.run.saved)
    return has_saved or attempt.trains_since is None or (seen_at is not None and seen_at >= attempt.trains_since)


def fruitless_attempts(attempt: Attempt, source_faults: SourceFaults, now: datetime) -> tuple[int, int]:
    """(our consecutive attempts before this one that trained, ended and left no good checkpoint beyond all earlier
    ones; consecutive out-of-memory deaths).
    """
    run, fruitless, memory = attempt.run, 0, 0
    for earlier, gained in _gains(attempt):
        memory = 0 if earlier.is_persons or earlier.is_by_hand else memory
        is_oom = "out of memory" in (earlier.job.failure_reason or "")
        memory = memory + 1 if is_oom and not (gained and earlier.is_ours) else int(is_oom)
        if earlier.trains_since is None or not was_shown(earlier, source_faults, now):
            continue
        if run.cancelled_at is not None and earlier.job.created_at <= run.cancelled_at:
            fruitless = memory = 0  # a person took it; that it dies later is a new fact
            continue
        fruitless = 0 if gained or earlier.is_persons or not earlier.is_ours else fruitless + 1
    return fruitless, memory


def _gains(attempt: Attempt) -> Iterator[tuple[Attempt, bool]]:
    """Each attempt before this one, and whether it left a good checkpoint beyond all earlier ones."""
    run, best, was_deceived = attempt.run, 0, False
    # Going back before what made the loss bad is what is wanted, once for each.
    may_go_back = sum(trouble.kind in ("spike", "skips", "nan", "quiet_nan") for trouble in run.spec.troubles)
    for earlier in run.attempts.values():
        if earlier is attempt:
            return
        planned = earlier.plan.step or 0
        if earlier.is_ours and planned < best and may_go_back:
            best, may_go_back = planned, may_go_back - 1
        reached = max((item.step for item in run.saved if item.attempt == earlier.name and item.is_good), default=0)
        gained = reached > best
        # What it saved may be poisoned, and look well until it is loaded: once that is taken for a gain.
        if not gained and not was_deceived and _best_looking(run, earlier.name) > max(reached, best):
            gained = was_deceived = True
        best = max(best, reached)
        yield earlier, gained


def _best_looking(run: TrueRun, attempt: str) -> int:
    """The newest step of the attempt's checkpoints that are whole and that nothing shows to be poisoned."""
    steps = [save.step for save in run.saved if save.attempt == attempt and save.is_whole and not save.looks_poisoned]
    return max(steps, default=0)


def poison_could_be_known(attempt: Attempt, root: str, step: int, source_faults: SourceFaults, now: datetime) -> bool:
    """It was sealed as poisoned, or is no older than a bad update that showed, or has shown it once loaded."""
    run = attempt.run
    saved = run.saved_at_root(root)
    if saved is not None and saved.looks_poisoned:
        return True
    if run.spec.watch == "metrics":  # CloudWatch takes no loss that is no number, and nothing else is sent
        return False
    for other in run.attempts.values():
        if other is attempt or other.first_bad_loss is None or not other.stretches:
            continue
        if not other.is_ours and not other.is_tagged:
            continue  # submitted by hand, outside our care: what it does with a checkpoint is nothing we look at
        # Three bad losses, of which the last was shown: not if the attempt ended at that very step.
        has_shown = other.stretches[-1].base >= other.first_bad_loss + (2 if other.is_live else 3)
        if not has_shown or not _loss_arrived(other, other.first_bad_loss + CONFIRMED_AFTER - 1, source_faults, now):
            continue
        loaded_it = other.loaded is not None and other.loaded.root == root
        wrote_it = saved is not None and saved.attempt == other.name and step >= other.first_bad_loss - 1
        if loaded_it or wrote_it:
            return True
    return False


def _loss_arrived(attempt: Attempt, step: int, source_faults: SourceFaults, now: datetime) -> bool:
    """An event could say so, or a heartbeat that could be read while the attempt was looked at had come to the step."""
    told = source_faults.told_until(now)
    if told is not None and attempt.step_at(told) >= step:
        return True
    seen_at = source_faults.seen_at(attempt.run.name, (attempt.job.ended_at or now) + MISSES_NOTHING)
    return seen_at is not None and attempt.step_at(seen_at) >= step


def looks_broken(run: TrueRun, saved: Saved) -> bool:
    """Two attempts loaded it and failed before they had made a step. One that continues from another may confirm it."""
    loaded_it = [
        attempt for attempt in run.attempts.values() if attempt.loaded is saved and attempt.job.ended_at is not None
    ]
    return (
        sum(
            attempt.job.failure_reason is not None and attempt.stretches[-1].base < attempt.first_step
            for attempt in loaded_it
        )
        >= 2
    )


def looks_its_own(run: TrueRun, root: str, source_faults: SourceFaults, now: datetime) -> bool:
    """A plain file that another experiment saved under the run's root, before a run whose first step no source could
    show, or while it ran, of a step to which the run itself may have come: neither its name nor its time shows whose it
    is.
    """
    found = run.foreign_files.get(root)
    if found is None:
        return False
    step, is_old = found
    # One that trains for less may end before a heartbeat shows a step.
    long_enough = timedelta(seconds=HEARTBEAT_S + run.spec.step_s)
    has_begun = any(_trained_in_sight(attempt, source_faults, now) >= long_enough for attempt in run.attempts.values())
    return not has_begun or (not is_old and step <= _could_have_reached(run, source_faults, now) + FAR_BELOW_STEPS)


def _could_have_reached(run: TrueRun, source_faults: SourceFaults, now: datetime) -> int:
    """Its furthest step; or, of an attempt whose heartbeat could not be read around its end, as far as the time that
    it had allows.
    """
    reached = run.furthest
    for attempt in run.attempts.values():
        ended_at = attempt.job.ended_at or now
        if attempt.trains_since is None or _read_at_its_end(attempt, source_faults, now):
            continue
        trained_s = (ended_at - attempt.trains_since).total_seconds()
        reached = max(reached, attempt.first_step + int(trained_s / run.spec.step_s))
    return reached


def _trained_in_sight(attempt: Attempt, source_faults: SourceFaults, now: datetime) -> timedelta:
    """For how long of its steps there was a heartbeat that could be read by `now`."""
    seen_at = _read_at_its_end(attempt, source_faults, now)
    if not attempt.stretches or attempt.trains_since is None or seen_at is None:
        return timedelta(0)
    trained = timedelta(seconds=(attempt.stretches[-1].base - attempt.first_step + 1) * attempt.run.spec.step_s)
    return min(trained, seen_at - attempt.trains_since)


def _read_at_its_end(attempt: Attempt, source_faults: SourceFaults, now: datetime) -> datetime | None:
    """As of when its heartbeat could be read around its end: one that is torn shows no more than one that is lost."""
    looked_at = min(now, (attempt.job.ended_at or now) + MISSES_NOTHING)
    name = attempt.run.name
    return None if source_faults.tears_heartbeat(name, looked_at) else source_faults.seen_at(name, looked_at)


def looks_poisoned(run: TrueRun, saved: Saved) -> bool:
    """An attempt loaded it and was not finite from its first step on. Whether the weights are poisoned or that
    step's update goes bad each time looks the same in every source, and only one of them may be tried again.
    """
    return any(attempt.loaded is saved and bad_from_the_start(attempt) for attempt in run.attempts.values())


def is_bad_as_before(attempt: Attempt) -> bool:
    """From its first step on, or from the step at which an earlier attempt went bad."""
    earlier = [other.first_bad_loss for other in attempt.run.attempts.values() if other.number < attempt.number]
    return bad_from_the_start(attempt) or attempt.first_bad_loss in [step for step in earlier if step is not None]


def bad_from_the_start(attempt: Attempt) -> bool:
    """Its loss was not finite from its first step on."""
    return attempt.first_bad_loss is not None and attempt.first_bad_loss <= attempt.first_step


def has_confirmed(run: TrueRun, now: datetime) -> bool:
    """Of an attempt that lives, three losses in a row were not finite, or it does not train."""
    return any(
        attempt.first_bad_loss is None or attempt.step_at(now) >= attempt.first_bad_loss + CONFIRMED_AFTER - 1
        for attempt in run.live
    )


def has_collapsed(run: TrueRun) -> bool:
    """The gradient scale of an attempt that lives, or of the last one, has collapsed: its loss is a number."""
    newest = list(run.attempts.values())[-1:]
    return any(attempt.collapsed_at is not None for attempt in (run.live or newest))


def has_shown(run: TrueRun, now: datetime) -> bool:
    """As many losses in a row are not finite as its monitor takes for a state, of an attempt that lives: one that rests
    right after the first of them looks well.
    """
    poisoned = [attempt for attempt in run.live if attempt.first_bad_loss is not None]
    return any(attempt.step_at(now) >= (attempt.first_bad_loss or 0) + CONFIRMED_AFTER - 1 for attempt in poisoned)


def shows_after(run: TrueRun, ill: ActiveTrouble) -> timedelta:
    """How long its own monitor needs before it can say so: a stall its limit, a bad loss three steps of it. Until
    then the run's heartbeat is that of a healthy run.
    """
    match ill.kind:
        case "hung":
            return STALL_LIMIT
        case "poisoned":
            return CONFIRMED_AFTER * timedelta(seconds=run.spec.step_s)
        case _:
            return timedelta(0)


def shown_late(run: TrueRun, source_faults: SourceFaults, now: datetime) -> timedelta:
    """How old what its newest heartbeat shows is, where no event can say more; a day where none can be found."""
    if not source_faults.loses_events():
        return timedelta(0)
    seen_at = source_faults.seen_at(run.name, now)
    return now - seen_at if seen_at is not None else timedelta(days=1)


def shown_until(run: TrueRun, source_faults: SourceFaults, now: datetime) -> datetime:
    """Of which moment the newest is that its events, or its heartbeat, can show by now."""
    told = source_faults.told_until(now)
    seen = None if source_faults.tears_heartbeat(run.name) else source_faults.seen_at(run.name, now)
    return max((at for at in (told, seen) if at is not None), default=datetime.min.replace(tzinfo=now.tzinfo))


def is_unseen(run: TrueRun, source_faults: SourceFaults, now: datetime) -> bool:
    """CloudWatch is away, and no heartbeat of the run can be read either: nothing else shows that it hangs, or goes bad
    where no event arrives.
    """
    if not source_faults.is_away("cloudwatch"):
        return False
    return (
        run.spec.watch == "metrics"
        or source_faults.tears_heartbeat(run.name)
        or source_faults.seen_at(run.name, now) is None
    )


def tells_nothing(run: TrueRun, ill: ActiveTrouble, source_faults: SourceFaults, now: datetime) -> bool:
    """Its events are lost, its data points do not arrive, and its newest heartbeat is from before its trouble showed:
    nothing but silence tells of that.
    """
    if not source_faults.loses_events() or not source_faults.hides_metric(run.name, now):
        return False
    return shown_until(run, source_faults, now) < ill.since + shows_after(run, ill)


def lives_shown_in_vain(attempt: Attempt, source_faults: SourceFaults, now: datetime) -> int:
    """How many of the newest starts of all its processes gained no checkpoint, of those that something has shown: their
    events, or where such never arrive the heartbeat that can be read. None while that is torn.
    """
    if not source_faults.loses_events():
        return attempt.in_vain
    if source_faults.tears_heartbeat(attempt.run.name):
        return 0
    seen_at = source_faults.seen_at(attempt.run.name, now)
    shown = attempt.at(seen_at) if seen_at is not None else None
    return attempt.in_vain - (attempt.life - shown.life) if shown is not None else 0


def is_shown(attempt: Attempt, source_faults: SourceFaults, now: datetime) -> bool:
    """False of a Slurm job that asks for no protection, while no heartbeat of it can be read."""
    if attempt.is_tagged or attempt.run.spec.platform != "slurm":
        return True
    if attempt.run.spec.watch != "monitor" or attempt.trains_since is None:
        return False
    seen_at = source_faults.seen_at(attempt.run.name, now)
    return seen_at is not None and seen_at - attempt.trains_since >= MISSES_NOTHING


def shows_its_end(run: TrueRun, source_faults: SourceFaults, now: datetime) -> bool:
    """The heartbeat that says that it has finished can be read."""
    newest = next(reversed(run.attempts.values()), None)
    seen_at = source_faults.seen_at(run.name, now)
    if newest is None or not newest.stretches or seen_at is None or source_faults.tears_heartbeat(run.name):
        return False
    shown = newest.at(seen_at)
    return shown is not None and shown.phase is RunPhase.FINISHED
