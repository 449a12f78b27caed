"""One user of a Slurm cluster against all others, end to end: another uid on a real Slurm, with everything that a user
can write, beside one run that is recovered meanwhile. The whole agent runs in this process, turn by turn.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path

import pytest

from rekindle.protocol.cluster.documents import SlurmState
from rekindle.protocol.cluster.names import relay_prefix
from rekindle.protocol.cluster.orders import Outcome, Verb
from tests.security.bad_documents import DOCUMENTS, WORDS
from tests.security.test_agent_budgets import heartbeat_in
from tests.slurm.head import Head, bucket, script, until
from tests.slurm.lab.lab import SlurmLab

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="another user needs root"),
]
UID = 65534
AS_ANOTHER = ("setpriv", f"--reuid={UID}", f"--regid={UID}", "--clear-groups", "--")
JOBS, TASKS = 70, 600
COMMANDS = 20  # of one look, however many jobs there are; and one for each record that is forged
FORGED = "x JobId={job} UserId=root(0) Comment=norekindle\nJobId={job} JobState=CANCELLED NodeList=n1"


@pytest.fixture
def lab() -> Iterator[SlurmLab]:
    with SlurmLab(nodes=("n1", "n2", "n3"), cpus=8, extra_conf=["MaxJobCount=20000"]) as raised:
        raised.folder.chmod(0o755)
        (raised.folder / "work").chmod(0o1777)
        yield raised


def attack(lab: SlurmLab, box: Path, victim: int, victims_box: Path) -> Mapping[str, int]:
    """Submits what it can; Slurm may refuse some of it."""
    own = lab.folder / "work" / "attacker"
    own.mkdir()
    os.chown(own, UID, UID)
    plain = script(lab, "attack.sh", 'printf "CUDA error: %0100000d\\n\\033[2J\\377" 1; exit 1')
    plain.chmod(0o755)
    named = own / f"a JobId={victim} Comment=rekindle\nb.sh"
    named.write_bytes(plain.read_bytes())
    named.chmod(0o755)
    forged = FORGED.format(job=victim)
    first = f"slurm.lab.{victim}"
    asked: dict[str, tuple[str, ...]] = {
        "claims the Job": (f"--comment=rekindle,job={first},attempt={first}-a2,mailbox={victims_box}",),
        "claims its next start": (f"--comment=rekindle,job={first},attempt={first}.r1",),
        "claims the agent's name": (f"--comment=rekindle,job={first},attempt={first}-a2",),
        "the victim's mailbox": (f"--comment=rekindle,mailbox={victims_box},checkpoints={victims_box}",),
        "root's files": ("--comment=rekindle,mailbox=/root,checkpoints=/etc",),
        "processes": ("--comment=rekindle,mailbox=/proc/1,checkpoints=/proc/self/root",),
        "devices": ("--comment=rekindle,mailbox=/dev,checkpoints=/dev/stdin", "--output=/dev/zero"),
        "its mailbox": (f"--comment=rekindle,mailbox={box}", f"--job-name={forged}"),
        "a forged record": ("--comment=rekindle\nJobId=1 Comment=norekindle", f"--job-name={forged}"),
        "a long comment": (f"--comment=rekindle,{'x=y,' * 250}",),
        "a root's log": ("--comment=rekindle", "--output=/etc/shadow", "--error=/proc/kcore"),
        "out of another's": (f"--comment=norekindle,job={first}",),
    }
    if lab.install.version() >= (23, 11):
        asked["extra"] = (f"--extra=rekindle,job={first},attempt={first}-a2", f"--job-name={forged}")
    for name, words in WORDS.items():
        if "\0" not in words and words.isprintable() and not any("\ud800" <= word <= "\udfff" for word in words):
            asked[name] = (f"--comment=rekindle,mailbox={words[:600]},job={words[:200]}", f"--job-name={words[:200]}")
    sbatch = (*AS_ANOTHER, "sbatch", "--parsable", "--hold", "-n1", "--nodelist=n3")
    last = (str(plain),)
    given = {name: (*options, *last) for name, options in asked.items()}
    given["its script's name"] = ("--comment=rekindle", str(named))
    as_ours = own / f"rekindle-sbatch-{first}-a2.abcd1234" / "batch"  # where the agent's own submission would lie
    as_ours.parent.mkdir()
    as_ours.write_bytes(plain.read_bytes())
    as_ours.chmod(0o755)
    given["the agent's submission"] = (str(as_ours),)
    given["the environment"] = (
        f"--export=REKINDLE_PROTECT=rekindle:x,job={first},REKINDLE_ATTEMPT_NAME={first}-a2",
        *last,
    )
    given["huge arguments"] = ("--comment=rekindle", *last, *("a b c " * 4 for _ in range(16_000)))
    found = {}
    for name, arguments in given.items():
        done = lab.run(*sbatch, *arguments, fails=True)
        if done.returncode == 0:  # a version may refuse what another takes
            found[name] = int(done.stdout)
    assert len(found) > len(given) * 2 // 3, given.keys() - found.keys()
    for name in ("its mailbox", "a root's log", "the victim's mailbox", "claims the Job"):
        lab.run(*AS_ANOTHER, "scontrol", "release", str(found[name]))
    array = lab.run(*sbatch, f"--array=0-{TASKS - 1}", "--comment=rekindle", *last).stdout.strip()
    found["an array"] = int(array)
    words = (f"REKINDLE_PROTECT=rekindle,job={first},attempt={first}-a2", f"REKINDLE_ATTEMPT_NAME={first}-a2")
    told = lab.run(*AS_ANOTHER, "env", *words, *sbatch[len(AS_ANOTHER) :], *last)
    found["the environment"] = int(told.stdout)
    for number in (victim, found["the agent's submission"]):  # an administrator's word, about another's job or its own
        lab.run(*AS_ANOTHER, "scontrol", "update", f"jobid={number}", "admincomment=norekindle", fails=True)
    for change in ("comment=norekindle", "extra=norekindle", f"admincomment=rekindle,job={first}-x"):
        lab.run(*AS_ANOTHER, "scontrol", "update", f"jobid={victim}", change, fails=True)
    assert "norekindle" not in lab.run("scontrol", "-o", "show", "job", str(victim)).stdout
    many = f"for one in $(seq {JOBS}); do sbatch --hold -n1 --comment=rekindle {plain}; done"
    lab.run(*AS_ANOTHER, "bash", "-c", many)
    for start in range(0, TASKS, 200):  # each task becomes a record of its own
        tasks = ",".join(f"{array}_{task}" for task in range(start, start + 200))
        lab.run(*AS_ANOTHER, "scontrol", "update", f"jobid={tasks}", "nice=1")
    # They fail, one after the other; 22.05 says so of those that have, with status 1.
    lab.run(*AS_ANOTHER, "scontrol", "release", f"{array}_[0-9]", fails=True)
    return found


def hostile_box(box: Path, victim: int, secret: Path) -> None:
    """A mailbox of its own, with every document of the corpus and ways out of it."""
    kinds = (
        f"heartbeats/{{}}-slurm.lab.{victim}",
        "replies/r{}",
        "manifests/step-000000000{:03}-x",
        "reports/x/stall-{}",
    )
    for number, raw in enumerate(DOCUMENTS.values()):
        for kind in kinds:
            path = box / "rekindle" / f"{kind.format(number)}.json"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(raw)
    beats = box / "rekindle" / "heartbeats"
    (beats / f"slurm.lab.{victim}.json").symlink_to(secret)
    (beats / "root.json").symlink_to("/etc/shadow")
    os.mkfifo(beats / "fifo.json")
    (box / "rekindle" / "manifests" / "step-000000000900-x.json").write_text(
        json.dumps({"v": 1, "root": "/root", "step": 900, "files": [{"path": "../../etc/shadow", "size": 1}]})
    )
    for folder, _, names in os.walk(box):
        os.chown(folder, UID, UID)
        for name in names:
            os.lchown(Path(folder, name), UID, UID)


def looked(head: Head) -> int:
    """How many commands one look took."""
    before = head.agent.parts.watcher.commands
    head.look()
    return head.agent.parts.watcher.commands - before


def test_a_user_harms_his_own_jobs_alone(lab: SlurmLab, tmp_path: Path) -> None:
    with bucket() as s3:
        head = Head(lab, s3, tmp_path / "state")
        assert head.agent.parts.relay is not None
        victims_box, runs = lab.folder / "victim", lab.folder / "work" / "runs"
        train = script(lab, "train.sh", f'echo "$SLURM_JOB_ID" >>{runs}; srun sleep 600')
        victim = lab.submit(train, "-N2", "--exclusive", f"--comment=rekindle,mailbox={victims_box}")
        name = f"slurm.lab.{victim}"
        heartbeat_in(victims_box, name)
        secret = victims_box / "secret.json"
        secret.write_text('{"v": 1, "secret": "of the victim"}')
        for folder, _, files in os.walk(victims_box):
            Path(folder).chmod(0o700)
            for file in files:
                Path(folder, file).chmod(0o600)
        until(lambda: (doc := head.doc(name)) and doc.spec and doc.state is SlurmState.RUNNING, "it to run", head.look)
        own = head.doc(name)
        assert own is not None

        box = lab.folder / "attacker"
        hostile_box(box, victim, secret)
        theirs = attack(lab, box, victim, victims_box)
        second = lab.submit(train, "-N1", "--hold", "--comment=rekindle")  # behind all of it in the queue

        assert looked(head) <= COMMANDS + len(theirs)
        doc = head.doc(f"slurm.lab.{second}")
        assert doc is not None, "the first look shows it"
        assert (doc.state, doc.user) == (SlurmState.PENDING, "root")
        # How many of them one look gets through in the seconds that a user has, is the machine's to say.
        until(lambda: sum(doc.user != "root" for doc in head.docs()) > JOBS, "the attack to be what it says", head.look)
        for _ in range(2):
            assert looked(head) <= COMMANDS + len(theirs)
        kept = head.doc(name)
        assert kept is not None
        assert (kept.state, kept.user, kept.mailbox, kept.spec) == (SlurmState.RUNNING, "root", own.mailbox, own.spec)
        for one in head.docs():
            assert one.user == "root" or one.attempt.partition(".r")[0] != name, one
            assert one.user == "root" or not one.attempt.startswith(f"{name}-"), one
            assert one.user == "root" or one.job_id != name, one

        documents: dict[str, bytes] = {}
        for _ in range(2):
            documents |= head.agent.parts.relay.run_once(datetime.now(UTC)).documents
        its_own = relay_prefix("lab", name)
        assert f"{its_own}/rekindle/heartbeats/{name}.json" in documents
        for key, raw in documents.items():
            assert key.startswith(f"{its_own}/") or b"of the victim" not in raw, key
            assert b"root:" not in raw, f"{key} holds a file of root's"
        assert not [key for key in documents if "secret" in key]

        assert head.carry_out(Verb.CANCEL, attempt=name, slurm_job=victim).outcome is Outcome.DONE
        lab.wait(lambda: lab.job_state(victim) == "CANCELLED", "it to end")
        head.look()
        more = {"attempt": name, "slurm_job": victim, "new_attempt": f"{name}-a2", "spec": own.spec}
        answer = head.carry_out(Verb.SUBMIT, exclude=("n3",), **more)
        assert answer.outcome is Outcome.DONE, answer
        assert answer.slurm_job is not None
        assert answer.slurm_job not in theirs.values()
        until(lambda: len(runs.read_text().split()) > 1, "the copy to run", head.look)
        head.look()
        new = head.doc(f"{name}-a2")
        assert new is not None
        assert (new.slurm_job, new.user, new.state) == (answer.slurm_job, "root", SlurmState.RUNNING)
        assert runs.read_text().split() == [str(victim), str(answer.slurm_job)]


@pytest.mark.versions
@pytest.mark.outermost
def test_what_a_user_writes_into_his_own_job_does_not_outdo_the_administrator(lab: SlurmLab, tmp_path: Path) -> None:
    """AdminComment is the administrators' in every version; a user writes the comment, and Extra where there is one."""
    plain = script(lab, "own.sh", "exit 0")
    plain.chmod(0o755)
    wild, has_extra = "rekindle:wild", lab.install.version() >= (23, 11)
    extra = (f"--extra={wild}",) if has_extra else ()
    user = (*AS_ANOTHER, "env", f"REKINDLE_PROTECT={wild}")
    number = int(lab.run(*user, "sbatch", "--parsable", "--hold", "-n1", *extra, str(plain)).stdout)
    other = int(lab.run(*user, "sbatch", "--parsable", "--hold", "-n1", *extra, str(plain)).stdout)

    def update(job: int, change: str, *who: str) -> bool:
        lab.run(*who, "scontrol", "update", f"jobid={job}", change, fails=True)
        shown = lab.run("scontrol", "-o", "show", "job", str(job)).stdout
        name, _, text = change.partition("=")
        return f" {name.lower()}={text}" in shown.lower()

    assert not update(number, f"admincomment={wild}", *AS_ANOTHER)
    assert update(number, "admincomment=norekindle")
    assert update(other, "admincomment=rekindle:gentle")
    for word in (wild, ""):  # neither written over nor taken away
        assert not update(number, f"admincomment={word}", *AS_ANOTHER) or word == ""
        assert "AdminComment=norekindle" in lab.run("scontrol", "-o", "show", "job", str(number)).stdout
    with bucket() as s3:
        head = Head(lab, s3, tmp_path / "state")
        head.look()
        assert head.doc(f"slurm.lab.{number}") is None
        doc = head.doc(f"slurm.lab.{other}")
        assert doc is not None
        assert doc.policy == "gentle", "the administrator's word precedes all but the comment"
        assert update(number, f"comment={wild}", *AS_ANOTHER)
        assert not has_extra or update(number, "extra=rekindle:wilder", *AS_ANOTHER)
        head.look()
        head.start()  # and an agent that has seen none of it before
        head.look()
        assert head.doc(f"slurm.lab.{number}") is None, "norekindle of an administrator stands"
