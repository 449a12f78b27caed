"""Recorded and documented outputs of Slurm 22.05 to 25.11, read."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from rekindle.protocol.cluster.documents import SlurmState
from rekindle.protocol.cluster.node_states import read_state
from rekindle.slurm_agent.reading import jobs, text
from rekindle.slurm_agent.reading.jobs import (
    format_of,
    parse_detail,
    parse_jobs,
    parse_steps,
    plain_dependency,
    repointed,
)
from rekindle.slurm_agent.reading.nodes import parse_nodes, parse_settings
from rekindle.slurm_agent.reading.run import Unreadable

RECORDED = Path(__file__).parent / "recorded"
MARK = "0123456789ab"
NOW = datetime(2026, 11, 21, 16, 7, tzinfo=UTC)


def recorded(name: str) -> str:
    return (RECORDED / name).read_text()


def squeue(name: str) -> dict[int, jobs.Job]:
    _, between, end = format_of(jobs.COLUMNS, MARK)
    return {job.job: job for job in parse_jobs(recorded(name), between, end, NOW)}


@pytest.mark.parametrize("name", ["22.05-squeue.txt", "23.11-squeue.txt"])
def test_all_jobs_of_squeue_are_read(name: str) -> None:
    found = squeue(name)
    assert sorted(found) == [25, 26, 27, 28, 29, 30, 31]
    train = found[25]
    assert (train.name, train.state, train.nodes(), train.restart) == (
        "train 7B lr=3e-4",
        SlurmState.RUNNING,
        ("node1", "node2"),
        0,
    )
    assert train.comment.startswith("rekindle:gentle,mailbox=")
    assert train.limit_s == 600
    assert train.is_batch
    assert train.may_requeue
    assert train.uid == 0
    assert train.submitted == datetime.fromtimestamp(1795277195, UTC)
    assert not train.is_lump


def test_arrays_parts_of_het_jobs_and_held_jobs_are_told() -> None:
    found = squeue("22.05-squeue.txt")
    assert found[26].is_lump, "tasks that have not started share one record"
    tasks = [job for job in found.values() if job.is_array_task and not job.is_lump]
    assert [task.step_key for task in tasks] == ["26_1"]
    assert found[28].het_job == 28
    assert not found[28].is_lump
    assert found[29].is_lump or found[30].is_lump, "the other part of the het job"
    assert found[28].is_held
    assert not found[31].is_held
    assert found[31].restart == 1


def test_steps_are_counted_without_the_batch_step() -> None:
    _, between, end = format_of(jobs.STEP_COLUMNS, MARK)
    assert parse_steps(recorded("22.05-steps.txt"), between, end) == {"25": 1}


def test_a_row_that_a_user_forged_is_no_row() -> None:
    """The marks differ from call to call: a name with somebody else's marks stays a name."""
    name = f"x|{MARK}|0|{MARK}#\n666|{MARK}|0"
    columns = ["7", "0", "1000", "ml", "1000", "RUNNING", *["N/A"] * 20, "cmd", name, "rekindle"]
    between, end = "|other|", "|other#"
    (job,) = parse_jobs(between.join(columns) + end + "\n", between, end, NOW)
    assert (job.job, job.name, job.comment) == (7, name, "rekindle")


@pytest.mark.parametrize("cut", [2, 40, 300, 900])
def test_an_output_that_breaks_off_is_not_half_a_truth(cut: int) -> None:
    whole = recorded("22.05-squeue.txt")
    _, between, end = format_of(jobs.COLUMNS, MARK)
    with pytest.raises(Unreadable):
        parse_jobs(whole[:-cut], between, end, NOW)


def test_a_requeued_job_that_still_ends_is_told_from_one_that_ends() -> None:
    between, end = "|m|", "|m#"
    columns = dict.fromkeys(jobs.COLUMNS, "N/A") | {"JobID": "18", "RestartCnt": "1", "State": "COMPLETING"}

    def read(ends: str) -> bool:
        row = between.join((columns | {"EndTime": ends}).values()) + end
        return parse_jobs(row, between, end, NOW)[0].is_taken_down

    assert read("1795277541"), "its end is expected, minutes from now"
    assert read("NONE")
    assert not read("1795277219"), "it has ended"


def test_of_many_records_only_those_count_that_are_surely_the_jobs_own() -> None:
    def job(number: int, state: str = "RUNNING", name: str = "x") -> jobs.Job:
        columns = dict.fromkeys(jobs.COLUMNS, "")
        columns |= {"JobID": str(number), "RestartCnt": "0", "State": state, "Name": name}
        (found,) = parse_jobs("|m|".join(columns.values()) + "|m#", "|m|", "|m#", NOW)
        return found

    def record(number: int, name: str = "x") -> str:
        return f"JobId={number} JobName={name} UserId=ann(1) Requeue=1\n"

    forged = "x\nJobId=2 JobName=x UserId=ann(1) Requeue=0"
    output = record(1, forged) + record(2) + record(3) + record(4) + record(12)
    asked = [job(1, name=forged), job(2), job(3), job(4, "COMPLETED"), job(5)]
    found = jobs.parse_details(output, asked)
    assert 2 not in found, "somebody else's name says what would be its record"
    assert found[3]["Requeue"] == "1"
    assert found.keys() == {3}, "an ended job may have gone, and the record then be a forgery alone"


