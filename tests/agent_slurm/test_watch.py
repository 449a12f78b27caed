"""What the watcher tells of starts, their ends and what took their place."""

import json
import os
from datetime import timedelta
from pathlib import Path

import pytest

from rekindle.protocol.cluster.documents import EndedBy, SlurmState
from rekindle.protocol.keys import heartbeat_key
from rekindle.protocol.mailbox import Heartbeat, LossState, RunPhase
from rekindle.slurm_agent.base.ports import NewsType, NotProtected, SlurmUnavailable
from rekindle.slurm_agent.reading.run import Unreadable
from rekindle.slurm_agent.watching.node_facts import ENDING_TAKES
from rekindle.slurm_agent.watching.watcher import TELL_AGAIN_EVERY
from tests.agent_slurm.conftest import Head
from tests.agent_slurm.fake_slurm import node_line

PENDING = {"JobID": "7", "State": "PENDING", "Reason": "Priority", "NodeList": "", "StartTime": "N/A"}
RUNNING = {"JobID": "7"}


def requeued(restart: int, **more: str) -> dict[str, str]:
    return PENDING | {"RestartCnt": str(restart), "Reason": "BeginTime", "SubmitTime": "1795279000"} | more


def told(head: Head) -> list[tuple[str, str]]:
    return [(news.detail["attempt"], news.detail["state"]) for news in head.news if news.type is NewsType.JOB]


def test_a_job_is_found_by_its_comment_and_followed(head: Head) -> None:
    head.fake.jobs(
        [PENDING | {"Comment": "rekindle:gentle,mailbox=/fsx/box,signal=USR1"}, {"JobID": "8", "Comment": "hi"}]
    )
    head.look()
    doc = head.doc("slurm.ml.7")
    assert (doc.state, doc.policy, doc.mailbox, doc.signal) == (SlurmState.PENDING, "gentle", "/fsx/box", "USR1")
    assert (doc.nodes, doc.started_at, doc.reason) == ((), None, "Priority")
    head.fake.jobs([RUNNING | {"Comment": "rekindle:gentle,mailbox=/fsx/box,signal=USR1"}])
    head.look()
    doc = head.doc("slurm.ml.7")
    assert (doc.state, doc.nodes, doc.time_limit_s) == (SlurmState.RUNNING, ("node1", "node2"), 86400)
    assert doc.stdout == "/fsx/ml/slurm-7.out"
    assert told(head) == [("slurm.ml.7", "pending"), ("slurm.ml.7", "running")]
    assert head.news[-1].detail["v"] == 1
    assert not any("slurm.ml.8" in key for key in head.board)


def test_nothing_new_is_nothing_told(head: Head) -> None:
    head.fake.jobs([RUNNING])
    head.look()
    again = head.look()
    assert (again.documents, again.news, again.memory) == ({}, (), {})


def test_what_goes_on_is_told_again_now_and_then_in_case_its_first_news_was_lost(head: Head) -> None:
    head.fake.jobs([RUNNING, {"JobID": "9", "State": "FAILED", "EndTime": "1795278000"}])
    head.look()
    before = len(told(head))
    head.now += TELL_AGAIN_EVERY
    again = head.look()
    assert told(head)[before:] == [("slurm.ml.7", "running")], "what has ended is read again by the service itself"
    assert again.documents == {}
    head.look()
    assert len(told(head)) == before + 1


def test_a_requeue_by_a_person_makes_a_new_attempt(head: Head) -> None:
    head.fake.jobs([RUNNING])
    head.look()
    head.fake.jobs([RUNNING | {"State": "COMPLETING", "RestartCnt": "1", "EndTime": "NONE"}])
    head.look()
    assert head.doc("slurm.ml.7").state is SlurmState.COMPLETING, "its processes still end"
    assert head.doc("slurm.ml.7").successor is None
    head.fake.jobs([requeued(1)])
    head.look()
    old, new = head.doc("slurm.ml.7"), head.doc("slurm.ml.7.r1")
    assert (old.state, old.successor, old.requeued_by) == (SlurmState.REQUEUED, "slurm.ml.7.r1", EndedBy.USER)
    assert old.nodes == ("node1", "node2")
    assert old.ended_at is not None
    assert new.state is SlurmState.PENDING
    assert new.restart == 1
    assert told(head)[-2:] == [("slurm.ml.7", "requeued"), ("slurm.ml.7.r1", "pending")]


