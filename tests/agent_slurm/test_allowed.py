"""What an administrator allows on the head node: the file, the caps, and the gate through which every change goes."""

from __future__ import annotations

import json
import os
import pwd
from datetime import timedelta
from pathlib import Path

import pytest

from rekindle.protocol.cluster.orders import Barred, Order, Repair, Signal, Verb
from rekindle.protocol.wire import MailboxError
from rekindle.slurm_agent.base.ports import BarredHere, SlurmRefused
from rekindle.slurm_agent.privileged.allowed import DEFAULT_CAPS, NODE_VERBS, Counted, Kind, Mode, parse, read
from rekindle.slurm_agent.privileged.caps import DAY_S, HELD, HOUR_S, Caps
from rekindle.slurm_agent.privileged.changes import NEEDED, VERBS, Change, ChangeKind
from rekindle.slurm_agent.privileged.gate import Gate, is_own
from rekindle.slurm_agent.reading.nodes import Node
from tests.agent_slurm.conftest import START, Head
from tests.agent_slurm.fake_slurm import node_line

ABOUT = {Kind.PARTITIONS: "gpu", Kind.ACCOUNTS: "ml", Kind.QOS: "high", Kind.USERS: "ann", Kind.POLICIES: "default"}


def written(path: Path, text: str, mode: int = 0o600) -> str:
    path.write_text(text)
    path.chmod(mode)
    return str(path)


@pytest.mark.parametrize("kind", ABOUT)
def test_each_kind_is_allowed_and_denied_by_name(kind: Kind) -> None:
    def refused(text: str) -> bool:
        return bool(parse(text.encode()).refusal(frozenset({Verb.CANCEL}), ABOUT, is_hyperpod=False))

    word = ABOUT[kind]
    assert not refused("")
    assert not refused(f"[allow]\n{kind} = other, {word}\n")
    assert not refused(f"[allow]\n{kind} = *\n")
    assert refused(f"[allow]\n{kind} = other\n")
    assert refused(f"[allow]\n{kind} =\n"), "none"
    assert refused(f"[deny]\n{kind} = {word}  # since the 3rd\n[allow]\n{kind} = {word}\n"), "deny precedes"
    assert refused(f"[deny]\n{kind} = *\n")


def test_node_verbs_need_a_word_outside_of_hyperpod() -> None:
    for verb in Verb:
        for is_hyperpod in (False, True):
            refused = bool(parse(b"").refusal(frozenset({verb}), {}, is_hyperpod=is_hyperpod))
            assert refused == (verb in NODE_VERBS and not is_hyperpod)
            named = parse(f"[allow]\nverbs = {verb}\n".encode())
            assert not named.refusal(frozenset({verb}), {}, is_hyperpod=is_hyperpod)
            assert named.refusal(frozenset(Verb) - {verb}, {}, is_hyperpod=is_hyperpod)


@pytest.mark.parametrize(
    "text",
    [
        "mode = perhaps",
        "moed = act",
        "[allow]\npartition = gpu",
        "[allow]\nverbs = cancle",
        "[alow]\nverbs = *",
        "[caps]\ndrained = 4",
        "[caps]\ndrained = 4 -1",
        "[caps]\ndrained = 4 99999",
        "[caps]\neaten = 4 4",
        "[allow]\nusers = a\nusers = b",
        "no words",
        "\xff\xfe",
        "#" * 70_000,
    ],
)
def test_what_is_not_understood_allows_nothing(tmp_path: Path, text: str) -> None:
    path = tmp_path / "allow.conf"
    path.write_bytes(text.encode("latin-1"))
    path.chmod(0o600)
    found = read(str(path))
    assert "nothing is allowed" in found.problem
    assert found.refusal(frozenset(Verb), {}, is_hyperpod=True)


def test_only_a_file_of_roots_that_no_one_else_can_write_counts(tmp_path: Path) -> None:
    path = tmp_path / "allow.conf"
    assert read(str(path)).problem == ""
    assert read(written(path, "mode = observe")).mode is Mode.OBSERVE
    for mode in (0o620, 0o602, 0o666):
        assert "no one else can write" in read(written(path, "mode = act", mode)).problem
    path.chmod(0o600)
    link = tmp_path / "link"
    link.symlink_to(path)
    assert read(str(link)).problem
    assert read(str(tmp_path)).problem
    if os.geteuid() == 0:
        os.chown(path, 65534, -1)
        assert "a file of root's" in read(str(path)).problem


