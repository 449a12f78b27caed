"""A copy of a job is the same job, or it is told in what it is not. On what three versions of Slurm show."""

import dataclasses
from typing import Any

import pytest

from rekindle.protocol.cluster.documents import JobSpec
from rekindle.protocol.cluster.orders import Order
from rekindle.sbatch.options import of_script
from rekindle.slurm_agent.base.ports import SlurmUnavailable
from rekindle.slurm_agent.copies import spec
from rekindle.slurm_agent.copies.capture import Captured, find_line
from rekindle.slurm_agent.copies.compare import ROWS, Rule, differences, hosts_of, shown_of
from rekindle.slurm_agent.reading.line import of_line
from tests.agent_slurm.asked import ASKED, job_in, recorded
from tests.agent_slurm.conftest import START, Head
from tests.agent_slurm.test_submit import ME, job_of, order_of, packed, spec_of

VERSIONS = ("22.05", "23.11", "24.11", "25.11", "26.05")


def taken_from(record: dict[str, Any], version: str) -> spec.CapturedSpec:
    job, detail = job_in(record, START)
    script = f"#!/bin/sh\n{ASKED[record['name']][1]}\nsleep 600\n"
    environment = Captured(kept=record["environment"], all=record["environment"])
    return spec.build_spec(
        job,
        detail,
        script=script,
        environment=environment,
        arguments=("a", "b"),
        line=record["line"],
        version=version,
    )


def found_in(before: spec.CapturedSpec, after: spec.CapturedSpec) -> tuple[str, ...]:
    assert before.spec is not None
    assert after.spec is not None
    hosts = {key: hosts_of(before.spec.shown.get(key, "")) for key in ("ReqNodeList", "ExcNodeList")}
    return differences(before.spec.shown, after.spec.shown, hosts=hosts, is_resized=False)


@pytest.mark.parametrize("version", VERSIONS)
def test_every_way_to_ask_for_a_job_can_be_captured_and_is_told_from_the_others(version: str) -> None:
    taken = {record["name"]: taken_from(record, version) for record in recorded(version)}
    assert len(taken) >= len(ASKED) - 3
    assert {name: one.cannot for name, one in taken.items() if one.cannot} == {}
    for name, one in taken.items():
        assert found_in(one, one) == ()
        alike = [other for other, two in taken.items() if other != name and not found_in(one, two)]
        assert alike == [], name


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("GPUs per task", {"gpus-per-task": "2", "ntasks": "2"}),
        ("GPUs", {"gpus": "2", "gpu-bind": "closest", "cpus-per-gpu": "1"}),
        ("GPUs as gres", {"gres": "gpu:1", "gres-flags": "enforce-binding"}),
        ("tasks per GPU", {"gpus": "2", "ntasks-per-gpu": "1"}),
        ("alone", {"exclusive": None}),
        ("alone with its user", {"exclusive": "user"}),
        ("beside others", {"oversubscribe": None}),
        ("CPUs", {"mincpus": "3"}),
        ("one or two nodes", {"nodes": "1-2"}),
        ("time", {"signal": "B:USR1@60", "time": "00:10:00", "no-requeue": None}),
        ("placement", {"spread-job": None, "kill-on-invalid-dep": "yes", "delay-boot": "5", "contiguous": None}),
        ("a plug-in's", {"auto-resume": "1"}),
    ],
)
def test_what_was_asked_for_is_asked_for_again_on_each_version(
    version: str, name: str, expected: dict[str, str | None]
) -> None:
    (record,) = [record for record in recorded(version) if record["name"] == name]
    whole = taken_from(record, version).spec
    assert whole is not None
    assert {key: whole.options.get(key, "not given") for key in expected} == expected


@pytest.mark.parametrize("version", VERSIONS[1:])
def test_what_each_task_gets_is_asked_for_as_the_script_asks_for_it(version: str) -> None:
    """sbatch takes `--gpus-per-task` or `--tres-per-task`, and reads the script's own lines too."""
    by_name = {record["name"]: taken_from(record, version).spec for record in recorded(version)}
    expected: dict[str, tuple[str | None, str | None]] = {
        "GPUs per task in the script": ("1", None),
        "TRES per task": (None, "cpu=1,gres/gpu=2"),
        "TRES per task in the script": (None, "cpu=2,gres/gpu=1"),
    }
    for name, given in expected.items():
        one = by_name[name]
        assert one is not None
        assert (one.options.get("gpus-per-task"), one.options.get("tres-per-task")) == given