def test_our_own_hold_is_told_as_ours(head: Head) -> None:
    head.fake.jobs([RUNNING])
    head.look()
    head.journal.ended.add("slurm.ml.7")
    head.fake.jobs([requeued(1, Reason="job requeued in held state", PriorityLong="0")])
    head.look()
    assert head.doc("slurm.ml.7").requeued_by is EndedBy.AGENT
    assert head.doc("slurm.ml.7").ended_by is EndedBy.AGENT
    assert head.doc("slurm.ml.7.r1").held


def test_a_node_that_went_down_is_why_slurm_requeued(head: Head) -> None:
    head.fake.jobs([RUNNING])
    head.look()
    head.fake.nodes(["node1", node_line("node2", "DOWN+NOT_RESPONDING", "Not responding"), "node3"])
    head.fake.jobs([RUNNING | {"State": "COMPLETING", "RestartCnt": "1", "EndTime": "NONE", "NodeList": "node1"}])
    head.look()
    head.fake.jobs([requeued(1)])
    head.look()
    old = head.doc("slurm.ml.7")
    assert (old.requeued_by, old.ended_by) == (EndedBy.SLURM, EndedBy.SLURM)
    assert old.nodes == ("node1", "node2"), "Slurm takes the lost node out of the list; the start had both"
    assert "Down: node2 (Not responding)." in old.detail
    assert old.lost_nodes == ("node2",)


def test_history_outranks_what_the_nodes_look_like(head: Head) -> None:
    head.fake.config(accounting="accounting_storage/slurmdbd")
    head.fake.sacct(["7|NODE_FAIL|0:0|node[1-2]", "7|PENDING|0:0|None"])
    head.fake.jobs([RUNNING])
    head.look()
    head.fake.jobs([requeued(1)])
    head.look()
    assert head.doc("slurm.ml.7").requeued_by is EndedBy.SLURM


def test_an_ended_job_that_goes_back_was_put_back_by_a_person_unless_by_us(head: Head) -> None:
    head.fake.jobs(
        [RUNNING | {"State": "FAILED", "EndTime": "1795278000", "Reason": "NonZeroExitCode", "ExitCode": "3:0"}]
    )
    head.look()
    assert head.doc("slurm.ml.7").exit_code == 3
    head.fake.jobs([requeued(1)])
    head.look()
    old = head.doc("slurm.ml.7")
    assert (old.requeued_by, old.ended_by, old.exit_code) == (EndedBy.USER, EndedBy.ITSELF, 3)
    head.journal.requeued.add("slurm.ml.7.r2")
    head.fake.jobs([requeued(1) | {"State": "CANCELLED", "EndTime": "1795279100"}])
    head.look()
    head.fake.jobs([requeued(2)])
    head.look()
    assert head.doc("slurm.ml.7.r1").requeued_by is EndedBy.AGENT


@pytest.mark.parametrize("by_us", [True, False])
def test_who_cancelled(head: Head, by_us: bool) -> None:
    head.fake.jobs([RUNNING])
    head.look()
    if by_us:
        head.journal.ended.add("slurm.ml.7")
    head.fake.jobs([RUNNING | {"State": "CANCELLED", "EndTime": "1795278000"}])
    head.look()
    assert head.doc("slurm.ml.7").ended_by is (EndedBy.AGENT if by_us else EndedBy.USER)


