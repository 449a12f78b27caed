"""Ways to ask for a job, and to change one that waits, beyond those of test_same_job: the copy is the same, or there is
none and it is said why. Each was run by hand on 26.05 first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest

from rekindle.protocol.cluster.documents import NodesDoc
from rekindle.protocol.cluster.names import nodes_key
from rekindle.protocol.cluster.node_states import NodeStanding, held_by, standing_of
from rekindle.slurm_agent.copies import spec
from rekindle.slurm_agent.reading.run import Runner
from tests.slurm.lab.lab import SlurmLab
from tests.slurm.test_numbers_slurm import HeadNode
from tests.slurm.test_same_job import SCRIPT, again, head_of, learn

# name -> (options, what is changed of the job while it waits)
KIN: Mapping[str, tuple[tuple[str, ...], str]] = {
    "TRES per task with a colon": (("-n2", "--tres-per-task=cpu:2"), ""),
    "overcommitted": (("-O", "-n8"), ""),
    "CPU frequency": (("--cpu-freq=high",), ""),
    "bound to a part of a node": (("--distribution=cyclic:block", "-n2", "--hint=nomultithread"), ""),
    "a reservation": (("--reservation=kept",), ""),
    "waits for others": (("--dependency=afterok:1?afternotok:2",), ""),
    "a container": (("--container=/tmp/bundle",), ""),
    "a narrow environment": (("--export=HOME,A=b",), ""),
    "planes": (("-n4", "--distribution=plane=2"), ""),
    "a hint": (("--hint=memory_bound",), ""),
    "segments": (("-N2", "--segment=1", "--spread-segments"), ""),
    "a name with blanks and signs": (("--job-name=größe 'x' $HOME", "--output=o %x-%j.out"), ""),
    "renamed": (("--job-name=first",), "name=second"),
    "a longer limit": (("--time=10",), "timelimit=20"),
    "moved to other nodes": ((), "features=spare"),
    "other licences": ((), "licenses=foo:2"),
    "an administrator's comment": ((), "admincomment=rekindle: ask = me"),
}


@pytest.fixture(scope="module")
def lab() -> Iterator[SlurmLab]:
    # PrivateData=cloud: without it, Slurm up to 22.05 shows no CLOUD node that is powered down.
    cloud = ["NodeName=cl[1-2] State=CLOUD CPUs=2 NodeAddr=127.0.0.9", "PrivateData=cloud"]
    more = ["Licenses=foo:4", *cloud, "NodeName=fu1 State=FUTURE"]
    with SlurmLab(nodes=("n1", "n2"), spares=("n3",), cpus=4, extra_conf=more) as raised:
        raised.run(
            "scontrol", "create", "reservation", "reservationname=kept", "starttime=now", "duration=60",
            f"users={raised.run('id', '-un').stdout.strip()}", "nodes=n3",
        )  # fmt: skip
        yield raised


def test_each_is_submitted_again_as_the_same_job(lab: SlurmLab) -> None:
    numbers = {}
    for count, (name, (options, change)) in enumerate(KIN.items()):
        # A script for each: 24.11 shows no line, by which jobs of one script would be distinguished.
        script = lab.folder / "work" / f"kin-{count}.sh"
        script.write_text(SCRIPT)
        done = lab.run("sbatch", "--hold", "--parsable", *options, str(script), "--kin", fails=True)
        if done.returncode == 0:  # else this Slurm knows no such option
            numbers[name] = int(done.stdout)
            if change:
                lab.run("scontrol", "update", f"jobid={numbers[name]}", change)
    assert len(numbers) >= len(KIN) - 3
    wrapped = int(lab.run("sbatch", "--hold", "--parsable", "--wrap", "sleep 600; echo 'a b'").stdout)
    numbers["wrapped"] = wrapped
    lab.wait(lambda: lab.saved_jobs().count(b"--kin") >= len(numbers) - 1, "the jobs to be saved")
    reads, _, owners = head_of(lab)
    settings, different = reads.settings(), {}
    for name, number in numbers.items():
        job = reads.job(number)
        assert job is not None
        learn(owners, job)
        taken = spec.capture_spec(reads, settings, job, reads.detail(job))
        lab.run("scancel", str(number))
        if found := again(lab, taken):
            different[name] = found
    assert different == {}


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("--array=0-3",), "it is a task of a job array"),
        (("-N1", ":", "-N1"), "it is a heterogeneous job"),
        (("--deadline=now+1day", "--time=10"), "it has a deadline"),
        (("--job-name=a\nb",), "its name holds a line break"),
    ],
    ids=["array", "heterogeneous", "deadline", "a line break in its name"],
)
def test_what_cannot_be_the_same_is_not_submitted(lab: SlurmLab, options: tuple[str, ...], why: str) -> None:
    script = lab.folder / "work" / "kin.sh"
    script.write_text(SCRIPT)
    number = int(lab.run("sbatch", "--hold", "--parsable", *options, str(script)).stdout)
    reads, _, _ = head_of(lab)
    job = reads.job(number)
    assert job is not None
    taken = spec.capture_spec(reads, reads.settings(), job, reads.detail(job))
    lab.run("scancel", str(number))
    assert any(reason.startswith(why) for reason in taken.cannot), taken.cannot


def test_nodes_that_are_no_machines_and_a_drain_without_a_reason(lab: SlurmLab) -> None:
    lab.run("scontrol", "update", "nodename=n1", "state=drain", "reason=x")
    Runner(environ=lab.environ()).change(["scontrol", "update", "nodename=n1", "reason= "])
    head = HeadNode(lab, {})
    head.look()
    found = {node.name: node for node in NodesDoc.from_json(head.board[nodes_key("lab")]).nodes}
    assert "fu1" not in found or standing_of(found["fu1"].state, found["fu1"].flags, "") is NodeStanding.AWAY
    for name in ("cl1", "cl2"):
        assert standing_of(found[name].state, found[name].flags, found[name].reason) is NodeStanding.AWAY
    assert found["n1"].flags == ("drain",)
    assert held_by(found["n1"].state, found["n1"].flags, found["n1"].reason) is not None
    lab.run("scontrol", "update", "nodename=n1", "state=resume")
