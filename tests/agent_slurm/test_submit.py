"""A job's spec: what is captured, what is said to be missing, and the sbatch that submits it again."""

import dataclasses
import os
import pwd
import struct
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from rekindle.protocol.cluster.documents import AttemptDoc, JobSpec, SlurmState
from rekindle.protocol.cluster.names import attempt_key
from rekindle.protocol.cluster.orders import Order, Repair, Signal, Verb
from rekindle.slurm_agent.base.ports import Repointed, SlurmRefused, SlurmUnavailable
from rekindle.slurm_agent.copies import spec
from rekindle.slurm_agent.copies.capture import (
    Captured,
    environment_of,
    find_arguments,
    find_words,
    is_secret,
    submission_of,
)
from rekindle.slurm_agent.reading import comment, options
from rekindle.slurm_agent.reading.jobs import COLUMNS, Job, format_of, parse_detail, parse_jobs
from rekindle.slurm_agent.reading.script import read as read_script
from tests.agent_slurm.conftest import START, Head
from tests.agent_slurm.fake_slurm import DEFAULTS, detail_of, node_line

ME = pwd.getpwuid(os.getuid()).pw_name
SCRIPT = "#!/bin/bash\n#SBATCH -N2\nsrun python train.py\n"


def job_of(**columns: str) -> tuple[Job, dict[str, str]]:
    given = {**DEFAULTS, "JobID": "7", "ArrayJobID": "7"} | columns
    between, end = format_of(COLUMNS, "m")[1:]
    (job,) = parse_jobs(between.join(given[name] for name in COLUMNS) + end, between, end, START)
    return job, parse_detail(detail_of(given), job)


def order_of(**more: object) -> Order:
    base = Order(
        token="t",
        verb=Verb.SUBMIT,
        cluster="ml",
        issued_at=START,
        expires_at=START,
        attempt="slurm.ml.7",
        slurm_job=7,
        new_attempt="slurm.ml.7-a2",
        spec="0" * 64,
        environment={"REKINDLE_RESUME_STEP": "99", "REKINDLE_JOB_ID": "slurm.ml.7"},
        exclude=("node1", "node9"),
    )
    return dataclasses.replace(base, **more)  # type: ignore[arg-type]


def spec_of(**more: object) -> JobSpec:
    base = JobSpec(
        script=SCRIPT,
        arguments=("x y", "z"),
        workdir="/",
        user=ME,
        options={"job-name": "train", "nodes": "2", "requeue": None, "comment": "rekindle:gentle,mailbox=/fsx/box"},
        environment={"FOO": "a,b", "REKINDLE_RESUME_STEP": "5", "SLURM_SUBMIT_DIR": "/", "SLURM_UMASK": "0027"},
        dependency="singleton",
    )
    return dataclasses.replace(base, **more)  # type: ignore[arg-type]


def test_what_was_asked_for_is_asked_for_again() -> None:
    job, detail = job_of(Command="/fsx/ml/train.sh --config base.yaml", Account="research")
    asked = {
        "SLURM_NTASKS_PER_NODE": "8",
        "SLURM_CPUS_PER_TASK": "12",
        "SLURM_GPUS_PER_NODE": "8",
        "SLURM_OPEN_MODE": "a",
        "PATH": "/bin",
    }
    taken = spec.build_spec(
        job, detail, script=SCRIPT, environment=Captured(kept=asked), arguments=("--config", "base.yaml")
    )
    assert taken.cannot == ()
    assert taken.spec is not None
    given = taken.spec.options
    assert {"job-name": "train", "partition": "main", "account": "research", "qos": "normal", "nodes": "2"}.items() <= (
        given.items()
    )
    assert {
        "ntasks-per-node": "8",
        "cpus-per-task": "12",
        "gpus-per-node": "8",
        "exclusive": None,
    }.items() <= given.items()
    assert given["output"] == "/fsx/ml/slurm-7.out", "the next attempt goes on in the same file"
    assert "requeue" in given
    assert "ntasks" not in given, "no number of tasks was asked for: giving one changes what its srun does"
    assert "gres" not in given
    assert taken.spec.environment == {"PATH": "/bin"}
    assert taken.spec.arguments == ("--config", "base.yaml")