@pytest.mark.parametrize(
    ("word", "by", "uid"),
    [
        ("CANCELLED by 0", EndedBy.ADMIN, 0),
        ("CANCELLED by 64030", EndedBy.ADMIN, 64030),
        ("CANCELLED by 1000", EndedBy.USER, 1000),
        ("CANCELLED", EndedBy.UNKNOWN, None),
        ("RUNNING", EndedBy.UNKNOWN, None),
    ],
)
@pytest.mark.parametrize("is_forgotten", [False, True])
def test_root_and_slurms_own_user_are_told_apart_from_the_owner(
    head: Head, word: str, by: EndedBy, uid: int | None, is_forgotten: bool
) -> None:
    head.fake.config(accounting="accounting_storage/slurmdbd", slurm_user="slurm(64030)")
    head.fake.jobs([RUNNING])
    head.look()
    head.fake.sacct([f"7|{word}|0:15|node[1-2]"])
    head.fake.jobs(
        [] if is_forgotten else [RUNNING | {"State": "CANCELLED", "EndTime": str(int(head.now.timestamp()))}]
    )
    head.look()
    doc = head.doc("slurm.ml.7")
    if is_forgotten and uid is None:
        by = EndedBy.USER if word == "CANCELLED" else EndedBy.UNKNOWN
    assert (doc.ended_by, doc.cancelled_by) == (by, uid)


def test_root_is_the_owner_of_its_own_jobs(head: Head) -> None:
    head.fake.config(accounting="accounting_storage/slurmdbd")
    head.fake.jobs([RUNNING | {"UserName": "root"}])
    head.look()
    head.fake.sacct(["7|CANCELLED by 0|0:15|node[1-2]"])
    head.fake.jobs([RUNNING | {"UserName": "root", "State": "CANCELLED", "EndTime": str(int(head.now.timestamp()))}])
    head.look()
    assert head.doc("slurm.ml.7").ended_by is EndedBy.USER


def test_who_cancelled_is_asked_again_until_accounting_tells(head: Head) -> None:
    head.fake.config(accounting="accounting_storage/slurmdbd")
    head.fake.jobs([RUNNING])
    head.look()
    head.fake.sacct(["7|RUNNING|0:0|node[1-2]"])
    head.fake.jobs([RUNNING | {"State": "CANCELLED", "EndTime": str(int(head.now.timestamp()))}])
    head.look()
    assert head.doc("slurm.ml.7").ended_by is EndedBy.UNKNOWN
    head.fake.sacct(["7|CANCELLED by 0|0:15|node[1-2]"])
    head.look()
    assert head.doc("slurm.ml.7").ended_by is EndedBy.ADMIN


def test_a_failed_start_says_why_in_its_own_words(head: Head, tmp_path: Path) -> None:
    out = tmp_path / "slurm-7.out"
    out.write_text(
        "step 10 loss 2.1\n" * 20000 + "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n"
    )
    job = RUNNING | {"STDOUT": str(tmp_path / "slurm-%j.out"), "STDERR": str(tmp_path / "slurm-%j.out")}
    head.fake.jobs([job])
    head.look()
    head.fake.jobs([job | {"State": "FAILED", "EndTime": "1795278000", "ExitCode": "1:0"}])
    head.look()
    detail = head.doc("slurm.ml.7").detail
    assert "CUDA out of memory" in detail
    out.write_text("nothing any more")
    head.start()
    head.look()
    assert head.doc("slurm.ml.7").detail == detail, "told once, and kept"


def test_a_restarted_agent_goes_on_where_it_was(head: Head) -> None:
    head.fake.jobs([RUNNING])
    head.look()
    head.start()
    assert head.look().news == ()
    head.start()
    head.fake.jobs([requeued(1)])
    head.look()
    assert head.doc("slurm.ml.7").nodes == ("node1", "node2"), "remembered from the process before"
    assert head.doc("slurm.ml.7").successor == "slurm.ml.7.r1"