def test_an_output_file_that_nobody_named_is_slurms_own() -> None:
    columns = dict.fromkeys(jobs.COLUMNS, "") | {"JobID": "18", "RestartCnt": "0", "State": "RUNNING"}
    (job,) = parse_jobs("|m|".join(columns.values()) + "|m#", "|m|", "|m#", NOW)
    assert (job.stdout, job.stderr) == ("slurm-%j.out", "slurm-%j.out")


@pytest.mark.parametrize(
    ("word", "state"),
    [
        ("RUNNING", SlurmState.RUNNING),
        ("CANCELLED by 1000", SlurmState.CANCELLED),
        ("CANCELLED+", SlurmState.CANCELLED),
        ("COMPLETING", SlurmState.COMPLETING),
        ("REQUEUE_HOLD", SlurmState.PENDING),
        ("REQUEUED", SlurmState.COMPLETING),
        ("OUT_OF_MEMORY", SlurmState.OUT_OF_MEMORY),
        ("NODE_FAIL", SlurmState.NODE_FAIL),
        ("SOMETHING_NEW", SlurmState.UNKNOWN),
        ("GONE", SlurmState.UNKNOWN),
        ("", SlurmState.UNKNOWN),
    ],
)
def test_states(word: str, state: SlurmState) -> None:
    assert jobs.state_of(word) is state


def test_scontrol_of_2202_and_2302_is_read() -> None:
    old = parse_detail(recorded("22.05-show-job.txt"), squeue("22.05-squeue.txt")[25])
    assert old["JobId"] == "25"
    assert old["Command"].endswith("/j.sh x y z")
    assert old["TRES"].startswith("cpu=2")
    new = parse_detail(recorded("23.02-show-job.txt"))
    assert new["ExcNodeList"] == "ip-10-1-0-[7,9]"
    assert new["Comment"] == "rekindle:default,mailbox=file:///fsx/ml/box,signal=B:USR1"
    assert new["AdminComment"] == "a note with = in it"
    assert new["MailType"] == "FAIL,REQUEUE"
    assert new["NtasksPerN:B:S:C"] == "8:0:*:*"


def test_a_jobs_name_cannot_pass_for_a_field() -> None:
    columns = dict.fromkeys(jobs.COLUMNS, "N/A") | {"JobID": "90", "RestartCnt": "0", "Comment": "rekindle"}
    columns["Name"] = "x UserId=root(0) Comment=evil"
    row = "|m|".join(columns.values()) + "|m#"
    (job,) = parse_jobs(row, "|m|", "|m#", NOW)
    found = parse_detail(recorded("24.11-show-job.txt"), job)
    assert found["UserId"] == "ml(1000)"
    assert found["Comment"] == "rekindle"
    assert found["NumNodes"] == "2-4"


def test_nodes_of_all_versions() -> None:
    old = {node.name: node for node in parse_nodes(recorded("22.05-show-node.txt"))}
    assert [node.state for node in old.values()] == ["allocated", "mixed", "down", "idle", "idle"]
    assert old["node4"].flags == ("drain",)
    assert old["node4"].reason == "rekindle:inc-1"
    assert old["node5"].reason == "Action:Replace"
    assert old["node3"].booted == datetime.fromtimestamp(1795262212, UTC)
    (cloud,) = parse_nodes(recorded("24.05-show-node.txt"))
    assert (cloud.instance_id, cloud.flags, cloud.address) == ("i-0eb8d995282aaaa11", ("cloud",), "192.168.127.110")
    (new,) = parse_nodes(recorded("25.05-show-node.txt"))
    assert (new.state, new.flags) == ("down", ("drain", "not_responding"))
    assert new.booted is None
    assert new.extra.startswith("gpus=GPU-")
    assert new.instance_id == "i-0123456789abcdef0"
    strange = parse_nodes(recorded("25.11-show-node.txt"))
    assert [(node.name, node.state) for node in strange] == [("ip-10-1-0-8", "idle"), ("ip-10-1-0-9", "unknown")]
    assert strange[0].flags == ("reboot_issued", "planned", "something_new")


@pytest.mark.parametrize(
    ("written", "reason"),
    [
        ("bob: bad fan [root@1795277195]", "bob: bad fan"),
        ("  [root@1795277195]", ""),  # a blank one, which 24.11 shows beyond a resume
        ("bob: see wiki[a@b] [root@1795277195]", "bob: see wiki[a@b]"),
        ("bob: see wiki[a@b]", "bob: see wiki[a@b]"),
        ("Not responding [slurm@1795277195] ReservationName=root_1", "Not responding"),
    ],
)
def test_a_nodes_reason_is_read_without_its_writer(written: str, reason: str) -> None:
    (node,) = parse_nodes(f"NodeName=n1 CoresPerSocket=1 State=DOWN NodeAddr=n1 Reason={written}")
    assert node.reason == reason