def test_without_its_environment_a_job_keeps_its_gpus_and_says_what_is_missing() -> None:
    job, detail = job_of(Command="/fsx/ml/train.sh a b")
    taken = spec.build_spec(job, detail, script=SCRIPT, environment=Captured(kept=None), arguments=None)
    assert taken.cannot == (spec.NO_ENVIRONMENT, spec.NO_ARGUMENTS)
    assert taken.spec is not None
    assert taken.spec.options["gres"] == "gpu:8"
    assert not taken.is_final


@pytest.mark.parametrize(
    ("columns", "why"),
    [
        ({"ArrayTaskID": "3", "ArrayJobID": "5"}, spec.ARRAY),
        ({"HetJobID": "7", "HetJobOffset": "0"}, spec.HETEROGENEOUS),
    ],
)
def test_what_cannot_be_submitted_again_says_so(columns: dict[str, str], why: str) -> None:
    job, detail = job_of(**columns)
    taken = spec.build_spec(job, detail, script=SCRIPT, environment=Captured(kept={}), arguments=())
    assert why in taken.cannot


def test_a_spec_that_cannot_be_kept_is_said_and_stops_nobody() -> None:
    job, detail = job_of(WorkDir="/" + "x" * 5000)
    taken = spec.build_spec(job, detail, script=SCRIPT, environment=Captured(kept={}), arguments=())
    assert taken.spec is None
    assert taken.cannot[0].startswith(spec.NOT_WRITABLE)


def test_our_excluded_nodes_do_not_become_the_users() -> None:
    job, detail = job_of()
    detail["ExcNodeList"] = "node[1-3]"
    kept = {spec.EXCLUDED: "node1,node3", "REKINDLE_RESUME_STEP": "5", "A": "1"}
    taken = spec.build_spec(job, detail, script=SCRIPT, environment=Captured(kept=kept), arguments=())
    assert taken.spec is not None
    assert taken.spec.options["exclude"] == "node2"
    assert taken.spec.environment == {"A": "1"}, "nothing of the attempt before"


def test_sbatchs_argument_list() -> None:
    args = spec.sbatch_arguments(spec_of(), order_of(), "/tmp/batch", ("REKINDLE_JOB_ID",))
    assert args[:2] == ["sbatch", "--parsable"]
    assert args[-3:] == ["/tmp/batch", "x y", "z"]
    assert "--exclude=node1,node9" in args
    assert "--export=ALL" in args
    assert "--open-mode=append" in args
    assert "--requeue" in args
    assert "--dependency=singleton" in args
    assert "--comment=rekindle:gentle,job=slurm.ml.7,attempt=slurm.ml.7-a2,mailbox=/fsx/box" in args


@pytest.mark.parametrize(
    ("exported", "argument"),
    [
        ("ALL", "--export=ALL"),
        ("A,B", "--export=A,B,REKINDLE_X"),
        ("NONE", "--export=REKINDLE_X"),
    ],
)
def test_our_variables_reach_a_job_that_exports_only_some(exported: str, argument: str) -> None:
    args = spec.sbatch_arguments(spec_of(options={"export": exported}), order_of(), "s", ("REKINDLE_X",))
    assert argument in args


def test_a_node_that_is_asked_for_and_excluded_is_no_longer_asked_for() -> None:
    args = spec.sbatch_arguments(spec_of(options={"nodelist": "node[1-2]", "exclude": "bad1"}), order_of(), "s", ())
    assert "--nodelist=node2" in args
    assert "--exclude=bad1,node1,node9" in args


def test_exported_names() -> None:
    assert options.exported("ALL,A=1") == "ALL"
    assert options.exported("A=1,B=x y") == "A,B"
    assert options.exported("NONE") == "NONE"
    assert options.exported(None) == ""


