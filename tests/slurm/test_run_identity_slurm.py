"""One run by many names on a real Slurm: nothing of ours starts beside another start of it, and a job that is another
run is no hindrance. Holds of users are left, and what waits for a run waits for its next start.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest

from rekindle import monitor
from rekindle.protocol.cluster.orders import OrderResult, Outcome, RunTie, Sibling, Standing, Verb
from rekindle.protocol.keys import heartbeat_key
from tests.slurm.head import Head, bucket, saved, spec_of, until
from tests.slurm.lab.conf import Timers
from tests.slurm.lab.lab import SlurmLab

pytestmark = pytest.mark.versions


@dataclass(frozen=True, kw_only=True)
class Way:
    """How a run that has failed is named, and how what its user submits next is.

    {box} is a folder, {rel} its path from where jobs are submitted, {link} a link to it, {moves} one that leads
    elsewhere after the first has failed, {a} the number of the first. tie: by what it is the same run; None: another.
    """

    tie: RunTie | None
    first: str = "rekindle"
    second: str | None = "rekindle"
    environ: tuple[Mapping[str, str], Mapping[str, str]] = ({}, {})
    options: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    script: str = ""  # instead of the first one's
    update: Mapping[str, str] = field(default_factory=dict)
    is_held: bool = False


OTHER = "sleep 601"
KILLED = ("--requeue", "--kill-on-invalid-dep=yes")
# Its mailbox stands in its Python alone.
MONITORED = f"""mkdir -p {{{{box}}}}-2
PYTHONPATH={Path(monitor.__file__).parents[2]} {sys.executable} -c "import time, rekindle.monitor
with rekindle.monitor.start({{how}}) as monitor:
    for step in range(3000):
        monitor.step(step, loss=1.0); time.sleep(0.2)"