def test_starts_before_the_first_look_have_documents_but_never_over_better_ones(head: Head) -> None:
    head.fake.jobs([RUNNING])
    head.look()
    head.fake.jobs([requeued(1)])
    head.look()
    before = head.board["clusters/ml/attempts/slurm.ml.7.json"]
    head.memory.all.clear()
    head.start()
    head.fake.jobs([RUNNING | {"RestartCnt": "3", "SubmitTime": "1795279900"}])
    head.look()
    assert head.board["clusters/ml/attempts/slurm.ml.7.json"] == before
    assert head.doc("slurm.ml.7.r1").successor == "slurm.ml.7.r2"
    assert head.doc("slurm.ml.7.r2").successor == "slurm.ml.7.r3"
    assert head.doc("slurm.ml.7.r2").requeued_by is EndedBy.UNKNOWN
    assert head.doc("slurm.ml.7.r3").state is SlurmState.RUNNING


def test_slurmctld_away_is_no_job_gone(head: Head) -> None:
    head.fake.jobs([RUNNING])
    head.look()
    head.fake.away(True)
    with pytest.raises(SlurmUnavailable):
        head.look()
    head.fake.away(False)
    head.fake.jobs([])
    head.fake.config(up_s=5)
    for _ in range(40):  # also when it has answered for a while: nothing counts before it has been up long enough
        reading = head.look()
    assert head.doc("slurm.ml.7").state is SlurmState.RUNNING
    assert any("is up for 5 s" in problem for problem in reading.problems)
    head.fake.config(up_s=600)
    head.look()
    doc = head.doc("slurm.ml.7")
    assert (doc.state, doc.is_known) == (SlurmState.GONE, False)
    assert "how it ended is not known" in doc.detail
    assert head.memory.items("watch/attempt/") == {}
    assert head.look().documents == {}


def test_a_job_that_is_forgotten_ended_as_sacct_says(head: Head) -> None:
    head.fake.config(accounting="accounting_storage/slurmdbd")
    head.fake.jobs([RUNNING])
    head.look()
    head.fake.sacct(["7|CANCELLED by 1000|0:0|node[1-2]", "7.batch|CANCELLED|0:15|node1"])
    head.fake.jobs([])
    head.look()
    doc = head.doc("slurm.ml.7")
    assert (doc.state, doc.ended_by, doc.is_known) == (SlurmState.CANCELLED, EndedBy.USER, False)
    assert "sacct says CANCELLED by 1000" in doc.detail


def test_an_ended_job_that_is_forgotten_only_cannot_be_requeued_any_more(head: Head) -> None:
    head.fake.jobs([RUNNING | {"State": "COMPLETED", "EndTime": "1795278000"}])
    head.look()
    head.fake.jobs([])
    head.look()
    doc = head.doc("slurm.ml.7")
    assert (doc.state, doc.is_known, doc.ended_by) == (SlurmState.COMPLETED, False, EndedBy.ITSELF)


def test_a_submission_of_ours_has_the_name_in_its_comment(head: Head) -> None:
    head.saw(7, "ml")
    head.fake.jobs([{"JobID": "9", "Comment": "rekindle:p,job=slurm.ml.7,attempt=slurm.ml.7-a2", "RestartCnt": "1"}])
    head.look()
    doc = head.doc("slurm.ml.7-a2.r1")
    assert (doc.job_id, doc.slurm_job) == ("slurm.ml.7", 9)
    found = head.commands.find_by_attempt("slurm.ml.7-a2")
    assert found is not None
    assert found.attempt == "slurm.ml.7-a2.r1"