@pytest.mark.parametrize(
    ("pattern", "path"),
    [
        ("slurm-%j.out", "/fsx/ml/slurm-7.out"),
        ("/logs/%x-%4j.%u", "/logs/train-0007.ml"),
        ("/logs/%%j", "/logs/%j"),
        ("/logs/%N-%A", "/logs/node1-7"),
        ("/logs/%q", "/logs/%q"),
        ("", ""),
        ("/logs/100%", "/logs/100%"),
    ],
)
def test_output_patterns(pattern: str, path: str) -> None:
    assert options.expand(pattern, job_of()[0]) == path


def test_a_submission_runs_as_the_user_with_the_environment_and_leaves_nothing_behind(head: Head) -> None:
    head.saw(7, ME)
    head.fake.nodes(["node1", "node9"])
    head.fake.answer("sbatch", stdout="")
    (head.fake.folder / "answers" / "sbatch").write_text(
        f"env > {head.fake.folder}/env\n"
        f'for a; do case "$a" in */batch) cat "$a" > {head.fake.folder}/script;; esac; done\n'
        "echo '42;ml'\n"
    )
    assert head.commands.submit(spec_of(), order_of()) == 42
    environment = dict(
        line.split("=", 1) for line in (head.fake.folder / "env").read_text().splitlines() if "=" in line
    )
    assert environment["FOO"] == "a,b"
    assert environment["REKINDLE_RESUME_STEP"] == "99"
    assert environment["REKINDLE_ATTEMPT_NAME"] == "slurm.ml.7-a2"
    assert environment["REKINDLE_EXCLUDED_NODES"] == "node1,node9"
    assert "SLURM_SUBMIT_DIR" not in environment
    assert (head.fake.folder / "script").read_text() == SCRIPT
    (call,) = head.fake.calls()
    assert not Path(call[-3]).exists(), "the script's copy is taken away again"


