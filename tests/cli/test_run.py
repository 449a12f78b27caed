"""`rekindle run sbatch …`, against commands on the PATH that are real processes and answer as Slurm's do."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from rekindle.cli.tools.sbatch import read_command
from rekindle.client.errors import Exit
from rekindle.slurm_agent.reading import comment
from tests.cli.conftest import Ended, Run

SBATCH = """#!/bin/sh
[ "$*" = --version ] && { echo "slurm ${VERSION:-22.05.8}"; exit 0; }
printf '%s\\n' "$@" > "$HERE/arguments"
env > "$HERE/environment"
[ -n "$REFUSE" ] && { echo "sbatch: error: invalid partition" >&2; exit 1; }
case " $* " in *" --test-only "*) exit 0;; esac
echo "17"
exit "${WAITED:-0}"
"""
SCONTROL = """#!/bin/sh
[ "$1 $2" = "show config" ] && echo "ClusterName             = hpc"
"""


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which sbatch leaves what it was given."""
    commands = tmp_path / "bin"
    commands.mkdir()
    for name, text in (("sbatch", SBATCH), ("scontrol", SCONTROL)):
        (commands / name).write_text(text)
        (commands / name).chmod(0o755)
    for name in list(os.environ):
        if name.startswith(("SLURM", "SBATCH", "SAGEMAKER", "TRAINING")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("PATH", f"{commands}:{os.environ['PATH']}")
    monkeypatch.setenv("HERE", str(tmp_path))
    monkeypatch.setenv("SAGEMAKER_RESOURCE_CONFIG_PATH", str(tmp_path / "none"))
    monkeypatch.setenv("REKINDLE_CLUSTER_FILE", str(tmp_path / "none"))
    (tmp_path / "job.sbatch").write_text("#!/bin/bash\n#SBATCH --nodes=2\nsrun hostname\n")
    return tmp_path


def arguments(slurm: Path) -> list[str]:
    return (slurm / "arguments").read_text().splitlines()


def environment(slurm: Path) -> dict[str, str]:
    return dict(line.split("=", 1) for line in (slurm / "environment").read_text().splitlines() if "=" in line)


def said(slurm: Path) -> comment.Comment:
    [text] = [word for word in arguments(slurm) if word.startswith("--comment=")]
    found = comment.parse(text.partition("=")[2])
    assert found is not None
    assert found.problems == ()
    return found


def test_a_job_is_submitted_protected(run: Run, slurm: Path) -> None:
    ended = run(
        *("run", "--policy", "big-runs", "--mailbox", "/fsx/mail", "--checkpoints", "/fsx/ckpt", "--signal", "SIGUSR1"),
        *("sbatch", "--nodes", "2", "-p", "main", "job.sbatch", "--lr", "3e-4", "--comment=of the script's own"),
    )
    assert ended.code == Exit.OK
    assert ended.out == "Submitted batch job 17, protected as slurm.hpc.17\n"
    assert arguments(slurm) == [
        *("--nodes", "2", "-p", "main", "--open-mode=append", "--requeue"),
        "--comment=rekindle:big-runs,mailbox=/fsx/mail,checkpoints=/fsx/ckpt,signal=USR1",
        *("--parsable", "job.sbatch", "--lr", "3e-4", "--comment=of the script's own"),
    ]
    found = environment(slurm)
    assert (found["REKINDLE_CLUSTER"], found["REKINDLE_MAILBOX"]) == ("hpc", "/fsx/mail")
    assert found["REKINDLE_CHECKPOINT_DIR"] == "/fsx/ckpt"


def test_what_the_user_says_otherwise_stays_said(run: Run, slurm: Path) -> None:
    (slurm / "job.sbatch").write_text(
        "#!/bin/bash\n#SBATCH --open-mode=truncate\n#SBATCH -J x --no-requeue  # ours\n"
        "#SBATCH --comment='rekindle:mine,mailbox=s3://bucket/m,team=x'\nsrun hostname\n#SBATCH --requeue\n"
    )
    ended = run("run", "sbatch", "--parsable", "job.sbatch")
    assert ended.code == Exit.OK
    assert [word.partition("=")[0] for word in arguments(slurm)] == ["--parsable", "--comment", "job.sbatch"]
    found = said(slurm)
    assert (found.policy, found.mailbox, found.others) == ("mine", "s3://bucket/m", (("team", "x"),))
    assert environment(slurm)["REKINDLE_MAILBOX"] == "s3://bucket/m"
    assert "truncate" in ended.err
    assert "no-requeue" in ended.err


@pytest.mark.parametrize(
    "given",
    [("--comment=pay grade 7",), ("--comment", "pay grade 7"), ("--com", "pay grade 7")],
)
def test_a_comment_of_somebody_elses_is_never_overwritten(run: Run, slurm: Path, given: tuple[str, ...]) -> None:
    ended = run("run", "sbatch", *given, "job.sbatch")
    assert ended.code == Exit.USAGE
    assert "pay grade 7" in ended.err
    assert not (slurm / "arguments").exists()


def test_a_comment_of_somebody_elses_is_kept_where_slurm_has_another_place(
    run: Run, slurm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VERSION", "24.11.5")
    assert run("run", "--mailbox", "/fsx/mail", "sbatch", "--comment=pay grade 7", "job.sbatch").code == Exit.OK
    found = [word for word in arguments(slurm) if word.startswith(("--comment", "--extra"))]
    assert found == ["--comment=pay grade 7", "--extra=rekindle:default,mailbox=/fsx/mail"]
    assert run("run", "sbatch", "--comment=grant 7", "--extra=theirs", "job.sbatch").code == Exit.USAGE
    assert run("run", "sbatch", "--comment=grant 7", "--extra=rekindle:mine", "job.sbatch").code == Exit.OK
    assert arguments(slurm)[-3] == "--extra=rekindle:mine"


@pytest.mark.parametrize(
    ("argv", "word"),
    [
        (("run",), "nothing"),
        (("run", "srun", "train"), "interactive"),
        (("run", "/usr/bin/salloc", "-N2"), "interactive"),
        (("run", "python", "train.py"), "python"),
        (("run", "--policy", "a,b", "sbatch", "job.sbatch"), "--policy"),
        (("run", "--mailbox", "relative", "sbatch", "job.sbatch"), "--mailbox"),
        (("run", "--mailbox", "/a,b", "sbatch", "job.sbatch"), "comma"),
        (("run", "--signal", "1 or so", "sbatch", "job.sbatch"), "--signal"),
        (("run", "--signal", "KILL", "sbatch", "job.sbatch"), "USR1, USR2 or TERM"),
        (("run", "sbatch", "--export=NONE", "job.sbatch"), "--export=NONE"),
        (("run", "sbatch", "./gone.sbatch"), "gone.sbatch"),
        (("run", "sbatch", "--comment=rekindle,attempt=7", "job.sbatch"), "attempt"),
    ],
)
def test_wrong_usage_is_told_and_nothing_is_submitted(run: Run, slurm: Path, argv: tuple[str, ...], word: str) -> None:
    ended = run(*argv)
    assert ended.code == Exit.USAGE
    assert word in ended.err
    assert not (slurm / "arguments").exists()


@pytest.mark.parametrize(("given", "lost"), [((), "ask the run"), (("--signal", "USR1"), "its steps are not seen")])
def test_without_a_mailbox_what_is_lost_is_said(run: Run, slurm: Path, given: tuple[str, ...], lost: str) -> None:
    assert lost in run("run", "--dry-run", *given, "sbatch", "job.sbatch").err


def test_a_dry_run_shows_the_command_and_runs_nothing(run: Run, slurm: Path) -> None:
    argv = ("run", "--dry-run", "--json", "--mailbox", "s3://bucket/m", "sbatch", "job.sbatch", "a b")
    shown = json.loads(run(*argv).out)
    assert shown["environment"] == {"REKINDLE_CLUSTER": "hpc", "REKINDLE_MAILBOX": "s3://bucket/m"}
    assert shown["command"][-2:] == ["job.sbatch", "a b"]
    assert "job.sbatch 'a b'" in run(*(word for word in argv if word != "--json")).out
    assert not (slurm / "arguments").exists()


def test_the_variables_reach_a_job_whose_environment_is_listed(
    run: Run, slurm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run("run", "--mailbox", "/m", "sbatch", "--export=HOME,PATH", "job.sbatch").code == Exit.OK
    assert "--export=HOME,PATH,REKINDLE_CLUSTER,REKINDLE_MAILBOX" in arguments(slurm)
    monkeypatch.setenv("SBATCH_EXPORT", "ALL,X=1")
    assert run("run", "sbatch", "job.sbatch").code == Exit.OK
    assert not any(word.startswith("--export") for word in arguments(slurm))


def test_a_run_started_inside_another_ones_attempt_is_not_taken_for_it(
    run: Run, slurm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (
        "REKINDLE_JOB_ID",
        "REKINDLE_ATTEMPT",
        "REKINDLE_ATTEMPT_NAME",
        "REKINDLE_RESUME_URI",
        "REKINDLE_SKIP",
    ):
        monkeypatch.setenv(name, "of another run")
    monkeypatch.setenv("REKINDLE_MAILBOX", "/fsx/mail")
    assert run("run", "sbatch", "job.sbatch").code == Exit.OK
    found = environment(slurm)
    assert not [name for name, value in found.items() if value == "of another run"]
    assert found["REKINDLE_MAILBOX"] == said(slurm).mailbox == "/fsx/mail"


def test_sbatch_speaks_for_itself(run: Run, slurm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run("run", "sbatch", "--test-only", "job.sbatch").out == ""
    monkeypatch.setenv("WAITED", "7")
    waited: Ended = run("run", "--json", "sbatch", "--wait", "job.sbatch")
    assert waited.code == 7, "the job's own exit code"
    assert json.loads(waited.out) == {"slurm_job": 17, "attempt": "slurm.hpc.17"}
    monkeypatch.setenv("REFUSE", "yes")
    refused = run("run", "sbatch", "job.sbatch")
    assert refused.code == Exit.FAILED
    assert "refused" in refused.err
    (slurm / "bin" / "scontrol").unlink()
    monkeypatch.setenv("PATH", str(slurm / "bin"))
    assert "REKINDLE_CLUSTER" in run("run", "sbatch", "job.sbatch").err
    monkeypatch.setenv("REKINDLE_CLUSTER", "hpc")
    (slurm / "bin" / "sbatch").unlink()
    missing = run("run", "sbatch", "job.sbatch")
    assert (missing.code, "node of the cluster" in missing.err) == (Exit.FAILED, True)


@pytest.mark.parametrize(
    ("words", "script"),
    [
        (["-N", "2", "x.sh", "-N", "3"], "x.sh"),
        (["-N2", "-HOn4", "--exclusive", "x.sh"], "x.sh"),
        (["-kQ", "x.sh"], "x.sh"),
        (["--nodes", "2", "--nice", "--wait", "x.sh"], "x.sh"),
        (["-HN", "2", "--", "x.sh"], "--"),
        (["--wrap", "sleep 1"], None),
        ([], None),
        (["-"], "-"),
    ],
)
def test_options_end_where_sbatch_ends_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], script: str | None
) -> None:
    monkeypatch.chdir(tmp_path)
    read = read_command(["sbatch", *words], {})
    line = read.with_options(["--requeue"])
    at = line.index("--requeue")
    assert (line[at + 1] if at + 1 < len(line) else None) == script
    assert [word for word in line if word != "--requeue"] == ["sbatch", *words]