@pytest.mark.parametrize(
    ("theirs", "is_there"),
    [
        ({"Comment": "rekindle,mailbox=/fsx/lm"}, True),
        ({"Comment": "rekindle,mailbox=/fsx/lm/", "State": "PENDING"}, True),
        ({"Comment": "rekindle,job=slurm.ml.7"}, True),
        (
            {"Comment": "rekindle,mailbox=/fsx/lm", "State": "PENDING", "Dependency": "afterany:7(unfulfilled)"},
            False,
        ),
        ({"Comment": "rekindle,mailbox=/fsx/lm", "State": "COMPLETED"}, False),
        ({"Comment": "rekindle,mailbox=/fsx/lm", "UserName": "mallory"}, False),
        ({"Comment": "rekindle,job=slurm.ml.7", "UserName": "mallory"}, False),
        ({"Comment": "rekindle,mailbox=/fsx/other"}, False),
        ({"Comment": "mailbox=/fsx/lm"}, False),
        ({"Comment": "rekindle,mailbox=/fsx//lm/"}, True),
        ({"Comment": "rekindle", "Dependency": "afterany:7(unfulfilled)"}, True),
    ],
)
def test_a_run_beside_an_order_is_told_by_its_user_job_and_mailbox(
    head: Head, theirs: dict[str, str], is_there: bool
) -> None:
    alice = {"UserName": "alice"}
    head.fake.jobs([RUNNING | alice | {"Comment": "rekindle,mailbox=/fsx/lm"}])
    head.look()
    old = head.doc("slurm.ml.7")
    held = RUNNING | alice | {"State": "PENDING", "PriorityLong": "0"}
    head.fake.jobs([held, {"JobID": "9", **alice, **theirs}])
    found = head.commands.sibling(old, besides={7})
    assert (found.slurm_job if found is not None else None) == (9 if is_there else None)
    assert head.commands.sibling(old, besides={7, 9}) is None


@pytest.mark.parametrize(
    "claim",
    [
        "job=slurm.ml.7",
        "job=slurm.ml.7,attempt=slurm.ml.7-a2",
        "attempt=slurm.ml.7-a2",
        "job=slurm.ml.7,attempt=slurm.ml.9-a2",
        "job=slurm.ml.9,attempt=slurm.ml.7-a2",
        "job=slurm.ml.7-a2",
        "job=slurm.other.9",
        "job=a-training-job-of-somebody",
    ],
)
@pytest.mark.parametrize("was_restarted", [False, True])
def test_nobody_joins_another_users_job(head: Head, claim: str, was_restarted: bool) -> None:
    """Its mailbox, its fence and its next attempt would be his."""
    head.fake.jobs([RUNNING | {"UserName": "alice"}])
    head.look()
    if was_restarted:  # slurmctld has forgotten the first start, and this is a new agent: the whiteboard knows
        head.memory.all.clear()
        head.start()
    head.fake.jobs([{"JobID": "9", "UserName": "mallory", "Comment": f"rekindle,mailbox=/fsx/m,{claim}"}])
    head.look()
    doc = head.doc("slurm.ml.9")
    assert (doc.job_id, doc.slurm_job) == (None, 9)
    assert "someone else" in doc.detail
    assert head.commands.find_by_attempt("slurm.ml.7-a2") is None
    (member,) = (member for member in head.followed_jobs.members() if member.slurm_job == 9)
    assert member.job_id == "slurm.ml.9"
    head.fake.jobs([{"JobID": "11", "UserName": "alice", "Comment": "rekindle,job=slurm.ml.7,attempt=slurm.ml.7-a2"}])
    head.look()
    assert head.doc("slurm.ml.7-a2").job_id == "slurm.ml.7", "its own user may"


def test_a_claim_that_cannot_be_judged_now_is_judged_later(head: Head) -> None:
    class Away(dict[str, bytes]):
        def get(self, key: str, *_: object) -> None:  # type: ignore[override]
            if "slurm.ml.7" in key:
                raise Unreadable("S3 is away")

    head.board = Away()
    head.start()
    head.fake.jobs([{"JobID": "9", "Comment": "rekindle,job=slurm.ml.7"}, {"JobID": "10"}])
    reading = head.watch.read(head.now)
    assert [key for key in reading.documents if "attempts/" in key] == ["clusters/ml/attempts/slurm.ml.10.json"]
    assert any("S3 is away" in line for line in reading.problems)