def test_caps_hold_per_hour_and_day_and_over_restarts(tmp_path: Path) -> None:
    at = 1_000_000.0
    path = tmp_path / "caps.json"
    limits = {**DEFAULT_CAPS, Counted.DRAINED: (2, 3)}

    def caps() -> Caps:
        return Caps(path, lambda: at)

    def drained() -> bool:
        if caps().over(Counted.DRAINED, limits):
            return False
        caps().count(Counted.DRAINED)
        return True

    assert [drained() for _ in range(3)] == [True, True, False]
    assert not caps().over(Counted.MARKED, limits), "each is counted for itself"
    at += HOUR_S + 1
    assert [drained() for _ in range(2)] == [True, False], "the day's"
    at -= 2 * HOUR_S
    assert not drained(), "a clock that is set back frees nothing"
    at += DAY_S + 2 * HOUR_S
    assert drained()
    assert len(json.loads(path.read_text())["changes"][Counted.DRAINED]) == 1, "what is over is forgotten"


def test_what_cannot_be_counted_is_not_done(head: Head, tmp_path: Path) -> None:
    head.fake.nodes([node_line("node1")])
    for broken in ("", "[]", '{"changes": {"eaten": []}, "jobs": {}}', '{"changes": 3}'):
        gate = gated(head, tmp_path)
        (tmp_path / "caps.json").write_text(broken)
        with pytest.raises(BarredHere, match="counted") as raised:
            gate.make(Change(kind=ChangeKind.DRAIN, node="node1", text="rekindle:inc-1"))
        assert raised.value.barred is Barred.OVER_A_CAP
    assert head.fake.calls() == []


def test_what_is_done_while_the_disk_takes_nothing_is_counted_too(tmp_path: Path) -> None:
    path = tmp_path / "disk" / "caps.json"
    caps, limits = Caps(path), {Counted.DRAINED: (2, 3)}
    for _ in range(2):
        assert not caps.over(Counted.DRAINED, limits)
        caps.count(Counted.DRAINED)
    assert caps.over(Counted.DRAINED, limits)
    path.parent.mkdir()
    caps.note(7, "held")
    assert Caps(path).over(Counted.DRAINED, limits), "written as soon as it can be"


def gated(head: Head, folder: Path, text: str = "[allow]\nverbs = *\n", *, is_leaving: bool = False) -> Gate:
    return Gate(
        runner=head.reads._runner,
        reads=head.reads,
        caps=Caps(folder / "caps.json"),
        path=written(folder / "allow.conf", text),
        is_leaving=is_leaving,
    )


def made(gate: Gate, change: Change) -> Barred | str:
    """ "" where it was made."""
    try:
        gate.make(change)
    except BarredHere as err:
        return err.barred
    except SlurmRefused as err:
        return str(err)
    return ""


def test_every_change_names_its_verbs_and_what_it_needs() -> None:
    assert VERBS.keys() == set(ChangeKind)
    for kind in ChangeKind:
        about = {"job", "for_job"} & set(NEEDED.get(kind, ("job",))) or {"node"}
        assert about <= set(NEEDED.get(kind, ("job",)))
    for wire in (
        {"kind": "signal", "job": 7},
        {"kind": "signal", "job": 7, "signal": "KILL"},
        {"kind": "drain", "node": "n1"},
        {"kind": "drain", "node": "n[1-9]", "text": "x"},
        {"kind": "cancel", "job": -1},
        {"kind": "cancel"},
        {"kind": "note", "job": 7, "text": "a\nb"},
        {"kind": "reboot --now", "node": "n1", "text": "x"},
    ):
        with pytest.raises(MailboxError):
            Change.from_wire(wire)


def test_a_job_is_judged_by_what_slurm_shows_of_it(head: Head, tmp_path: Path) -> None:
    head.fake.jobs([{"JobID": "7", "Account": "chem"}, {"JobID": "8", "Account": "ml", "Comment": "rekindle:bold"}])
    gate = gated(head, tmp_path, "[deny]\naccounts = chem\npolicies = bold\n")
    assert made(gate, Change(kind=ChangeKind.CANCEL, job=7)) is Barred.NOT_ALLOWED_HERE
    assert made(gate, Change(kind=ChangeKind.CANCEL, job=8)) is Barred.NOT_ALLOWED_HERE
    assert "does not know" in made(gate, Change(kind=ChangeKind.CANCEL, job=9))
    head.fake.jobs([{"JobID": "7", "Comment": "norekindle"}])
    assert "taken out" in made(gated(head, tmp_path), Change(kind=ChangeKind.CANCEL, job=7))
    assert head.fake.calls() == []


