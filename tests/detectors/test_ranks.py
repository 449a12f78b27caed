"""Which rank is to blame, told from stacks as real processes give them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rekindle.detectors.frames import WAITS, phase_in, training_frames, waits_in
from rekindle.detectors.rank_rules import STRONG, RankRule
from rekindle.detectors.ranks import find_suspects, first_bad
from rekindle.protocol.flights import Call, CallState, Flight, GroupFlight
from rekindle.protocol.mailbox import RunPhase
from rekindle.protocol.reports import RankReport, ReportKind

AT = datetime(2026, 11, 21, 10, 0, tzinfo=UTC)
SITE = "/opt/conda/lib/python3.11/site-packages"


def stack(*frames: str, line: int = 10) -> str:
    """As `rekindle.monitor.base.stacks` writes it: other threads first, main thread last, innermost frame last."""
    told = "".join(
        f'  File "{file}", line {line + number}, in {function}\n'
        for number, (file, _, function) in enumerate(frame.partition(" ") for frame in frames)
    )
    return f'Thread pin-memory:\n  File "{SITE}/torch/utils/data/_utils/pin_memory.py", line 51, in do_one_step\n\n' + (
        f"Thread MainThread:\n{told}"
    )


LOOP = ("/opt/ml/code/train.py <module>", "/opt/ml/code/train.py main")
BACKWARD = stack(
    *LOOP,
    f"{SITE}/torch/_tensor.py Tensor.backward",
    f"{SITE}/torch/autograd/__init__.py backward",
    f"{SITE}/torch/autograd/graph.py _engine_run_backward",
)
ALL_REDUCE = stack(
    *LOOP,
    f"{SITE}/torch/distributed/c10d_logger.py _exception_logger.<locals>.wrapper",
    f"{SITE}/torch/distributed/distributed_c10d.py all_reduce",
)
BARRIER = stack(
    *LOOP,
    f"{SITE}/torch/distributed/c10d_logger.py wrapper",
    f"{SITE}/torch/distributed/distributed_c10d.py barrier",
)
LOADER = stack(
    *LOOP,
    f"{SITE}/torch/utils/data/dataloader.py _BaseDataLoaderIter.__next__",
    f"{SITE}/torch/utils/data/dataloader.py _MultiProcessingDataLoaderIter._try_get_data",
    "/opt/conda/lib/python3.11/queue.py Queue.get",
    "/opt/conda/lib/python3.11/threading.py Condition.wait",
)
SLEEPS = stack(*LOOP, "/opt/ml/code/train.py augment")
HOOK = stack(
    *LOOP,
    f"{SITE}/torch/autograd/__init__.py backward",
    f"{SITE}/torch/autograd/graph.py _engine_run_backward",
    "/opt/ml/code/train.py my_comm_hook",
)
ITEM = stack(*LOOP, "/opt/ml/code/train.py log_loss")  # every rank waits for its device in `.item()`
RECV = stack(
    *LOOP,
    f"{SITE}/torch/distributed/pipelining/schedules.py Schedule1F1B._step_microbatches",
    f"{SITE}/torch/distributed/distributed_c10d.py recv",
)
SEND = stack(
    *LOOP,
    f"{SITE}/torch/distributed/pipelining/schedules.py Schedule1F1B._step_microbatches",
    f"{SITE}/torch/distributed/distributed_c10d.py isend",
)


def stall(rank: int, stacks: str, world: int, *, step: int | None = 100, after_s: float = 0) -> RankReport:
    return RankReport(
        kind=ReportKind.STALL,
        job_id="job",
        attempt="run-1",
        rank=rank,
        world_size=world,
        host=f"node-{rank // 8}",
        at=AT + timedelta(seconds=after_s),
        step=step,
        phase="training",
        silent_s=60.0,
        stacks=stacks,
    )


def stalls(
    world: int, common: str, odd: Mapping[int, str] | None = None, missing: tuple[int, ...] = ()
) -> list[RankReport]:
    return [stall(r, (odd or {}).get(r, common), world) for r in range(world) if r not in missing]


@pytest.mark.parametrize("busy", [LOADER, SLEEPS, HOOK], ids=["data loader", "user code", "a hook inside backward"])
@pytest.mark.parametrize("waits", [BACKWARD, ALL_REDUCE], ids=["backward", "all-reduce"])
@pytest.mark.parametrize(("world", "culprit"), [(2, 1), (4, 3), (16, 9), (512, 77)])
def test_the_rank_that_does_not_wait_is_named_with_its_node(waits: str, busy: str, world: int, culprit: int) -> None:
    verdict = find_suspects(stalls(world, waits, {culprit: busy}), world)
    assert verdict.suspect_ranks == (culprit,)
    assert verdict.hosts == (f"node-{culprit // 8}",)
    assert verdict.rule is RankRule.NOT_WAITING
    assert verdict.confidence >= STRONG
    assert f"rank {culprit}" in verdict.text


def test_where_the_suspect_stands_is_said() -> None:
    assert "dataloader.py:_try_get_data" in find_suspects(stalls(8, BACKWARD, {5: LOADER}), 8).text


@pytest.mark.parametrize("world", [2, 8, 64])
def test_a_rank_that_is_frozen_as_a_whole_is_told_by_its_silence(world: int) -> None:
    verdict = find_suspects(stalls(world, BACKWARD, missing=(1,)), world)
    assert (verdict.suspect_ranks, verdict.rule) == ((1,), RankRule.SILENT)
    assert verdict.confidence >= STRONG
    if world > 2:
        assert verdict.hosts == ("node-0",), "a silent rank's host is that of the ranks on both sides"


def test_an_earlier_report_of_its_pace_tells_a_silent_ranks_host() -> None:
    pace = RankReport(
        kind=ReportKind.PACE, job_id="job", attempt="run-1", rank=7, world_size=8, host="spare-3", at=AT, step_s=1.0
    )
    assert find_suspects([*stalls(8, BACKWARD, missing=(7,)), pace], 8).hosts == ("spare-3",)


def test_many_silent_ranks_are_no_evidence_against_any() -> None:
    assert find_suspects(stalls(64, BACKWARD, missing=tuple(range(20))), 64).rule is RankRule.UNKNOWN
    assert find_suspects(stalls(64, BACKWARD, missing=tuple(range(12))), 64).confidence < STRONG


def test_nothing_is_said_before_most_ranks_have_spoken() -> None:
    verdict = find_suspects(stalls(64, BACKWARD, {3: SLEEPS}, missing=tuple(range(10, 50))), 64)
    assert (verdict.rule, verdict.suspect_ranks, verdict.confidence) == (RankRule.UNKNOWN, (), 0.0)


def test_the_rank_with_the_lowest_step_is_the_suspect_when_the_others_wait_one_step_ahead() -> None:
    reports = [stall(r, BACKWARD, 8, step=101) for r in range(8) if r != 6] + [stall(6, SLEEPS, 8, step=100)]
    verdict = find_suspects(reports, 8)
    assert (verdict.suspect_ranks, verdict.rule) == ((6,), RankRule.BEHIND)
    assert verdict.confidence >= STRONG
    waits_too = [*reports[:7], stall(6, ALL_REDUCE, 8, step=100)]
    assert find_suspects(waits_too, 8).suspect_ranks == (6,), "also where it waits in a collective the others have left"


def test_a_rank_that_never_finished_a_step_is_behind_the_others() -> None:
    reports = [stall(r, BACKWARD, 4, step=1) for r in range(3)] + [stall(3, SLEEPS, 4, step=None)]
    assert find_suspects(reports, 4).suspect_ranks == (3,)


def test_a_rank_that_is_ahead_is_not_a_suspect_for_that() -> None:
    reports = [stall(r, BACKWARD, 8, step=100) for r in range(7)] + [stall(7, BACKWARD, 8, step=101)]
    assert find_suspects(reports, 8).suspect_ranks == ()


def test_pipeline_stages_wait_in_different_places_and_the_one_that_computes_is_named() -> None:
    places = [RECV, SEND, BACKWARD, ALL_REDUCE]
    reports = [stall(r, SLEEPS if r == 21 else places[r // 8], 32) for r in range(32)]
    verdict = find_suspects(reports, 32)
    assert (verdict.suspect_ranks, verdict.hosts, verdict.rule) == ((21,), ("node-2",), RankRule.NOT_WAITING)
    nobody = [stall(r, places[r // 8], 32) for r in range(32)]
    assert find_suspects(nobody, 32).rule is RankRule.UNKNOWN


def test_pipeline_stages_of_an_unknown_framework_still_leave_one_odd_rank() -> None:
    places = [stack(*LOOP, f"/opt/ml/code/pipe.py stage_{stage}") for stage in range(4)]
    reports = [stall(r, SLEEPS if r == 13 else places[r // 8], 32) for r in range(32)]
    verdict = find_suspects(reports, 32)
    assert (verdict.suspect_ranks, verdict.rule) == ((13,), RankRule.ODD_ONE)
    assert verdict.confidence < STRONG, "no frame is known as a wait: that is not evidence enough to cost a node"


def test_two_equal_halves_are_unknown() -> None:
    for one, other in ((SLEEPS, ITEM), (BACKWARD, BARRIER), (BACKWARD, SLEEPS)):
        reports = [stall(r, one if r < 4 else other, 8) for r in range(8)]
        assert find_suspects(reports, 8).rule is RankRule.UNKNOWN


def test_a_device_that_hangs_for_all_is_unknown() -> None:
    assert find_suspects(stalls(16, ITEM), 16).rule is RankRule.UNKNOWN


def test_one_rank_in_another_collective_is_odd_but_weak_evidence() -> None:
    verdict = find_suspects(stalls(16, ALL_REDUCE, {4: BARRIER}), 16)
    assert (verdict.suspect_ranks, verdict.rule) == ((4,), RankRule.ODD_ONE)
    assert verdict.confidence < STRONG


def test_a_silent_and_a_busy_rank_are_both_suspects_and_neither_strongly() -> None:
    verdict = find_suspects(stalls(16, BACKWARD, {2: SLEEPS}, missing=(9,)), 16)
    assert verdict.suspect_ranks == (2, 9)
    assert verdict.confidence < STRONG


def test_the_newest_report_of_a_rank_counts() -> None:
    reports = [*stalls(4, BACKWARD, {2: SLEEPS}), stall(2, BACKWARD, 4, after_s=5), stall(3, SLEEPS, 4, after_s=5)]
    assert find_suspects(reports, 4).suspect_ranks == (3,)


def test_reports_left_from_an_earlier_stall_accuse_nobody() -> None:
    left = [stall(r, SLEEPS, 8, step=40, after_s=-3600) for r in range(8)]
    now = [stall(r, BACKWARD, 8, step=100) for r in range(8) if r != 5]
    verdict = find_suspects([*left, *now], 8)
    assert (verdict.suspect_ranks, verdict.rule) == ((5,), RankRule.SILENT)


def test_a_job_of_one_rank_has_no_minority() -> None:
    assert find_suspects([stall(0, SLEEPS, 1)], 1).rule is RankRule.UNKNOWN
    assert first_bad([bad(0, 5, 1)], 1).rule is RankRule.UNKNOWN


def bad(rank: int, step: int | None, world: int, *, metric: str = "grad") -> RankReport:
    return RankReport(
        kind=ReportKind.NON_FINITE,
        job_id="job",
        attempt="run-1",
        rank=rank,
        world_size=world,
        host=f"node-{rank // 8}",
        at=AT,
        step=step,
        metric=metric,
    )


def test_one_rank_alone_first_is_named_whether_the_others_followed_or_not() -> None:
    spread = [bad(5, 10, 8)] + [bad(r, 11, 8, metric="loss") for r in range(8) if r != 5]
    for reports in (spread, [bad(5, 10, 8)]):
        verdict = first_bad(reports, 8)
        assert (verdict.suspect_ranks, verdict.hosts, verdict.rule) == ((5,), ("node-0",), RankRule.ALONE_FIRST)
        assert verdict.confidence >= STRONG


def test_all_ranks_at_once_blames_none() -> None:
    verdict = first_bad([bad(r, 10, 8) for r in range(8)], 8)
    assert (verdict.suspect_ranks, verdict.rule) == ((), RankRule.ALL_AT_ONCE)


def test_some_ranks_at_once_are_a_host_or_unknown() -> None:
    one_host = [bad(r, 10, 32) for r in (8, 9, 10)] + [bad(r, 11, 32) for r in range(32) if r not in (8, 9, 10)]
    verdict = first_bad(one_host, 32)
    assert (verdict.suspect_ranks, verdict.hosts, verdict.rule) == ((8, 9, 10), ("node-1",), RankRule.ONE_HOST_FIRST)
    assert first_bad([bad(r, 10, 32) for r in (1, 12, 25)], 32).rule is RankRule.UNKNOWN
    assert first_bad([], 32).rule is RankRule.UNKNOWN
    assert first_bad([bad(3, None, 32)], 32).rule is RankRule.UNKNOWN


def test_lines_are_no_part_of_a_place() -> None:
    assert training_frames(stack(*LOOP, line=10)) == training_frames(stack(*LOOP, line=77))


def test_the_monitors_own_agreement_is_a_wait_whatever_the_users_collective_looks_like() -> None:
    frames = training_frames(
        stack(
            *LOOP,
            f"{SITE}/rekindle/monitor/saving/agreement.py Agreement._ask",
            "/opt/ml/code/gang.py highest",
            "/opt/ml/code/gang.py receive",
        )
    )
    found = waits_in(frames)
    assert found is not None
    assert found.function == "_ask"


def test_every_wait_names_its_source() -> None:
    assert all(wait.source and wait.file.endswith(".py") for wait in WAITS)


REPORTS = st.lists(
    st.builds(
        RankReport,
        kind=st.sampled_from(ReportKind),
        job_id=st.just("job"),
        attempt=st.just("run-1"),
        rank=st.integers(-1, 9),
        world_size=st.just(8),
        host=st.sampled_from(["", "a", "b"]),
        at=st.integers(0, 5).map(lambda s: AT + timedelta(seconds=s)),
        step=st.none() | st.integers(0, 3),
        silent_s=st.none() | st.floats(0, 1e300),
        stacks=st.sampled_from([BACKWARD, SLEEPS, BARRIER, "", "Thread :\n"]) | st.text(max_size=60),
    ),
    max_size=20,
)


@given(REPORTS, st.integers(0, 9))
def test_a_verdict_never_raises_accuses_no_majority_and_does_not_depend_on_order(
    reports: list[RankReport], world: int
) -> None:
    for judge in (find_suspects, first_bad):
        verdict = judge(reports, world)
        assert 0 <= verdict.confidence <= 1
        assert set(verdict.suspect_ranks) <= set(range(world))
        assert bool(verdict.suspect_ranks) <= (len(verdict.suspect_ranks) < world)
        assert (verdict.rule is RankRule.UNKNOWN) == (verdict.confidence == 0)
        assert verdict.text
        assert judge(reports[::-1], world) == verdict


# ---- with what the flight recorders show -----------------------------------------------------------------------------


def recorder(seq: int, *, ended: bool = False, op: str = "all_reduce") -> Flight:
    call = Call(seq=seq, op=op, state=CallState.DONE if ended else CallState.WAITING)
    return Flight(groups=(GroupFlight(name="0", desc="default_pg", backend="nccl", entered=seq, calls=(call,)),))


def with_recorders(reports: list[RankReport], **other: Flight) -> list[RankReport]:
    """All wait in call 41, but those that `other` names (`r3=...`)."""
    return [replace(report, flight=other.get(f"r{report.rank}", recorder(41))) for report in reports]


def test_two_sources_that_name_one_rank_make_each_other_stronger() -> None:
    reports = stalls(8, BACKWARD, odd={3: LOADER})
    alone = find_suspects(reports, 8)
    verdict = find_suspects(with_recorders(reports, r3=recorder(40, ended=True)), 8)
    assert (verdict.suspect_ranks, verdict.rule) == ((3,), RankRule.NOT_WAITING)
    assert verdict.confidence > alone.confidence
    assert "has not entered all_reduce 41" in verdict.text


def test_the_recorders_tell_which_of_those_that_do_not_wait_is_the_one() -> None:
    reports = stalls(8, BACKWARD, odd={0: LOADER, 3: LOADER})
    verdict = find_suspects(with_recorders(reports, r3=recorder(40, ended=True)), 8)
    assert verdict.suspect_ranks == (3,)
    assert verdict.confidence >= STRONG


def test_where_stacks_tell_nothing_the_recorders_name_a_rank_and_condemn_no_node() -> None:
    reports = with_recorders(stalls(8, ALL_REDUCE), r3=recorder(40, ended=True))
    verdict = find_suspects(reports, 8)
    assert (verdict.suspect_ranks, verdict.rule) == ((3,), RankRule.NOT_ENTERED)
    assert verdict.confidence < STRONG


def test_sources_that_contradict_each_other_are_believed_neither() -> None:
    reports = with_recorders(stalls(8, BACKWARD, odd={5: LOADER}), r3=recorder(40, ended=True))
    assert find_suspects(reports, 8).confidence < 0.5
    waiting = with_recorders(stalls(8, BACKWARD, odd={5: LOADER}))
    assert find_suspects(waiting, 8).confidence < STRONG  # it has entered what they wait in


def test_a_mismatch_is_the_codes_whatever_else_names_that_rank() -> None:
    reports = with_recorders(stalls(8, ALL_REDUCE, odd={3: BARRIER}), r3=recorder(41, op="broadcast"))
    assert find_suspects(reports, 8).rule is RankRule.MISMATCHED


def test_nobody_is_missing_where_all_wait_for_storage() -> None:
    idle = {f"r{rank}": recorder(40, ended=True) for rank in range(8)}
    verdict = find_suspects(with_recorders(stalls(8, LOADER, odd={6: SLEEPS}), **idle), 8)
    assert (verdict.suspect_ranks, verdict.rule) == ((), RankRule.NOBODY_WAITS)


FORWARD = f"{SITE}/torch/nn/modules/module.py Module._call_impl"


@pytest.mark.parametrize(
    ("frames", "phase"),
    [
        ((), RunPhase.TRAINING),
        (("train.py training_step", FORWARD, "model.py GPT.forward"), RunPhase.TRAINING),
        (("train.py estimate_loss", FORWARD, "model.py GPT.forward"), RunPhase.EVALUATION),
        (("train.py test", FORWARD, "model.py Net.forward"), RunPhase.EVALUATION),
        (("train.py Runner.run_validation", "train.py generate"), RunPhase.EVALUATION),
        (("train.py train_and_evaluate", "train.py train_step", FORWARD), RunPhase.TRAINING),
        (("train.py train_and_evaluate", "train.py eval_epoch", FORWARD), RunPhase.EVALUATION),
        (("ppo.py PPO.train", "policies.py Policy.evaluate_actions", FORWARD), RunPhase.TRAINING),
        (("train.py train", "diffusion.py predict_noise", FORWARD), RunPhase.TRAINING),
        ((f"{SITE}/torch/utils/checkpoint.py checkpoint", "model.py Block.forward"), RunPhase.TRAINING),
        (("train.py save_checkpoint", f"{SITE}/torch/serialization.py save"), RunPhase.SAVING),
        ((f"{SITE}/torch/serialization.py save", f"{SITE}/torch/serialization.py _save"), RunPhase.SAVING),
        ((f"{SITE}/torch/distributed/checkpoint/state_dict_saver.py save",), RunPhase.SAVING),
        (("train.py validate", f"{SITE}/torch/_dynamo/convert_frame.py _compile"), RunPhase.STARTUP),
    ],
)
def test_a_stack_tells_what_a_rank_without_steps_is_in(frames: tuple[str, ...], phase: RunPhase) -> None:
    assert phase_in(training_frames(stack(*LOOP, *frames))) is phase