def test_thousands_of_false_claims_ask_little(head: Head) -> None:
    asked = []

    class Board(dict[str, bytes]):
        def get(self, key: str, *_: object) -> None:  # type: ignore[override]
            asked.append(key)

    head.board = Board()
    head.start()
    false = [
        {"JobID": str(10 + n), "UserName": "mallory", "Comment": f"rekindle,job=slurm.ml.{900 + n}"} for n in range(30)
    ]
    head.fake.jobs([*false, {"JobID": "99", "UserName": "alice", "Comment": "rekindle,job=slurm.ml.1"}])
    head.look()
    owners = [
        key for key in asked if "/attempts/" in key and key.split(".")[2] not in {str(job) for job in range(10, 100)}
    ]
    assert len(owners) == 21, "twenty for the one, and one for the other"


def test_a_job_that_never_asked_for_protection_is_left_alone(head: Head) -> None:
    head.fake.jobs([{"JobID": "8", "Comment": "(null)"}, {"JobID": "7"}])
    head.look()
    with pytest.raises(NotProtected):
        head.commands.job(8)
    head.fake.jobs([{"JobID": "7", "Comment": "(null)"}])
    assert head.commands.job(7) is not None, "a comment that is changed later does not unprotect a job"


def test_nobody_takes_another_jobs_name(head: Head) -> None:
    names = {"8": "slurm.ml.7", "9": "slurm.x.9", "10": "slurm.ml.7-a2", "11": "slurm.ml.7-a2"}
    claims = [{"JobID": job, "Comment": f"rekindle,attempt={name}"} for job, name in names.items()]
    head.fake.jobs([RUNNING, *claims])
    head.look()
    assert {attempt: head.doc(attempt).slurm_job for attempt, _ in told(head)} == {
        "slurm.ml.7": 7,
        "slurm.ml.8": 8,
        "slurm.ml.9": 9,
        "slurm.ml.7-a2": 10,
        "slurm.ml.11": 11,
    }


def test_arrays_het_jobs_and_interactive_ones_are_said_to_be_so(head: Head) -> None:
    head.fake.jobs(
        [
            {"JobID": "20", "ArrayJobID": "20", "ArrayTaskID": "2-9%1"} | {"State": "PENDING"},
            {"JobID": "21", "ArrayJobID": "20", "ArrayTaskID": "1"},
            {"JobID": "30", "HetJobID": "30", "HetJobOffset": "0"},
            {"JobID": "31", "HetJobID": "30", "HetJobOffset": "1"},
            {"JobID": "40", "BatchFlag": "0"},
        ]
    )
    head.look()
    assert sorted(attempt for attempt, _ in told(head)) == ["slurm.ml.21", "slurm.ml.30", "slurm.ml.40"]
    assert "array" in head.doc("slurm.ml.21").cannot_resubmit[0]
    assert "heterogeneous" in head.doc("slurm.ml.30").cannot_resubmit[0]
    assert "salloc" in head.doc("slurm.ml.40").cannot_resubmit[0]
    assert not head.doc("slurm.ml.40").is_requeueable


def test_dependents_and_the_spec_stand_in_the_document(head: Head) -> None:
    head.fake.jobs(
        [RUNNING, {"JobID": "8", "State": "PENDING", "Dependency": "afterok:7(unfulfilled)", "Comment": "(null)"}]
    )
    head.look()
    doc = head.doc("slurm.ml.7")
    assert doc.dependents == (8,)
    assert doc.spec is not None
    assert not [key for key in head.board if doc.spec in key], "what is kept of its submission is not published"
    assert doc.has_auto_resume is False


def test_a_signal_would_be_lost_without_a_step(head: Head) -> None:
    head.fake.jobs([RUNNING])
    head.look()
    assert head.doc("slurm.ml.7").is_ready is False
    assert head.commands.steps(7) == 0
    head.fake.steps({"7": 2})
    head.look()
    assert head.doc("slurm.ml.7").is_ready is None, "a step runs; whether it catches the signal nobody sees here"
    assert head.commands.steps(7) == 2


