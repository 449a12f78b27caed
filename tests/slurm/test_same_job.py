"""A job that is submitted again on a real Slurm is the same job, or is not submitted, with the reason."""

from __future__ import annotations

import dataclasses
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from rekindle.protocol.cluster.documents import AttemptDoc, SlurmState
from rekindle.protocol.cluster.orders import Order, Verb
from rekindle.slurm_agent.base.ports import SlurmError
from rekindle.slurm_agent.copies import spec
from rekindle.slurm_agent.copies.capture import submission_of
from rekindle.slurm_agent.copies.reads import CopyReads
from rekindle.slurm_agent.reading.jobs import Job
from rekindle.slurm_agent.reading.run import Runner
from rekindle.slurm_agent.slurm.commands import Commands
from rekindle.slurm_agent.watching.owners import Owners
from tests.agent_slurm.asked import ASKED
from tests.slurm.lab.lab import SlurmLab
from tests.slurm.test_numbers_slurm import HeadNode

pytestmark = pytest.mark.versions
SCRIPT = "#!/bin/sh\nsleep 600\n"


@pytest.fixture(scope="module")
def lab() -> Iterator[SlurmLab]:
    has_plugin = shutil.which("gcc") is not None
    with SlurmLab(
        nodes=("n1", "n2"), spares=("n3",), cpus=4, gpus=2, with_auto_resume=has_plugin, extra_conf=["Licenses=foo:4"]
    ) as raised:
        yield raised


def wait_written(lab: SlurmLab, text: str) -> None:
    lab.wait(lambda: text.encode() in lab.saved_jobs(), f"slurmctld to write {text} down")


def captured(lab: SlurmLab, name: int, number: int) -> tuple[str, ...] | None:
    """The arguments of job `number` as the agent reads them, once slurmctld has written the job down."""
    reads = CopyReads(Runner(environ=lab.environ()), lambda: datetime.now(UTC))
    settings = reads.settings()
    wait_written(lab, str(lab.folder / "work" / str(name)))
    job = reads.job(number)
    assert job is not None
    return submission_of(settings.state_location, job, reads.detail(job), version=settings.version).arguments


def submit(lab: SlurmLab, name: int, *words: str, script: str = "job.sh") -> int:
    """Under a work folder of its own, by whose name it is found in slurmctld's state. The job's number."""
    path = lab.folder / "work" / script
    path.write_text(SCRIPT)
    folder = lab.folder / "work" / str(name)
    folder.mkdir()
    return int(lab.run("sbatch", "--hold", "--parsable", f"--chdir={folder}", str(path), *words).stdout)


def test_arguments_are_known_word_by_word_or_not_at_all(lab: SlurmLab) -> None:
    wanted = {
        1: ("one.sh", ("--config", "a b.yaml", "lr=3", "Comment=x")),
        2: ("two.sh", ()),
        3: ("three.sh", ("LR=3", "WorkDir=/x", "é")),
        4: ("same.sh", ("a", "b")),
        5: ("same.sh", ("a b",)),
        6: ("empty.sh", ("a", "")),
    }
    numbers = {name: submit(lab, name, *words, script=script) for name, (script, words) in wanted.items()}
    done = subprocess.run(
        ["sbatch", "--hold", "--parsable", f"--chdir={lab.folder}/work"],
        input=SCRIPT,
        env=lab.environ(),
        capture_output=True,
        text=True,
        check=True,
    )
    found = {name: captured(lab, name, number) for name, number in numbers.items()}
    assert {name: found[name] for name in (1, 2, 3)} == {name: wanted[name][1] for name in (1, 2, 3)}
    # Two jobs of the same script whose lines read the same: either it is known whose words are whose, or it is said.
    assert found[4] in (None, ("a", "b"))
    assert found[5] in (None, ("a b",))
    assert found[6] in (None, ("a", ""))  # 22.05 shows a line whose end is lost
    reads = CopyReads(Runner(environ=lab.environ()), lambda: datetime.now(UTC))
    job = reads.job(int(done.stdout))
    assert job is not None
    settings = reads.settings()
    assert submission_of(settings.state_location, job, reads.detail(job), version=settings.version).arguments == ()


def head_of(lab: SlurmLab) -> tuple[CopyReads, Commands, Owners]:
    """The agent's own parts on this Slurm."""
    head = HeadNode(lab, {})
    return head.reads, head.commands, head.owners


def order_for(number: int, **more: Any) -> Order:
    now = datetime.now(UTC)
    base = Order(
        token=f"t{number}",
        verb=Verb.SUBMIT,
        cluster="lab",
        issued_at=now,
        expires_at=now,
        attempt=f"slurm.lab.{number}",
        slurm_job=number,
        new_attempt=f"slurm.lab.{number}-a2",
        spec="0" * 64,
    )
    return dataclasses.replace(base, **more)


def learn(owners: Owners, job: Job) -> None:
    """A look has seen the job as its user's."""
    doc = AttemptDoc(
        attempt=f"slurm.lab.{job.job}",
        cluster="lab",
        slurm_job=job.job,
        restart=0,
        state=SlurmState.FAILED,
        seen_at=datetime.now(UTC),
        user=job.user,
    )
    owners.learn((doc,))