@pytest.mark.parametrize(
    ("written", "state", "flags"),
    [
        ("DOWN*", "down", ("not_responding",)),
        ("IDLE+DRAIN", "idle", ("drain",)),
        ("drained~", "idle", ("drain", "powered_down")),
        ("mixed-", "mixed", ("planned",)),
        ("ALLOCATED#", "allocated", ("powering_up",)),
        ("idle%", "idle", ("powering_down",)),
        ("idle!", "idle", ("power_down",)),
        ("idle$", "idle", ("maintenance",)),
        ("idle@", "idle", ("reboot_requested",)),
        ("idle^", "idle", ("reboot_issued",)),
        ("failg*", "allocated", ("fail", "not_responding")),
        ("MIXED+CLOUD+INVALID_REG", "mixed", ("cloud", "invalid_reg")),
        ("", "unknown", ()),
        ("+++", "unknown", ()),
    ],
)
def test_node_states_and_their_flags(written: str, state: str, flags: tuple[str, ...]) -> None:
    assert read_state(written) == (state, flags)


def test_the_configuration() -> None:
    found = parse_settings(recorded("22.05-show-config.txt"))
    assert found.version == "22.05.8"
    assert found.cluster == "lab"
    assert found.has_history
    assert not found.has_accounting
    assert found.up_s > 0
    with pytest.raises(Unreadable):
        parse_settings("nothing of the kind")


@pytest.mark.parametrize(
    ("written", "names"),
    [
        ("node1", ["node1"]),
        ("node[1-3,7]", ["node1", "node2", "node3", "node7"]),
        ("node[08-11]", ["node08", "node09", "node10", "node11"]),
        ("a[1-2]b[3-4]", ["a1b3", "a1b4", "a2b3", "a2b4"]),
        ("ip-10-1-0-[1-2],ip-10-1-1-5", ["ip-10-1-0-1", "ip-10-1-0-2", "ip-10-1-1-5"]),
        ("(null)", []),
        ("", []),
    ],
)
def test_lists_of_hosts(written: str, names: list[str]) -> None:
    assert list(text.hosts(written)) == names


@pytest.mark.parametrize("written", ["a[1-", "a]1[", "a[2-1]", "a[x]", "a[[1]]", "a[1-999999999]", "a[0-999]b[0-999]"])
def test_lists_of_hosts_that_are_none(written: str) -> None:
    with pytest.raises(Unreadable):
        text.hosts(written)


def test_a_long_list_of_hosts_is_read_whole() -> None:
    assert len(text.hosts("ip-10-1-0-[1-250],ip-10-1-1-[1-250]")) == 500


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        ("10:00", 600),
        ("1-00:00:00", 86400),
        ("2-03", 183600),
        ("01:02:03", 3723),
        ("5", 300),
        ("UNLIMITED", None),
        ("Partition_Limit", None),
        ("NOT_SET", None),
    ],
)
def test_durations(written: str, seconds: int | None) -> None:
    assert text.seconds(written) == seconds


def test_times() -> None:
    assert text.moment("1795277195") == datetime.fromtimestamp(1795277195, UTC)
    assert text.moment("2026-11-21T15:36:50+01:00") == datetime(2026, 11, 21, 14, 36, 50, tzinfo=UTC)
    assert [text.moment(word) for word in ("Unknown", "N/A", "None", "(null)", "", "0", "99999999999999", "soon")] == [
        None
    ] * 8


def test_dependencies_are_taken_apart_and_put_together() -> None:
    expression = "afterok:7(unfulfilled),afterany:2_*(failed),singleton(unfulfilled)"
    assert plain_dependency(expression) == "afterok:7,afterany:2_*,singleton"
    assert repointed(expression, 7, 70) == "afterok:70,afterany:2_*,singleton"
    assert repointed(expression, 2, 20) == "afterok:7,afterany:20,singleton"
    assert repointed("afterok:71?afterany:7", 7, 8) == "afterok:71?afterany:8"
    assert repointed("afterok:71", 7, 8) is None
    assert repointed("after:7+10(unfulfilled)", 7, 8) == "after:8+10"


@pytest.mark.parametrize(
    ("shown", "status"),
    [
        ("7:0", (7, 0)),
        ("0:9", (0, 9)),
        ("1792", (7, 0)),
        ("9", (0, 9)),
        ("0", (0, 0)),
        ("", (None, None)),
        ("x:y", (None, None)),
    ],
)
def test_the_exit_status_of_steps_in_both_forms_that_squeue_has(shown: str, status: tuple[int | None, ...]) -> None:
    assert text.exit_status(shown) == status