def test_the_oldest_version_is_asked_for_gpus_per_task_by_the_option_that_it_knows() -> None:
    """22.05 writes `TresPerTask=gres:gpu:2`, and has no `--tres-per-task`."""
    by_name = {record["name"]: taken_from(record, "22.05").spec for record in recorded("22.05")}
    for name, expected in (("GPUs per task", "2"), ("GPUs per task in the script", "1")):
        one = by_name[name]
        assert one is not None
        assert (one.options.get("gpus-per-task"), one.options.get("tres-per-task")) == (expected, None)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_job_that_asked_for_no_number_of_nodes_is_given_none_and_shares_them_as_before(version: str) -> None:
    """24.11 shows `NumNodes=1-1` of such a job, and 26.05 `OverSubscribe=NO` of every one."""
    for record in recorded(version):
        whole = taken_from(record, version).spec
        assert whole is not None
        asks = "-N" in " ".join(ASKED[record["name"]][0])
        assert ("nodes" in whole.options) is asks, record["name"]
        assert ("exclusive" in whole.options) is record["name"].startswith("alone")


def test_a_field_that_nobody_has_heard_of_must_be_equal() -> None:
    same = {"(Slurm)": "27.05", "Novelty": "1"}
    assert differences(same, same, hosts={}, is_resized=False) == ()
    assert differences(same, {"(Slurm)": "27.05"}, hosts={}, is_resized=False) == (
        "Novelty was '1', and would be nothing",
    )


def test_after_an_upgrade_what_both_versions_show_is_compared() -> None:
    before, after = {"(Slurm)": "24.11", "Old": "1", "Features": "a"}, {"(Slurm)": "26.05", "New": "1", "Features": "b"}
    assert differences(before, after, hosts={}, is_resized=False) == ("Features was 'a', and would be 'b'",)


def test_figures_that_slurm_replaces_when_it_gives_nodes_count_while_neither_has_had_any() -> None:
    waiting, ran = {"(state)": "waiting", "NumTasks": "1"}, {"(state)": "running", "NumTasks": "2"}
    other = {"(state)": "waiting", "NumTasks": "4"}
    assert differences(ran, waiting, hosts={}, is_resized=False) == ()
    assert differences(waiting, other, hosts={}, is_resized=True) == ()
    assert differences(waiting, other, hosts={}, is_resized=False) == ("NumTasks was '1', and would be '4'",)


def test_every_row_that_may_differ_says_why() -> None:
    assert [key for key, rule, why in ROWS if rule is Rule.MAY and not why] == []
    assert len({key for key, _, _ in ROWS}) == len(ROWS)


@pytest.mark.parametrize(
    ("line", "words", "expected"),
    [
        ("sbatch -N2 --time=5 x.sh a -N9", ("/w/x.sh", "a", "-N9"), {"nodes": "2", "time": "5"}),
        ("sbatch -N 2 -Hn4 -O ./x.sh", ("/w/x.sh",), {"nodes": "2", "hold": None, "ntasks": "4", "overcommit": None}),
        ("sbatch --nod=3 --gpus-per-t 2 x.sh", ("/w/x.sh",), {"nod": "3", "gpus-per-task": "2"}),
        ("sbatch --signal B:USR1@60 x.sh", ("/w/x.sh",), {"signal": "B:USR1@60"}),
        ("sbatch --job-name=a b c x.sh", ("/w/x.sh",), {"job-name": "a b c"}),
        ("sbatch --container-image=nvcr.io#x x.sh", ("/w/x.sh",), {"container-image": "nvcr.io#x"}),
        ("sbatch", (), {}),
        ("", ("/w/x.sh",), {}),
    ],
)
def test_options_of_a_line(line: str, words: tuple[str, ...], expected: dict[str, str | None]) -> None:
    assert of_line(line, words) == expected


def test_options_of_a_script_end_at_its_first_command() -> None:
    script = '#!/bin/sh\n#SBATCH -N2 --comment="a b" # why\n\n# more\n#SBATCH --time 5\nsrun x\n#SBATCH --mem=9\n'
    assert of_script(script) == {"nodes": "2", "comment": "a b", "time": "5"}
    assert of_script("#!/bin/sh\n#SBATCH --comment='a\n") == {}


def test_an_option_that_is_not_sbatchs_own_is_given_again_only_where_its_value_is_known() -> None:
    job, detail = job_of()
    given = {"_SLURM_SPANK_OPTION_pyxis_container_image": "nvcr.io/a b"}

    def made(line: str | None, environment: dict[str, str], script: str = "#!/bin/sh\nx\n") -> spec.CapturedSpec:
        captured = Captured(kept=environment, all=environment)
        return spec.build_spec(job, detail, script=script, environment=captured, arguments=(), line=line)

    plain = made("sbatch --container-image=nvcr.io/a b /fsx/ml/train.sh", given)
    assert plain.cannot == ()
    assert plain.spec is not None
    assert plain.spec.options["container-image"] == "nvcr.io/a b"
    assert not [name for name in plain.spec.environment if "SPANK" in name], "it comes from the option, or not at all"
    for line, environment in (
        (None, given),
        ("sbatch /fsx/ml/train.sh", given),
        ("sbatch --container-image=other /fsx/ml/train.sh", given),
        ("sbatch --container-image=x /fsx/ml/train.sh", {}),
        ("sbatch --extra=a b /fsx/ml/train.sh", {}),
    ):
        assert [reason for reason in made(line, environment).cannot if reason.startswith(spec.LOST)], line
    script = "#!/bin/sh\n#SBATCH --container-image='nvcr.io/a b'\nx\n"
    assert made("sbatch /fsx/ml/train.sh", given, script).cannot == ()