def test_a_heartbeat_in_a_mailbox_on_a_shared_path_says_that_the_run_is_ready(head: Head, tmp_path: Path) -> None:
    box = tmp_path / "box"
    head.fake.jobs([RUNNING | {"Comment": f"rekindle,mailbox=file://{box}"}])
    head.fake.steps({"7": 1})
    head.look()
    assert head.doc("slurm.ml.7").is_ready is None
    heartbeat = Heartbeat(
        job_id="slurm.ml.7",
        attempt="slurm.ml.7",
        attempt_number=1,
        step=3,
        first_step=0,
        loss=1.0,
        loss_state=LossState.FINITE,
        phase=RunPhase.TRAINING,
        step_s_median=1.0,
        rank=0,
        world_size=1,
        at=head.now,
    )
    path = box / heartbeat_key("slurm.ml.7")
    path.parent.mkdir(parents=True)
    path.write_bytes(heartbeat.to_json())
    head.look()
    assert head.doc("slurm.ml.7").is_ready
    doc = head.commands.job(7)
    assert doc is not None
    assert doc.is_ready


def test_where_a_run_meets_the_service_is_told_by_its_real_path_wherever_it_is_named(
    head: Head, tmp_path: Path
) -> None:
    box = tmp_path / "box"
    box.mkdir()
    (tmp_path / "link").symlink_to(box)
    named = ("", f"mailbox={box}/", f"mailbox=/{tmp_path}//link", f"mailbox=file://{tmp_path}/link")
    head.fake.jobs(
        [RUNNING | {"JobID": str(7 + n), "Comment": f"rekindle,{word}"} for n, word in enumerate(named)]
        + [RUNNING | {"JobID": "11", "script": f'#!/bin/bash\nexport REKINDLE_MAILBOX="{tmp_path}/link"\nsrun train\n'}]
    )
    head.look()
    places = [head.doc(f"slurm.ml.{7 + n}").places for n in range(5)]
    assert [place.mailbox if place is not None else None for place in places] == ["", *[str(box.resolve())] * 4]
    assert head.doc("slurm.ml.11").mailbox == f"{tmp_path}/link"


def test_a_dependency_that_is_satisfied_is_not_asked_for_again(head: Head) -> None:
    def dependency() -> str:
        sha = head.doc("slurm.ml.7").spec
        assert sha is not None
        kept = head.watch.spec(sha)
        assert kept is not None
        return kept.dependency

    head.fake.jobs([PENDING | {"Dependency": "afterok:5(unfulfilled)"}])
    head.look()
    assert dependency() == "afterok:5"
    head.fake.jobs([RUNNING])
    head.look()
    assert dependency() == ""


def test_a_script_that_wants_a_signal_before_its_time_limit_saves_on_it(head: Head) -> None:
    script = "#!/bin/bash\n#SBATCH --signal=USR2@120\nsrun python train.py\n"
    head.fake.jobs([RUNNING | {"script": script}, {"JobID": "8", "script": script, "Comment": "rekindle,signal=USR1"}])
    head.look()
    assert head.doc("slurm.ml.7").signal == "USR2"
    assert head.doc("slurm.ml.8").signal == "USR1", "the comment counts more"


def test_nodes_are_told_when_they_change_and_jobs_on_them_are_no_news(head: Head) -> None:
    head.resources.write_text(
        json.dumps(
            {
                "ClusterConfig": {"ClusterArn": "arn:aws:sagemaker:us-west-2:111122223333:cluster/k3v9m2x7q1ab"},
                "InstanceGroups": [
                    {
                        "Name": "gpu",
                        "Instances": [{"CustomerIpAddress": "10.1.0.7", "InstanceId": "i-0a1b2c3d4e5f60718"}],
                    }
                ],
            }
        )
    )
    head.fake.nodes(["ip-10-1-0-7", node_line("node2", "IDLE+DRAIN", "rekindle:inc-1")])
    head.look()
    first, second = head.nodes().nodes
    assert (first.instance_id, first.group) == ("i-0a1b2c3d4e5f60718", "gpu")
    assert (second.flags, second.reason, second.instance_id) == (("drain",), "rekindle:inc-1", None)
    assert [news.detail["node"] for news in head.news] == ["node2"], "of a good node there is nothing to say at first"
    assert head.watch.cluster_arn.endswith("k3v9m2x7q1ab")
    head.fake.jobs([RUNNING | {"NodeList": "ip-10-1-0-7"}])
    reading = head.look()
    assert head.nodes().nodes[0].jobs == (7,)
    assert [one.type for one in reading.news] == [NewsType.JOB]
    head.fake.nodes([node_line("ip-10-1-0-7", "DOWN*", "Not responding"), node_line("node2", "IDLE")])
    news = head.look().news
    assert [(one.detail["node"], one.detail["state"]) for one in news] == [("ip-10-1-0-7", "down"), ("node2", "idle")]
    assert news[0].detail["instance_id"] == "i-0a1b2c3d4e5f60718"