def test_each_node_change_looks_for_itself(head: Head, tmp_path: Path) -> None:
    gate = gated(head, tmp_path)
    mark = Change(kind=ChangeKind.MARK, node="node1", repair=Repair.REPLACE)
    resume, drain = (
        Change(kind=ChangeKind.RESUME, node="node1"),
        Change(kind=ChangeKind.DRAIN, node="node1", text="rekindle:i"),
    )
    reboot = Change(kind=ChangeKind.REBOOT, node="node1", text="rekindle:i")
    head.fake.nodes([node_line("node1")])
    assert "not drained by us" in made(gate, mark)
    assert "not taken out by us" in made(gate, resume)
    head.fake.nodes([node_line("node1", "IDLE+DRAIN", "bob: fan")])
    assert all(made(gate, change) for change in (mark, resume, drain, reboot))
    head.fake.nodes([node_line("node1", "IDLE+DRAIN", "rekindle:i")])
    (head.fake.folder / "on-node1").write_text("7#\n")
    assert "jobs are on" in made(gate, mark)
    assert head.fake.calls() == []
    (head.fake.folder / "on-node1").unlink()
    assert made(gate, mark) == ""


def test_what_was_held_here_is_given_back_whatever_the_file_says_by_now(head: Head, tmp_path: Path) -> None:
    head.fake.jobs([{"JobID": "7", "State": "RUNNING"}, {"JobID": "8", "State": "RUNNING"}])
    assert made(gated(head, tmp_path), Change(kind=ChangeKind.REQUEUE_HELD, job=7)) == ""
    strict = gated(head, tmp_path, "[deny]\nverbs = *\n")
    assert made(strict, Change(kind=ChangeKind.RELEASE, job=8)) is Barred.NOT_ALLOWED_HERE
    assert Caps(tmp_path / "caps.json").noted(7) == HELD
    assert made(strict, Change(kind=ChangeKind.RELEASE, job=7)) == ""
    assert made(strict, Change(kind=ChangeKind.RELEASE, job=7)) is Barred.NOT_ALLOWED_HERE, (
        "who holds it now, we do not"
    )
    observing = "mode = observe\n"
    assert made(gated(head, tmp_path, observing), Change(kind=ChangeKind.RELEASE, job=7)) is Barred.OBSERVED
    assert made(gated(head, tmp_path, observing, is_leaving=True), Change(kind=ChangeKind.RELEASE, job=7)) == ""


def test_one_order_over_the_cap_is_answered_so_before_anything_is_run(head: Head, tmp_path: Path) -> None:
    head.fake.nodes([node_line("node1"), node_line("node2")])
    gate = gated(head, tmp_path, "[allow]\nverbs = drain\n[caps]\ndrained = 1 1\n")
    order = Order(
        token="t", verb=Verb.DRAIN, cluster="ml", issued_at=START, expires_at=START + timedelta(hours=1), node="node2"
    )
    gate.check(order)
    assert made(gate, Change(kind=ChangeKind.DRAIN, node="node1", text="rekindle:i")) == ""
    with pytest.raises(BarredHere) as raised:
        gate.check(order)
    assert raised.value.barred is Barred.OVER_A_CAP
    assert made(gate, Change(kind=ChangeKind.DRAIN, node="node2", text="rekindle:i")) is Barred.OVER_A_CAP


def test_the_verb_that_is_allowed_is_the_one_that_the_job_s_state_makes_it(head: Head, tmp_path: Path) -> None:
    """requeuehold ends a job that runs, and starts one that has ended."""
    head.fake.jobs([{"JobID": "7", "State": "RUNNING"}, {"JobID": "8", "State": "FAILED"}])
    gate = gated(head, tmp_path, "[allow]\nverbs = requeue\n")
    assert made(gate, Change(kind=ChangeKind.REQUEUE_HELD, job=7)) is Barred.NOT_ALLOWED_HERE
    assert made(gate, Change(kind=ChangeKind.SIGNAL, job=7, signal=Signal.USR1)) is Barred.NOT_ALLOWED_HERE
    assert made(gate, Change(kind=ChangeKind.REQUEUE_HELD, job=8)) == ""


@pytest.mark.parametrize(
    ("reason", "by", "is_ours"),
    [
        ("rekindle:inc-1", "", True),
        ("rekindle:inc-1", pwd.getpwuid(os.geteuid()).pw_name, True),
        ("rekindle:inc-1", "bob", False),
        ("rekindle:inc-1 : Not responding", "slurm", True),
        ("rekindle: mine, bob", "", False),
        ("bob: bad fan", "", False),
        ("", "", False),
    ],
)
def test_a_persons_drain_in_our_words_is_a_persons(reason: str, by: str, is_ours: bool) -> None:
    assert is_own(Node(name="n1", state="idle", flags=("drain",), reason=reason, reason_by=by)) is is_ours