"""
WAYS: Mapping[str, Way] = {
    "mailbox": Way(tie=RunTie.MAILBOX, first="rekindle,mailbox={box}", second="rekindle,mailbox={box}", script=OTHER),
    "a slash at its end": Way(
        tie=RunTie.MAILBOX, first="rekindle,mailbox={box}", second="rekindle,mailbox={box}/", script=OTHER
    ),
    "two slashes": Way(
        tie=RunTie.MAILBOX, first="rekindle,mailbox={box}", second="rekindle,mailbox=/{box}", script=OTHER
    ),
    "a link": Way(tie=RunTie.MAILBOX, first="rekindle,mailbox={box}", second="rekindle,mailbox={link}", script=OTHER),
    "a path from its folder": Way(
        tie=RunTie.MAILBOX, first="rekindle,mailbox={box}", second="rekindle,mailbox=../work/{rel}", script=OTHER
    ),
    "a link that has moved since": Way(
        tie=RunTie.MAILBOX, first="rekindle,mailbox={moves}", second="rekindle,mailbox={box}", script=OTHER
    ),
    "an array that waits": Way(
        tie=RunTie.MAILBOX,
        first="rekindle,mailbox={box}",
        second="rekindle,mailbox={box}",
        options=("--array=1-3", "--begin=now+1hour"),
        script=OTHER,
    ),
    "its script's own variables": Way(
        tie=RunTie.MAILBOX,
        first="rekindle,mailbox={box}",
        environ=({}, {"SCRATCH": "{box}"}),
        script="AT=$SCRATCH/\nsrun --export=ALL,REKINDLE_MAILBOX=$AT sleep 601",
    ),
    "a path that leads back": Way(
        tie=RunTie.MAILBOX, first="rekindle,mailbox={box}", second="rekindle,mailbox={box}/x/..", script=OTHER
    ),
    "a function of its script": Way(
        tie=RunTie.MAILBOX,
        first="rekindle,mailbox={box}",
        script="places() {{ declare -x REKINDLE_MAILBOX={box}; }}\nplaces\nsleep 601",
    ),
    "a value of --export": Way(
        tie=RunTie.MAILBOX,
        first="rekindle,mailbox={box}",
        options=("--export=ALL,REKINDLE_MAILBOX={box}",),
        script=OTHER,
    ),
    "a file URI": Way(
        tie=RunTie.MAILBOX, first="rekindle,mailbox={box}", second="rekindle,mailbox=file://{box}", script=OTHER
    ),
    "REKINDLE_MAILBOX in both": Way(
        tie=RunTie.MAILBOX, environ=({"REKINDLE_MAILBOX": "{box}"}, {"REKINDLE_MAILBOX": "{box}"}), script=OTHER
    ),
    "comment and REKINDLE_MAILBOX": Way(
        tie=RunTie.MAILBOX, first="rekindle,mailbox={box}", environ=({}, {"REKINDLE_MAILBOX": "{link}"}), script=OTHER
    ),
    "Extra": Way(
        tie=RunTie.MAILBOX,
        first="rekindle,mailbox={box}",
        second=None,
        options=("--extra=rekindle,mailbox={box}",),
        script=OTHER,
    ),
    "AdminComment": Way(
        tie=RunTie.MAILBOX,
        first="rekindle,mailbox={box}",
        second=None,
        update={"admincomment": "rekindle,mailbox={box}"},
        script=OTHER,
    ),
    "the script's comment": Way(
        tie=RunTie.MAILBOX,
        first="rekindle,mailbox={box}",
        second=None,
        script="#SBATCH --comment=rekindle,mailbox={box}\nsleep 601",
        update={"comment": "theirs"},
    ),
    "checkpoints": Way(
        tie=RunTie.CHECKPOINTS, first="rekindle,checkpoints={box}", second="rekindle,checkpoints={link}", script=OTHER
    ),
    "job": Way(tie=RunTie.JOB, second="rekindle,job=slurm.lab.{a}", script=OTHER),
    "the same script": Way(tie=RunTie.SCRIPT),
    "the same script, without a word": Way(tie=RunTie.SCRIPT, second=None),
    "afterany": Way(tie=RunTie.CHAIN, options=("--dependency=afterany:{a}",), script=OTHER),
    "afternotok": Way(tie=RunTie.CHAIN, options=("--dependency=afternotok:{a}",), script=OTHER),
    "singleton": Way(tie=RunTie.CHAIN, options=("--dependency=singleton",), script=OTHER),
    "one of two edges": Way(tie=RunTie.CHAIN, options=("--dependency=afterany:{a}?singleton",), script=OTHER),
    "submitted within it": Way(tie=RunTie.CHAIN, environ=({}, {"SLURM_JOB_ID": "{a}"}), script=OTHER),
    "its monitor's own word": Way(
        tie=RunTie.MAILBOX, first="rekindle,mailbox={box}", script=MONITORED.format(how="mailbox='{box}'")
    ),
    # ---- other runs
    "its monitor's word of another": Way(
        tie=None, first="rekindle,mailbox={box}", script=MONITORED.format(how="mailbox='{box}-2'")
    ),
    "another mailbox": Way(tie=None, first="rekindle,mailbox={box}", second="rekindle,mailbox={box}2"),
    "other arguments": Way(tie=None, words=("--lr", "3")),
    "another value of what the script uses": Way(tie=None, environ=({"LR": "1"}, {"LR": "2"})),
    "waits for its success": Way(tie=None, options=("--dependency=afterok:{a}",), script=OTHER),
    "held": Way(tie=None, options=("--hold",)),
    "cleans up after it": Way(
        tie=None, second=None, options=("--dependency=afterany:{a}", "--job-name=cleans"), script=OTHER
    ),
    "evaluates within its environment": Way(
        tie=None,
        second=None,
        options=("--job-name=evaluates",),
        environ=({"REKINDLE_MAILBOX": "{box}"}, {"REKINDLE_MAILBOX": "{box}"}),
        script=OTHER,
    ),
}  # fmt: skip


def put(
    lab: SlurmLab,
    name: str,
    text: str,
    *options: str,
    comment: str | None,
    environ: Mapping[str, str],
    words: tuple[str, ...] = (),
) -> int:
    path = lab.folder / "work" / f"{name}.sh"
    path.write_text(f"#!/bin/bash\n{text}\n")
    named = [f"--comment={comment}"] if comment is not None else []
    done = subprocess.run(
        ["sbatch", "--parsable", f"--job-name={name}", *named, *options, str(path), *words],
        env=lab.environ() | dict(environ),
        cwd=lab.folder / "work",
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return int(done.stdout.partition(";")[0])


@pytest.fixture
def head(tmp_path: Path) -> Iterator[Head]:
    with SlurmLab(nodes=("n1", "n2"), cpus=128, timers=Timers(kill_wait_s=1)) as lab, bucket() as s3:
        yield Head(lab, s3, tmp_path / "state")


def has_spec(head: Head, job: int) -> bool:
    doc = head.doc(f"slurm.lab.{job}")
    return doc is not None and bool(doc.spec or doc.cannot_resubmit)


def requeue(head: Head, job: int) -> OrderResult:
    return head.carry_out(Verb.REQUEUE, attempt=f"slurm.lab.{job}", slurm_job=job, new_attempt=f"slurm.lab.{job}.r1")


def has_failed(head: Head, job: int) -> bool:
    doc = head.doc(f"slurm.lab.{job}")
    return doc is not None and doc.state.value == "failed"


@pytest.mark.outermost
def test_nothing_is_started_beside_a_run_however_it_is_named(head: Head, tmp_path: Path) -> None:
    lab, first, second = head.lab, dict[str, int](), dict[str, int]()
    # --extra came with 23.02. Source: Slurm's release notes.
    ways = {name: way for name, way in WAYS.items() if lab.install.version() >= (23, 2) or name != "Extra"}
    for n, (name, way) in enumerate(ways.items()):
        box = tmp_path / f"box{n}"
        box.mkdir()
        (tmp_path / f"link{n}").symlink_to(box)
        (tmp_path / f"moves{n}").symlink_to(box)
        flag = lab.folder / "work" / f"flag{n}"
        text = f": $LR; [ -e {flag} ] || {{ while [ ! -e {flag} ]; do sleep 0.2; done; exit 3; }}; sleep 600"
        fill = partial(str.format, box=box, link=tmp_path / f"link{n}", moves=tmp_path / f"moves{n}")
        environ = {key: fill(said) for key, said in way.environ[0].items()}
        first[name] = put(lab, f"t{n}", text, "--requeue", comment=fill(way.first), environ=environ)
    until(lambda: all(has_spec(head, job) for job in first.values()), "their specs", head.look)
    for n, (name, way) in enumerate(ways.items()):
        box, link = tmp_path / f"box{n}", tmp_path / f"link{n}"
        rel = os.path.relpath(box, lab.folder / "work")
        fill = partial(str.format, box=box, rel=rel, link=link, a=first[name])
        path = lab.folder / "work" / f"t{n}.sh"
        text = fill(way.script) if way.script else path.read_text().partition("\n")[2].rstrip("\n")
        chained = [option for option in way.options if option.startswith("--dependency")]
        submit = partial(
            put,
            lab,
            f"t{n}",
            text,
            *(fill(option) for option in way.options),
            comment=fill(way.second) if way.second is not None else None,
            environ={key: fill(said) for key, said in way.environ[1].items()},
            words=way.words,
        )
        if chained:
            second[name] = submit()
        (lab.folder / "work" / f"flag{n}").touch()
        if not chained:
            lab.wait(lambda name=name: lab.job_state(first[name]) == "FAILED", f"{name} to fail")  # type: ignore[misc]
            (tmp_path / f"moves{n}").unlink()
            (tmp_path / f"moves{n}").symlink_to(tmp_path)
            second[name] = submit()
        if "monitor.start" in way.script:
            heard = heartbeat_key(f"slurm.lab.{second[name]}")
            lab.wait(lambda n=n, heard=heard: list(tmp_path.glob(f"box{n}*/{heard}")), f"{name}: its monitor")  # type: ignore[misc]
        for key, said in way.update.items():
            lab.run("scontrol", "update", f"jobid={second[name]}", f"{key}={fill(said)}")
    until(lambda: all(has_failed(head, job) for job in first.values()), "their failures", head.look)
    saved(lab)  # where neither shows them, a script's arguments are told by slurmctld's saved state alone
    found = {}
    for name, job in first.items():
        answer = requeue(head, job)
        found[name] = answer.sibling.tie if answer.sibling is not None else answer.outcome
        if answer.sibling is not None:
            assert (answer.outcome, answer.sibling.slurm_job) == (Outcome.REFUSED, second[name])
            assert lab.job_state(job) == "FAILED"
    expected: dict[str, RunTie | Outcome] = {name: way.tie or Outcome.DONE for name, way in ways.items()}
    if (23, 2) <= lab.install.version() < (25, 11):  # neither Command nor SubmitLine shows a script's arguments
        expected["other arguments"] = Outcome.REFUSED
    assert found == expected


def test_a_hold_of_its_user_is_left_and_no_copy_is_made_beside_it(head: Head) -> None:
    lab = head.lab
    job = put(
        lab, "t", '[ -n "$SLURM_RESTART_COUNT" ] || exit 3; sleep 600', "--requeue", comment="rekindle", environ={}
    )
    until(lambda: has_spec(head, job) and has_failed(head, job), "its failure", head.look)
    lab.run("scontrol", "requeuehold", str(job))
    lab.wait(lambda: lab.job_state(job) == "PENDING", "it to be held")
    again = requeue(head, job)
    doc = head.doc(f"slurm.lab.{job}")
    assert doc is not None
    about = {"attempt": f"slurm.lab.{job}", "slurm_job": job, "new_attempt": f"slurm.lab.{job}-a2", "spec": doc.spec}
    copy = head.carry_out(Verb.SUBMIT, **about)
    assert [(one.outcome, one.is_held_by_user) for one in (again, copy)] == [(Outcome.REFUSED, True)] * 2
    assert (lab.job_state(job), lab.job(job)["Priority"]) == ("PENDING", "0")


def test_a_link_that_is_not_its_turn_yet_is_no_hindrance(head: Head) -> None:
    """The run is held by us: its next link waits on, and the run goes on itself."""
    lab = head.lab
    job = put(lab, "t", "sleep 600", "--requeue", comment="rekindle", environ={})
    link = put(lab, "t", "sleep 600", f"--dependency=afterany:{job}", comment="rekindle", environ={})
    until(lambda: has_spec(head, job), "its spec", head.look)
    lab.wait(lambda: lab.job_state(job) == "RUNNING", "it to run")
    assert head.carry_out(Verb.HOLD, attempt=f"slurm.lab.{job}", slurm_job=job).outcome is Outcome.DONE
    lab.wait(lambda: lab.job_state(job) == "PENDING", "our hold")
    assert requeue(head, job).outcome is Outcome.DONE
    assert lab.job_state(link) == "PENDING"


def test_a_chain_goes_on_across_a_copy(head: Head) -> None:
    """What waits for the first waits for its copy; the link that the copy submits is the run, under its own name."""
    lab, work = head.lab, head.lab.folder / "work"
    again = f"sbatch --parsable --job-name=t --comment=rekindle --dependency=afterany:$SLURM_JOB_ID {work}/t.sh"
    job = put(
        lab,
        "t",
        f"[ -e {work}/one ] || {{ touch {work}/one; exit 3; }}\n"
        f"[ -e {work}/two ] || {{ touch {work}/two; {again} >{work}/part; mv {work}/part {work}/link; exit 4; }}\n"
        "sleep 600",
        comment="rekindle",
        environ={},
    )
    waits = put(lab, "eval", "sleep 600", f"--dependency=afterok:{job}", comment=None, environ={})
    name = f"slurm.lab.{job}"
    until(lambda: has_spec(head, job) and has_failed(head, job), "its failure", head.look)

    copy = head.carry_out(Verb.SUBMIT, attempt=name, slurm_job=job, new_attempt=f"{name}-a2", spec=spec_of(head, job))
    assert copy.outcome is Outcome.DONE, copy
    assert copy.slurm_job is not None
    assert f"afterok:{copy.slurm_job}(" in lab.job(waits)["Dependency"]

    link = int(lab.wait(lambda: (work / "link").exists() and (work / "link").read_text(), "the copy's own link"))
    lab.wait(lambda: lab.job_state(link) == "RUNNING", "the link to begin by itself")
    ended = until(
        lambda: (doc := head.doc(f"{name}-a2")) is not None and doc.ended_at and doc.spec and doc,
        "its failure",
        head.look,
    )
    beside = {"attempt": ended.attempt, "slurm_job": copy.slurm_job, "new_attempt": f"{name}-a3", "spec": ended.spec}
    answer = head.carry_out(Verb.SUBMIT, **beside)
    assert answer.outcome is Outcome.REFUSED
    assert answer.sibling == Sibling(
        slurm_job=link, standing=Standing.HAS_NODES, tie=RunTie.CHAIN, attempt=f"slurm.lab.{link}"
    )
    assert [doc.attempt for doc in head.docs() if doc.slurm_job == link] == [f"slurm.lab.{link}"]


@pytest.mark.skipif(os.geteuid() != 0, reason="another user needs root")
def test_what_waits_for_a_run_waits_for_its_next_start(head: Head) -> None:
    lab = head.lab
    flag, ran = lab.folder / "work" / "flag", lab.folder / "work" / "evaluated"
    job = put(lab, "t", f"[ -e {flag} ] && exit 0; touch {flag}; exit 3", "--requeue", comment="rekindle", environ={})
    waits = put(lab, "eval", f"touch {ran}", f"--dependency=afterok:{job}", comment=None, environ={})
    killed = put(lab, "kill", f"touch {ran}2", *KILLED, f"--dependency=afterok:{job}", comment=None, environ={})
    given_up = put(lab, "user", f"touch {ran}3", *KILLED, f"--dependency=afterok:{job}", comment=None, environ={})
    lab.run("scancel", str(given_up))
    theirs = lab.folder / "work" / "theirs.sh"
    theirs.write_text("#!/bin/bash\nsleep 600\n")
    for folder in (lab.folder, lab.folder / "work"):
        folder.chmod(0o755)
    as_another = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--", "sbatch", "--parsable")
    others = int(lab.run(*as_another, "-o", "/dev/null", f"--dependency=afterok:{job}", str(theirs)).stdout)
    until(lambda: has_spec(head, job) and has_failed(head, job), "its failure", head.look)
    lab.wait(lambda: lab.job(waits)["Reason"] == "DependencyNeverSatisfied", "it to wait in vain")
    lab.wait(lambda: lab.job_state(killed) == "CANCELLED", "Slurm to cancel it")
    answer = requeue(head, job)
    assert answer.outcome is Outcome.DONE
    moved, _, left = answer.detail.partition("; 1 jobs of other users, which wait for the start before, are left")
    found = {int(number) for number in moved.rpartition("wait for it now: ")[2].split(", ")}
    assert found == {waits, killed}
    assert left.partition(";")[0].endswith(f": {others}")
    lab.wait(lambda: ran.exists() and Path(f"{ran}2").exists(), "what waits for its success")
    assert lab.job_state(given_up) == "CANCELLED"