def ask(lab: SlurmLab, name: str, options: tuple[str, ...], lines: str) -> int | None:
    """Submit one; None where this Slurm does not know what is asked for."""
    script = lab.folder / "work" / f"{name.replace(' ', '-')}.sh"
    script.write_text(f"#!/bin/sh\n{lines}\nsleep 600\n")
    done = lab.run("sbatch", "--hold", "--parsable", *options, str(script), "--config", name, fails=True)
    return int(done.stdout) if done.returncode == 0 else None


# Those of which slurmctld shows other figures once they have run.
CHANGED_BY_RUNNING = ("one or two nodes", "tasks alone", "tasks per GPU", "alone", "CPUs", "GPUs per task", "two nodes")
# What is lost where one option is left out: (how the job was asked for, option, a part of what is told).
LOSSES = (
    ("two nodes", "nodes", "was"),
    ("tasks alone", "ntasks", "NumTasks was '4'"),
    ("GPUs per task", "gpus-per-task", "TresPerTask was 'gres/gpu"),
    ("GPUs", "gpu-bind", "TresBind was"),
    ("GPUs per node", "gpus-per-node", "TresPerNode was 'gres/gpu:2'"),
    ("alone", "exclusive", "was"),
    ("CPUs", "mincpus", "MinCPUsNode was '3'"),
    ("memory", "mem", "MinMemoryNode was '100M'"),
    ("nodes by name", "nodelist", "ReqNodeList is nothing"),
    ("features", "licenses", "Licenses was 'foo:1'"),
    ("time", "time", "TimeLimit was '00:10:00'"),
    ("placement", "spread-job", "SpreadJob was 'Yes'"),
    ("paths", "output", "StdOut was"),
    ("a plug-in's", "auto-resume", "auto_resume, an option of a SPANK plug-in, is not the same"),
)


def capture_all(lab: SlurmLab, names: Iterable[str], *, runs: bool = False) -> dict[str, spec.CapturedSpec]:
    """Submit one of each, captured as it waits or only once it runs; what this Slurm does not know is left out."""
    reads, _, owners = head_of(lab)
    numbers = {name: number for name in names if (number := ask(lab, f"{name}-{runs}", *ASKED[name])) is not None}
    wait_written(lab, str(lab.folder / "work" / f"{list(numbers)[-1].replace(' ', '-')}-{runs}.sh"))
    settings, found = reads.settings(), {}
    for name, number in numbers.items():
        if runs:
            lab.run("scontrol", "release", str(number))
            lab.wait(lambda number=number: lab.job_state(number) == "RUNNING", f"the job with {name} to run")
        job = reads.job(number)
        assert job is not None
        found[name] = spec.capture_spec(reads, settings, job, reads.detail(job))
        learn(owners, job)
        lab.run("scancel", str(number))
    return found


def again(lab: SlurmLab, taken: spec.CapturedSpec, **more: Any) -> tuple[str, ...]:
    """Submitted again as the agent does it: in what the copy differs, or why there is none."""
    reads, commands, owners = head_of(lab)
    if taken.cannot or taken.spec is None:
        return taken.cannot
    job = next(job for job in reads.jobs() if job.user == taken.spec.user)
    learn(owners, job)
    order = order_for(job.job, **more)
    try:
        copy = commands.submit(taken.spec, order)
    except SlurmError as err:
        return (str(err),)
    try:
        return commands.differences(copy, taken.spec, order)
    finally:
        lab.run("scancel", str(copy))


@pytest.mark.outermost
@pytest.mark.parametrize("runs", [False, True], ids=["captured as it waited", "captured as it ran"])
def test_a_job_submitted_again_is_the_same_job(lab: SlurmLab, runs: bool) -> None:
    names = CHANGED_BY_RUNNING if runs else tuple(ASKED)
    taken = capture_all(lab, names, runs=runs)
    assert len(taken) >= len(names) - 5
    different = {name: again(lab, one, exclude=() if "nodes" in name else ("n3",)) for name, one in taken.items()}
    assert {name: found for name, found in different.items() if found} == {}


def test_an_option_that_is_left_out_of_a_copy_is_found_in_its_record(lab: SlurmLab) -> None:
    taken = capture_all(lab, dict.fromkeys(name for name, _, _ in LOSSES))
    told = {}
    for name, option, expected in LOSSES:
        if name in taken:
            whole = taken[name].spec
            assert whole is not None
            assert option in whole.options, (name, whole.options)
            options = {one: given for one, given in whole.options.items() if one != option}
            told[name, option, expected] = again(
                lab, dataclasses.replace(taken[name], spec=dataclasses.replace(whole, options=options))
            )
    assert len(told) >= len(LOSSES) - 1
    assert {how: found for how, found in told.items() if not any(how[2] in one for one in found)} == {}


def test_a_plug_ins_option_that_cannot_be_given_again_is_told_before_anybody_needs_it(lab: SlurmLab) -> None:
    """The line of a script from standard input is not kept, so nobody knows how its option was spelt."""
    environ = lab.environ() | {"_SLURM_SPANK_OPTION_pyxis_container_image": "nvcr.io/x"}
    done = subprocess.run(
        ["sbatch", "--hold", "--parsable", f"--chdir={lab.folder}/work"],
        input=SCRIPT,
        env=environ,
        capture_output=True,
        text=True,
        check=True,
    )
    reads, _, _ = head_of(lab)
    job = reads.job(int(done.stdout))
    assert job is not None
    taken = spec.capture_spec(reads, reads.settings(), job, reads.detail(job))
    assert [reason for reason in taken.cannot if "pyxis_container_image" in reason]