def test_a_node_on_which_jobs_do_not_come_to_their_end_is_news_after_a_limit(head: Head) -> None:
    head.fake.nodes([node_line("node1", "IDLE+COMPLETING"), node_line("node2", "MIXED+COMPLETING")])
    ended_at = head.now.replace(microsecond=0)
    ending = RUNNING | {"State": "COMPLETING", "EndTime": head.now.strftime("%Y-%m-%dT%H:%M:%S")}
    head.fake.jobs([ending | {"NodeList": "node[1-2]"}, RUNNING | {"JobID": "8", "NodeList": "node2"}])
    head.look()
    assert [node.ending_since for node in head.nodes().nodes] == [None, None]
    head.now += ENDING_TAKES + timedelta(seconds=5)
    (news,) = [news for news in head.look().news if news.type is NewsType.NODE]
    assert (news.detail["node"], news.detail["ending_since"]) == ("node1", ended_at.isoformat()), "on node2 one runs"
    assert [node.ending_since for node in head.nodes().nodes] == [ended_at, None]
    head.fake.nodes(["node1", "node2"])
    head.fake.jobs([])
    head.look()
    assert [node.ending_since for node in head.nodes().nodes] == [None, None]


def test_a_replaced_instance_is_news_though_the_name_stays(head: Head) -> None:
    config = {
        "InstanceGroups": [
            {"Name": "gpu", "Instances": [{"CustomerIpAddress": "10.1.0.7", "InstanceId": "i-0a1b2c3d"}]}
        ]
    }
    head.resources.write_text(json.dumps(config))
    head.fake.nodes(["ip-10-1-0-7"])
    head.look()
    head.resources.write_text(json.dumps(config).replace("i-0a1b2c3d", "i-0ffffffffffffffff"))
    (news,) = head.look().news
    assert news.detail["instance_id"] == "i-0ffffffffffffffff"
    head.resources.write_text("{half a fi")
    head.look()
    assert head.nodes().nodes[0].instance_id == "i-0ffffffffffffffff", "a file that is being written changes nothing"


def test_one_job_that_cannot_be_read_hides_no_other(head: Head) -> None:
    head.fake.jobs([{"JobID": "6", "NodeList": "node[1-"}, RUNNING])
    reading = head.look()
    assert told(head) == [("slurm.ml.7", "running")]
    assert any("job 6" in problem for problem in reading.problems)


def test_a_comment_that_is_changed_later_does_not_lose_the_job(head: Head) -> None:
    head.fake.jobs([RUNNING | {"Comment": "rekindle:gentle"}])
    head.look()
    head.fake.jobs([RUNNING | {"Comment": "(null)", "State": "FAILED", "EndTime": "1795278000"}])
    head.look()
    doc = head.doc("slurm.ml.7")
    assert (doc.state, doc.policy) == (SlurmState.FAILED, "gentle")


def test_the_relay_is_told_whose_mailboxes_there_are(head: Head) -> None:
    head.saw(3, "ml")
    head.fake.jobs([RUNNING | {"Comment": "rekindle,mailbox=file:///fsx/box,checkpoints=/fsx/ck,job=slurm.ml.3"}])
    head.look()
    (member,) = head.followed_jobs.members()
    assert (member.job_id, member.mailbox, member.checkpoints) == ("slurm.ml.3", "file:///fsx/box", "/fsx/ck")
    assert member.uid == os.getuid()