def test_the_line_of_a_submission_is_the_one_before_its_words() -> None:
    def state(line: bytes, *words: bytes, work: bytes = b"") -> bytes:
        return b"\1" * 30 + packed(line)[4:] + packed(work)[4:] + b"\0\xff\xfe\0" + packed(*words) + b"\2" * 9

    one = state(b"sbatch -N2 x.sh a b", b"/w/x.sh", b"a b", work=b"/w")
    other = state(b"sbatch -N3 x.sh a b", b"/w/x.sh", b"a", b"b")
    assert find_line(one + other, ("/w/x.sh", "a b")) == "sbatch -N2 x.sh a b"
    assert find_line(one + other, ("/w/x.sh", "a", "b")) == "sbatch -N3 x.sh a b"
    assert find_line(one + one, ("/w/x.sh", "a b")) == "sbatch -N2 x.sh a b"
    assert find_line(one + state(b"sbatch -N9 x.sh a b", b"/w/x.sh", b"a b"), ("/w/x.sh", "a b")) is None, "whose?"
    assert find_line(one, ("/w/y.sh",)) is None
    assert find_line(b"", ("/w/x.sh",)) is None


def copied(head: Head, whole: JobSpec, **columns: str) -> tuple[str, ...]:
    order: Order = order_of(exclude=("node9",))
    head.fake.nodes(["node1", "node9"])
    head.saw(7, ME)
    own = {"JobID": "8", "State": "PENDING", "PriorityLong": "0", "NodeList": "", "UserName": ME}
    head.fake.jobs([own | {"Comment": f"rekindle,attempt={order.new_attempt}"} | columns])
    (head.fake.folder / "state" / "hash.8" / "job.8").mkdir(parents=True, exist_ok=True)
    (head.fake.folder / "state" / "hash.8" / "job.8" / "environment").write_bytes(bytes(4))
    return head.commands.differences(8, whole, order)


def test_a_copy_is_compared_with_the_record_that_was_kept_of_its_original(head: Head) -> None:
    job, detail = job_of(State="PENDING", NodeList="", UserName=ME)
    shown = shown_of(job, detail, {}, "24.05.2")
    whole = spec_of(shown=shown, environment={})
    own = {"STDOUT": "/fsx/ml/slurm-7.out", "STDERR": "/fsx/ml/slurm-7.out"}
    assert copied(head, whole, ExcNodeList="node9", **own) == ()
    assert copied(head, whole, **own) == ("ExcNodeList is nothing, and should be 'node9'",)
    assert copied(head, whole, ExcNodeList="node9", Name="other", **own) == (
        "JobName was 'train', and would be 'other'",
    )
    assert copied(head, dataclasses.replace(whole, shown={}), ExcNodeList="node9", **own) == (spec.NOT_KEPT,)
    for stranger in ({"Comment": "rekindle"}, {"UserName": "bob"}, {"JobID": "9"}):
        with pytest.raises(SlurmUnavailable, match="lost job 8"):
            copied(head, whole, **own | stranger)


def test_a_copy_that_was_not_let_go_is_no_attempt_and_no_news(head: Head) -> None:
    copy = {"JobID": "8", "Comment": "rekindle:p,job=slurm.ml.7,attempt=slurm.ml.7-a2", "NodeList": ""}
    held = copy | {"State": "PENDING", "PriorityLong": "0", "Reason": "JobHeldUser"}
    head.saw(7, "ml")
    head.journal.unproven.add("slurm.ml.7-a2")
    for shown in (held, copy | {"State": "CANCELLED"}):
        head.fake.jobs([shown])
        head.look()
        assert head.news == [news for news in head.news if "attempt" not in news.detail]
    head.journal.unproven.clear()
    head.fake.jobs([held | {"PriorityLong": "5", "Reason": "Resources"}])
    head.look()
    assert head.doc("slurm.ml.7-a2").slurm_job == 8


def test_a_job_that_runs_is_an_attempt_whatever_became_of_its_order(head: Head) -> None:
    head.saw(7, "ml")
    head.journal.unproven.add("slurm.ml.7-a2")
    head.fake.jobs([{"JobID": "8", "Comment": "rekindle:p,job=slurm.ml.7,attempt=slurm.ml.7-a2"}])
    head.look()
    assert head.doc("slurm.ml.7-a2").slurm_job == 8