def test_what_a_killed_agent_left_behind_is_swept(head: Head, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    head.saw(7, ME)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    old, young = tmp_path / "rekindle-sbatch-old", tmp_path / "rekindle-sbatch-young"
    for folder in (old, young):
        folder.mkdir()
        (folder / "batch").write_text(SCRIPT)
    os.utime(old, (1, 1))
    head.fake.answer("sbatch", stdout="44\n")
    head.commands.submit(spec_of(), order_of())
    assert not old.exists()
    assert young.exists(), "somebody may be at it"


def test_secrets_that_never_left_the_machine_are_there_again_while_the_old_job_is(head: Head) -> None:
    head.saw(7, ME)
    head.fake.jobs([{"JobID": "7", "UserName": ME}])
    folder = head.fake.folder / "state" / "hash.7" / "job.7"
    folder.mkdir(parents=True)
    pairs = [b"WANDB_API_KEY=abc", b"PATH=/bin", b"TOKENIZERS_PARALLELISM=false", b"BAD=\xff"]
    (folder / "environment").write_bytes(struct.pack("<I", len(pairs)) + b"".join(pair + b"\0" for pair in pairs))
    found = environment_of(str(head.fake.folder / "state"), 7)
    assert found.kept == {"PATH": "/bin", "TOKENIZERS_PARALLELISM": "false"}
    assert found.left_out == ("BAD", "WANDB_API_KEY")
    (head.fake.folder / "answers" / "sbatch").write_text(f"env > {head.fake.folder}/env\necho 43\n")
    head.commands.submit(spec_of(left_out=("WANDB_API_KEY",)), order_of())
    assert "WANDB_API_KEY=abc" in (head.fake.folder / "env").read_text()


def test_nobody_elses_secrets_are_handed_over(head: Head) -> None:
    """The number in the order is another user's job: slurmctld lost its state and began to count anew, say."""
    head.saw(7, ME)
    head.fake.jobs([{"JobID": "7", "UserName": "somebody"}])
    folder = head.fake.folder / "state" / "hash.7" / "job.7"
    folder.mkdir(parents=True)
    (folder / "environment").write_bytes(struct.pack("<I", 1) + b"WANDB_API_KEY=abc\0")
    (head.fake.folder / "answers" / "sbatch").write_text(f"env > {head.fake.folder}/env\necho 43\n")
    with pytest.raises(SlurmRefused, match="secrets WANDB_API_KEY of the submission are not kept"):
        head.commands.submit(spec_of(left_out=("WANDB_API_KEY",)), order_of())
    own = head.fake.folder / "secrets.env"
    own.write_text("# mine\nexport WANDB_API_KEY='def'\nOTHER=1\n")
    for said, seen in ((f"secrets={own}", ["WANDB_API_KEY=def"]), ("secrets=without", [])):
        spec = spec_of(left_out=("WANDB_API_KEY",))
        spec = dataclasses.replace(spec, options={**spec.options, "comment": f"rekindle,{said}"})
        head.commands.submit(spec, order_of())
        lines = (head.fake.folder / "env").read_text().splitlines()
        assert [line for line in lines if line.startswith(("WANDB_API_KEY", "OTHER"))] == seen


def test_a_spec_of_another_user_is_not_submitted(head: Head) -> None:
    """Whoever can write the whiteboard can write a spec; only its own Job's user counts."""
    head.fake.answer("sbatch", stdout="44\n")
    head.saw(7, "somebody")
    with pytest.raises(SlurmRefused, match="is of user"):
        head.commands.submit(spec_of(), order_of())
    with pytest.raises(SlurmRefused, match="never seen"):
        head.commands.submit(spec_of(user="root"), order_of(attempt="slurm.ml.8"))
    assert head.fake.calls() == []


def test_root_is_not_taken_from_the_whiteboard(head: Head) -> None:
    doc = AttemptDoc(
        attempt="slurm.ml.8", cluster="ml", slurm_job=8, restart=0, state=SlurmState.FAILED, seen_at=START, user="root"
    )
    head.board[attempt_key("slurm.ml.8")] = doc.to_json()
    with pytest.raises(SlurmRefused, match="never seen"):
        head.commands.submit(spec_of(user="root"), order_of(attempt="slurm.ml.8"))


@pytest.mark.skipif(os.geteuid() != 0, reason="needs another user's folder")
def test_a_folder_that_somebody_else_named_like_ours_is_left_alone(
    head: Head, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nested deep enough, taking it away would fail every submission."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    head.saw(7, ME)
    head.fake.answer("sbatch", stdout="44\n")
    trap = tmp_path / "rekindle-sbatch-trap"
    trap.mkdir()
    os.chown(trap, 65534, 65534)
    os.utime(trap, (1, 1))
    head.commands.submit(spec_of(), order_of())
    assert trap.exists()


def test_a_refusal_and_an_unknown_user_are_refusals(head: Head) -> None:
    head.saw(7, ME)
    head.fake.answer("sbatch", stderr="sbatch: error: invalid partition specified: nope", code=1)
    with pytest.raises(SlurmRefused, match="invalid partition"):
        head.commands.submit(spec_of(), order_of())
    head.saw(7, "nobody-of-that-name")
    with pytest.raises(SlurmRefused, match="knows no user"):
        head.commands.submit(spec_of(user="nobody-of-that-name"), order_of())
    head.saw(7, ME)
    head.fake.answer("sbatch", stderr="sbatch: error: Unable to contact slurm controller", code=1)
    with pytest.raises(SlurmUnavailable):
        head.commands.submit(spec_of(), order_of())
    head.fake.answer("sbatch", stdout="what?\n")
    with pytest.raises(SlurmUnavailable, match="no job id"):
        head.commands.submit(spec_of(), order_of())


@pytest.mark.parametrize(
    ("name", "secret"),
    [
        ("AWS_SECRET_ACCESS_KEY", True),
        ("WANDB_API_KEY", True),
        ("HF_TOKEN", True),
        ("DB_PASSWORD", True),
        ("MY_PRIVATE_KEY", True),
        ("TOKENIZERS_PARALLELISM", False),
        ("MAX_TOKENS", False),
        ("AUTHOR", False),
        ("PATH", False),
        ("TOKEN_FILE", False),
    ],
)
def test_which_names_look_like_secrets(name: str, secret: bool) -> None:
    assert is_secret(name) is secret


def packed(*words: bytes) -> bytes:
    """A list of strings as slurmctld packs it into its state."""
    return struct.pack(">I", len(words)) + b"".join(struct.pack(">I", len(word) + 1) + word + b"\0" for word in words)


def test_where_slurm_shows_the_path_alone_the_arguments_are_those_in_its_state() -> None:
    ours, other = packed(b"/x.sh", b"--config", b"a b.yaml", b""), packed(b"/x.sh", b"lr=3")
    bare = packed(b"/x.sh")
    assert find_words(b"junk" + ours, "/x.sh", "") == ("--config", "a b.yaml", "")
    assert find_words(ours + ours, "/x.sh", "") == ("--config", "a b.yaml", "")
    assert find_words(bare, "/x.sh", "") == ()
    assert find_words(ours + other + bare, "/x.sh", "") is None, "three jobs: whose are whose?"
    assert find_words(ours + other + bare, "/x.sh", "sbatch -N2 /x.sh lr=3") == ("lr=3",)
    whole = "sbatch -N2 /x.sh --config a b.yaml "
    assert find_words(ours + other + bare, "/x.sh", whole) == ("--config", "a b.yaml", "")
    assert find_words(ours + other + bare, "/x.sh", "sbatch /x.sh") == ()
    assert find_words(ours + other + bare, "/x.sh", "sbatch ./x.sh lr=3") == ("lr=3",)
    assert find_words(ours + other + bare, "/x.sh", "sbatch x.sh lr=3") == ("lr=3",)
    assert find_words(ours + other + bare, "/x.sh", "sbatch my-x.sh lr=3") is None
    assert find_words(other, "/x.sh", "sbatch /x.sh lr=4") is None, "another job's"
    assert find_words(packed(b"/x.sh", b"a", b"b") + packed(b"/x.sh", b"a b"), "/x.sh", "sbatch /x.sh a b") is None
    assert find_words(b"", "/x.sh", "sbatch /x.sh") is None, "not written down yet"
    assert find_words(ours[:-3], "/x.sh", "") is None
    assert find_words(struct.pack(">I", 2**31) + ours[4:], "/x.sh", "") is None


@pytest.mark.parametrize(
    ("version", "command", "known"),
    [("22.05.8", "/x.sh", True), ("24.11.5", "/x.sh", False), ("", "/x.sh", False), ("26.05.5", "(null)", True)],
)
def test_no_arguments_are_believed_in_only_where_slurm_would_show_them(version: str, command: str, known: bool) -> None:
    job, _ = job_of(Command=command)
    found = submission_of("/nonexistent", job, version=version).arguments
    assert found == (() if known else None)


def test_while_slurmctld_replaces_its_state_the_one_before_it_is_read(tmp_path: Path) -> None:
    job, _ = job_of(Command="/x.sh")
    (tmp_path / "job_state.old").write_bytes(b"junk" + packed(b"/x.sh", b"lr=3"))
    assert submission_of(str(tmp_path), job, version="26.05.5").arguments == ("lr=3",)
    (tmp_path / "job_state").write_bytes(b"junk" + packed(b"/x.sh", b"lr=4"))
    assert submission_of(str(tmp_path), job, version="26.05.5").arguments == ("lr=4",)


def test_arguments_that_fit_in_two_ways_are_not_known() -> None:
    once = b"junk" + packed(b"/x.sh", b"a b", b"c")
    assert find_arguments(once, "/x.sh a b c") == ("a b", "c")
    assert find_arguments(once + once, "/x.sh a b c") == ("a b", "c")
    assert find_arguments(once + packed(b"/x.sh", b"a", b"b c"), "/x.sh a b c") is None
    assert find_arguments(b"", "/x.sh a b c") is None


@pytest.mark.parametrize(
    ("script", "auto_resume", "traps", "warned_batch"),
    [
        ("#!/bin/bash\nsrun --auto-resume=1 train.sh", True, set(), False),
        ("#!/bin/bash\n# srun --auto-resume=1 train.sh\nsrun train.sh", False, set(), False),
        ("#!/bin/bash\n#SBATCH --auto-resume=1\nsrun train.sh", False, set(), False),
        ('AUTO=""\n[ -d /opt/sagemaker_cluster ] && AUTO="--auto-resume=1"\nsrun $AUTO x', True, set(), False),
        ("srun \\\n  --auto-resume=1 \\\n  x", True, set(), False),
        ("#SBATCH --signal=B:USR1@120\ntrap 'kill -TERM $pid' SIGUSR1", False, {"USR1"}, True),
        ("trap - USR1\necho 'trap x USR2' # trap y TERM", False, set(), False),
    ],
)
def test_scripts(script: str, auto_resume: bool, traps: set[str], warned_batch: bool) -> None:
    found = read_script(script)
    assert found.has_auto_resume is auto_resume
    assert found.warned_batch is warned_batch
    assert traps <= set(found.traps)


@pytest.mark.parametrize(
    ("script", "place"),
    [
        ("export REKINDLE_MAILBOX=/fsx/a", "/fsx/a"),
        ("REKINDLE_MAILBOX=/fsx/a srun python train.py", "/fsx/a"),
        ("env -u X REKINDLE_MAILBOX=/fsx/a python train.py", "/fsx/a"),
        ("env -S 'REKINDLE_MAILBOX=/fsx/a python train.py'", "/fsx/a"),
        ("srun --export=ALL,REKINDLE_MAILBOX=/fsx/a,B=2 python train.py", "/fsx/a"),
        ("srun --export ALL,REKINDLE_MAILBOX=/fsx/a python train.py", "/fsx/a"),
        ("ROOT=/fsx\nexport REKINDLE_MAILBOX=$ROOT/a", "/fsx/a"),
        ('export REKINDLE_MAILBOX="${SCRATCH}/a"', "/scratch/ada/a"),
        ("export REKINDLE_MAILBOX=$SLURM_SUBMIT_DIR/a", "/home/ada/a"),
        ("export REKINDLE_MAILBOX=${REKINDLE_MAILBOX:-/fsx/a}", "/fsx/a"),
        ('export REKINDLE_MAILBOX="${GIVEN:-/fsx/a}"', "/fsx/a"),
        ('export REKINDLE_MAILBOX="${SCRATCH:-/fsx/a}/b"', None),  # both are possible to this reader
        ("export REKINDLE_MAILBOX=/fsx/$SLURM_JOB_ID", None),
        ("if x; then REKINDLE_MAILBOX=/fsx/a; else REKINDLE_MAILBOX=/fsx/b; fi", None),
        ("export REKINDLE_MAILBOX=$(mktemp -d)", None),
    ],
)
def test_places_that_a_script_sets(script: str, place: str | None) -> None:
    environment = {"SCRATCH": "/scratch/ada", "SLURM_SUBMIT_DIR": "/home/ada", "SLURM_JOB_ID": "7"}
    assert read_script(f"#!/bin/bash\n{script}\n", environment).places.get("REKINDLE_MAILBOX") == place


def test_a_default_gives_way_to_what_the_submission_sets() -> None:
    script = "#!/bin/bash\nexport REKINDLE_MAILBOX=${REKINDLE_MAILBOX:-/fsx/a}\n"
    assert read_script(script, {"REKINDLE_MAILBOX": "/fsx/b"}).places == {}


@pytest.mark.parametrize(
    ("written", "policy", "keys"),
    [
        ("rekindle", "default", {}),
        ("rekindle:gentle ", "gentle", {}),
        ('"rekindle:p,mailbox=s3://b/p,signal=SIGUSR1"', "p", {"mailbox": "s3://b/p", "signal": "USR1"}),
        ("rekindle,signal=B:USR2", "default", {"signal": "USR2", "signal_batch": True}),
        ("rekindle,job=a b,attempt=nope,checkpoints=/x=y", "default", {"job": None, "checkpoints": "/x=y"}),
    ],
)
def test_comments(written: str, policy: str, keys: dict[str, object]) -> None:
    found = comment.parse(written)
    assert found is not None
    assert found.policy == policy
    for key, expected in keys.items():
        assert getattr(found, key) == expected


@pytest.mark.parametrize("written", ["", "hello", "rekindled", "my rekindle", "REKINDLE"])
def test_comments_of_other_jobs(written: str) -> None:
    assert comment.parse(written) is None


@pytest.mark.parametrize("name", ["KILL", "B:SIGKILL", "STOP", "9", "USR3", "USR1,B"])
def test_a_signal_that_would_end_the_run_is_passed_over_and_told(name: str) -> None:
    found = comment.parse(f"rekindle,signal={name}")
    assert found is not None
    assert found.signal == ("USR1" if name.startswith("USR1") else None)
    assert found.problems


def test_a_wrong_key_loses_only_itself() -> None:
    found = comment.parse("rekindle:gentle,job=a b,oops,mailbox=/m")
    assert found is not None
    assert found.mailbox == "/m"
    assert len(found.problems) == 2


def test_commands_are_argument_lists(head: Head) -> None:
    commands = head.commands
    head.fake.jobs(
        [
            {"JobID": "7", "Comment": "rekindle,signal=USR1"},
            {"JobID": "8", "Comment": "rekindle,signal=B:USR1"},
            {"JobID": "9", "State": "PENDING", "Dependency": "afterok:7(unfulfilled),singleton(unfulfilled)"},
            {"JobID": "10", "UserName": "bob", "State": "PENDING", "Dependency": "afterok:7(unfulfilled)"},
            {"JobID": "70", "State": "PENDING"},
        ]
    )
    commands.signal(7, Signal.USR1)
    commands.signal(8, Signal.USR1)
    commands.cancel(7)
    commands.hold(7)
    commands.requeue_hold(7)
    commands.release(7)
    commands.start_now(7)
    commands.exclude(7, ["node1", "node2"])
    commands.exclude(7, [])
    commands.resize(7, 1, 2)
    assert commands.repoint(7, 70, others=False) == Repointed(changed=(9,), left=(10,))
    assert commands.repoint(7, 70, others=True) == Repointed(changed=(9, 10))
    commands.drain("node1", "rekindle:inc 1; rm -rf /")
    head.fake.nodes([node_line("node1", "IDLE+DRAIN", "rekindle:inc-1")])
    commands.resume("node1")
    commands.mark("node1", Repair.REPLACE)
    commands.reboot("node1", "rekindle:inc-1")
    assert head.fake.calls() == [
        ["scancel", "--signal=USR1", "7"],
        ["scancel", "--signal=USR1", "--batch", "8"],
        ["scancel", "7"],
        ["scontrol", "uhold", "7"],
        ["scontrol", "requeuehold", "7"],
        ["scontrol", "release", "7"],
        ["scontrol", "update", "jobid=7", "starttime=now"],
        ["scontrol", "update", "jobid=7", "excnodelist=node1,node2"],
        ["scontrol", "update", "jobid=7", "excnodelist="],
        ["scontrol", "update", "jobid=7", "numnodes=1-2", "numcpus=96"],
        ["scontrol", "update", "jobid=9", "dependency=afterok:70,singleton"],
        ["scontrol", "update", "jobid=9", "dependency=afterok:70,singleton"],
        ["scontrol", "update", "jobid=10", "dependency=afterok:70"],
        ["scontrol", "update", "nodename=node1", "state=drain", "reason=rekindle:inc 1; rm -rf /"],
        ["scontrol", "update", "nodename=node1", "state=resume", "reason= "],
        ["scontrol", "update", "nodename=node1", "state=fail", "reason=Action:Replace"],
        ["scontrol", "reboot", "ASAP", "reason=rekindle:inc-1", "node1"],
    ]


def test_a_job_that_was_just_put_back_is_not_started_within_the_second(head: Head) -> None:
    """Its nodes still know its credential as one that was revoked."""
    head.now = datetime.fromtimestamp(1795276001, UTC)
    head.fake.jobs([{"JobID": "7", "State": "PENDING", "SubmitTime": "1795276000"}])
    head.commands.start_now(7)
    head.now += timedelta(seconds=5)
    head.commands.start_now(7)
    assert [call[-1] for call in head.fake.calls()] == ["starttime=now+2", "starttime=now"]


def test_what_is_done_to_one_task_of_an_array_is_not_done_to_the_others(head: Head) -> None:
    """Slurm gives one task the array's own id, and takes that for all of them (tried on 22.05)."""
    task = {"ArrayJobID": "11", "Comment": "rekindle"}
    head.fake.jobs([task | {"JobID": "11", "ArrayTaskID": "2"}, task | {"JobID": "12", "ArrayTaskID": "1"}])
    head.commands.signal(11, Signal.USR1)
    head.commands.cancel(11)
    head.commands.requeue_hold(11)
    head.commands.release(12)
    head.commands.start_now(11)
    assert head.fake.calls() == [
        ["scancel", "--signal=USR1", "11_2"],
        ["scancel", "11_2"],
        ["scontrol", "requeuehold", "11_2"],
        ["scontrol", "release", "11_1"],
        ["scontrol", "update", "jobid=11_2", "starttime=now"],
    ]


def test_what_is_no_job_or_node_never_reaches_a_command(head: Head) -> None:
    for call in (
        lambda: head.commands.cancel(0),
        lambda: head.commands.drain("node[1-3]", "x"),
        lambda: head.commands.drain("node1", "two\nlines"),
        lambda: head.commands.exclude(7, ["a,b"]),
        lambda: head.commands.resize(7, 0, 2),
        lambda: head.commands.resize(7, 3, 2),
    ):
        with pytest.raises(SlurmRefused):
            call()
    assert head.fake.calls() == []


def test_reads_of_one_job_and_one_node(head: Head) -> None:
    head.fake.jobs([{"JobID": "7", "ExcNodeList": "node3"}])
    (head.fake.folder / "on-node1").write_text("7#\n")
    doc = head.commands.job(7)
    assert doc is not None
    assert (doc.attempt, doc.exclude) == ("slurm.ml.7", ("node3",))
    assert head.commands.job(99) is None
    now = head.commands.node("node1")
    assert now is not None
    assert now.facts.jobs == (7,)
    assert now.booted_at == datetime.fromtimestamp(1795262212, UTC)
    assert head.commands.node("node77") is None


def test_a_script_is_read_in_no_time_whatever_is_in_it() -> None:
    """One thread reads every user's: a line that is too long to say anything took a pattern hours."""
    assert read_script("#!/bin/bash\n#SBATCH " + " " * 2_000_000 + "--signal=USR1\nsrun x\n").warned is None
    assert read_script("#!/bin/bash\n#SBATCH -N2 --signal=B:SIGUSR1@60\n").warned == "USR1"
    traps = "".join(f"trap 'x' USR{1 + number % 2}\n" for number in range(200))
    assert read_script(traps).traps == {"USR1", "USR2"}


def test_arguments_are_looked_for_a_few_times_only() -> None:
    searched = 0

    class State(bytes):
        def find(self, *args: object) -> int:  # type: ignore[override]
            nonlocal searched
            searched += 1
            return -1

    assert find_arguments(State(b"junk"), "/x.sh" + " a" * 5000) is None
    assert searched <= 8
