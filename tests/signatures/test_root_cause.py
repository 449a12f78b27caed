"""The root cause told from its echoes."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from rekindle.signatures import CausalClass, FaultClass, Finding, FirstResponse, Label, classify, root_cause
from tests.signatures.corpus_benign import BENIGN_LINES
from tests.signatures.corpus_faults import FAULTS

TIMEOUT = "[Rank {}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9) ran for 600061 milliseconds"


def said(text: str, *, node: str | None = None, rank: int | None = None, at: float | None = None) -> Finding:
    return Finding(verdict=classify(text), node=node, rank=rank, at=at, text=text)


def test_one_ecc_error_among_511_timeouts_is_the_cause() -> None:
    findings = [said(TIMEOUT.format(rank), node=f"n{rank // 9}", rank=rank, at=600.0 + rank) for rank in range(511)]
    findings.append(said("CUDA error: uncorrectable ECC error encountered", node="n63", rank=511, at=5000.0))
    random.Random(5).shuffle(findings)
    cause = root_cause(findings)
    assert (cause.label, cause.fault) == (Label.ECC_UNCORRECTABLE, FaultClass.NODE_HARDWARE)
    assert cause.suspects == ("n63",)
    assert [(echo.label, echo.count) for echo in cause.echoes] == [(Label.NCCL_TIMEOUT, 511)]
    assert cause.text.startswith("ecc_uncorrectable on n63 rank 511 is the cause")
    assert "nccl_timeout (511" in cause.text
    assert cause.text.count(".") == 1


def test_a_link_error_on_the_peer_of_a_dead_gpu_is_not_the_peers_fault() -> None:
    cause = root_cause(
        [
            said("NVRM: Xid (PCI:0:1): 74, NVLink: fatal error detected on link 6", node="peer", at=1.0),
            said("NCCL WARN NET/IB : Got completion with status=12", node="other", at=1.5),
            said("ncclRemoteError: A call failed", node="far", at=2.0),
            said("NVRM: Xid (PCI:0:2): 79, GPU has fallen off the bus.", node="dead", at=3.0),
        ]
    )
    assert (cause.label, cause.suspects) == (Label.XID_79_FALLEN_OFF_BUS, ("dead",))
    assert {echo.label for echo in cause.echoes} == {
        Label.NVLINK_ERROR,
        Label.IB_NETWORK_ERROR,
        Label.NCCL_REMOTE_ERROR,
    }


def test_an_nvlink_error_alone_is_a_cause() -> None:
    cause = root_cause([said("uncorrectable NVLink error", node="a"), said(TIMEOUT.format(1), node="b")])
    assert (cause.label, cause.suspects) == (Label.NVLINK_ERROR, ("a",))


def test_inside_one_class_the_earliest_is_the_cause() -> None:
    crash = said("KeyError: 'labels'", node="a", at=10.0)
    end = said("Received SIGTERM, saving checkpoint", node="b", at=11.0)
    assert root_cause([end, crash]).label is Label.PYTHON_EXCEPTION_USER_CODE
    early = said("Received SIGTERM, saving checkpoint", node="b", at=9.0)
    assert root_cause([crash, early]).label is Label.PREEMPTION


def test_a_time_that_is_not_known_comes_after_one_that_is() -> None:
    assert root_cause([said("Segmentation fault"), said("KeyError: 'x'", at=9.0)]).finding is not None
    assert (
        root_cause([said("Segmentation fault"), said("KeyError: 'x'", at=9.0)]).label
        is Label.PYTHON_EXCEPTION_USER_CODE
    )


def test_a_bare_traceback_is_an_echo_of_what_it_ends_in() -> None:
    cause = root_cause(
        [
            said("Traceback (most recent call last):", at=1.0),
            said("torch.OutOfMemoryError: CUDA out of memory.", at=2.0),
        ]
    )
    assert cause.label is Label.CUDA_OOM


def test_a_recorded_row_remap_is_news_and_no_cause() -> None:
    remap = said("NVRM: Xid (PCI:0:1): 63, Row Remapper: New row marked for remapping", node="a", at=1.0)
    assert root_cause([remap, said(TIMEOUT.format(3), node="b", at=2.0)]).label is Label.NCCL_TIMEOUT
    alone = root_cause([remap])
    assert (alone.label, alone.first_response) == (Label.XID_63_64_ROW_REMAP, FirstResponse.MONITOR)
    assert "asks for nothing" in alone.text


def test_only_echoes_say_that_the_cause_is_elsewhere() -> None:
    cause = root_cause([said(TIMEOUT.format(rank), rank=rank) for rank in range(8)])
    assert "the cause is elsewhere" in cause.text
    assert cause.first_response is FirstResponse.FIND_CAUSE


def test_nothing_wrong_has_no_cause() -> None:
    for findings in ([], [said(line) for line in BENIGN_LINES]):
        cause = root_cause(findings)
        assert (cause.label, cause.fault, cause.finding, cause.suspects) == (Label.BENIGN, None, None, ())


@given(
    st.lists(st.sampled_from([text for texts in FAULTS.values() for text in texts]), min_size=1, max_size=30),
    st.randoms(),
)
def test_the_cause_does_not_depend_on_the_order_of_arrival(texts: list[str], pick: random.Random) -> None:
    findings = [said(text, node=f"n{place}", at=float(place)) for place, text in enumerate(texts)]
    cause = root_cause(findings)
    assert cause.finding is not None
    assert cause.finding.verdict.order is min((finding.verdict.order for finding in findings), key=CausalClass)
    mixed = list(findings)
    pick.shuffle(mixed)
    assert root_cause(mixed).finding == cause.finding
    assert root_cause(mixed).text.endswith(".")


def test_an_echo_does_not_precede_its_cause_by_two_thousand_lines() -> None:
    timeouts = [said(TIMEOUT.format(rank), rank=rank, at=100.0 + rank) for rank in range(8)]
    late = said("CUDA error: uncorrectable ECC error encountered", at=2100.0)
    cause = root_cause([*timeouts, late], is_one_log=True)
    assert cause.label is Label.NCCL_TIMEOUT
    assert "the cause is elsewhere" in cause.text
    assert [(line.label, line.count) for line in cause.unexplained] == [(Label.ECC_UNCORRECTABLE, 1)]
    assert cause.echoes == ()
    soon = said("CUDA error: uncorrectable ECC error encountered", at=140.0)  # ranks print at once
    assert root_cause([*timeouts, soon], is_one_log=True).label is Label.ECC_UNCORRECTABLE


def test_a_lone_early_echo_is_another_story_and_hides_no_cause() -> None:
    early = said("ncclRemoteError: A call failed", at=5.0)
    dead = said("NVRM: Xid (PCI:0:2): 79, GPU has fallen off the bus.", at=50_000.0)
    timeouts = [said(TIMEOUT.format(rank), rank=rank, at=50_900.0 + rank) for rank in range(8)]
    cause = root_cause([early, dead, *timeouts], is_one_log=True)
    assert cause.label is Label.XID_79_FALLEN_OFF_BUS
    assert [(echo.label, echo.count) for echo in cause.echoes] == [(Label.NCCL_TIMEOUT, 8)]
    assert [line.label for line in cause.unexplained] == [Label.NCCL_REMOTE_ERROR]
    assert "another cause" in cause.text


def test_time_decides_on_one_host_and_not_between_two() -> None:
    echoes = [said(TIMEOUT.format(rank), node="a", rank=rank, at=600.0) for rank in range(8)]
    late = "CUDA error: uncorrectable ECC error encountered"
    assert root_cause([*echoes, said(late, node="a", at=900.0)]).label is Label.NCCL_TIMEOUT
    assert root_cause([*echoes, said(late, node="a", at=610.0)]).label is Label.ECC_UNCORRECTABLE
    assert root_cause([*echoes, said(late, node="b", at=900.0)]).label is Label.ECC_UNCORRECTABLE  # clocks differ


def test_how_others_ended_a_process_is_the_cause_only_where_nothing_else_is_there() -> None:
    ends = [
        "srun: error: gn2301: task 1: Exited with exit code 1",
        "srun: error: node-0-31: task 3: Aborted (core dumped)",
        "slurmstepd: error: *** STEP 52110377.1 ON gn2301 CANCELLED AT 2024-01-09T11:02:41 ***",
        "slurmstepd: error: *** STEP 7.0 ON gn2301 CANCELLED AT 2026-01-09T11:02:41 DUE TO TASK FAILURE ***",
        "WARNING:torch.distributed.elastic.agent.server.api:Received 15 death signal, shutting down workers",
        "E0211 torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: -9) local_rank: 3",
        "E0211 torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: -6) local_rank: 3",
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:",
        "Traceback (most recent call last):",
    ]
    for end in ends:
        assert classify(end).order is CausalClass.ENDED
        for text in (TIMEOUT.format(3), "ncclRemoteError: A call failed", "NET/IB : Got completion with status=12"):
            wanted = classify(text).label
            for findings in ([said(end, at=1.0), said(text, at=2.0)], [said(text, at=1.0), said(end, at=2.0)]):
                assert root_cause(findings, is_one_log=True).label is wanted
        alone = root_cause([said(end)])
        assert alone.label is classify(end).label
        assert "not of what" in alone.text


def test_a_true_cancel_stays_a_persons_decision() -> None:
    job = said("slurmstepd: error: *** JOB 218211 ON node042 CANCELLED AT 2024-05-14T09:31:02 ***", at=1.0)
    assert root_cause([job, said("ncclRemoteError: A call failed", at=2.0)]).label is Label.USER_CANCELLED


def test_an_xid_45_is_the_xid_that_it_names() -> None:
    verdict = classify("NVRM: Xid (PCI:0000:dc:00): 45, pid=18, name=python3, Ch 00000000 caused by previous Xid 149")
    assert (verdict.label, verdict.first_response) == (Label.NVLINK_ERROR, FirstResponse.REBOOT)
    assert classify("NVRM: Xid (PCI:0000:dc:00): 45, pid=18, name=python3").label is Label.BENIGN
