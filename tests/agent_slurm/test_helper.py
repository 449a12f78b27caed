"""The agent without rights is taken over: whatever it sends root's helper, nothing that the local file forbids happens,
and the helper answers the next request."""

from __future__ import annotations

import json
import os
import random
import socket
import struct
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from inspect import signature
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from rekindle.compat import UTC
from rekindle.protocol.cluster.orders import Order, Verb
from rekindle.slurm_agent.base.ports import BarredHere, NotHolder, SlurmError, SlurmRefused
from rekindle.slurm_agent.base.settings import Settings
from rekindle.slurm_agent.copies.capture import ALL
from rekindle.slurm_agent.copies.reads import CopyReads
from rekindle.slurm_agent.privileged import helper
from rekindle.slurm_agent.privileged.changes import Change, ChangeKind
from rekindle.slurm_agent.privileged.helper import Helper
from rekindle.slurm_agent.privileged.remote import Asking, Channels, RemoteGate, RemoteReads, RemoteWorkers
from rekindle.slurm_agent.privileged.requests import (
    MAX_REQUEST_BYTES,
    Answer,
    HelperVerb,
    Request,
    is_question,
    packed,
    unpacked,
)
from tests.agent_slurm.conftest import Head, served
from tests.agent_slurm.test_submit import order_of

ACTS = "mode = act\n[allow]\nverbs = *\n"
CHANGES = ("scancel", "sbatch", "uhold", "requeuehold", "release", "reboot", "update")


@dataclass
class Side:
    head: Head
    helper: Helper
    own: Path
    allow: Path
    channel: socket.socket
    channels: Channels

    def send(self, raw: bytes, length: int | None = None) -> None:
        self.channel.sendall(struct.pack(">I", len(raw) if length is None else length) + raw)

    def answer(self) -> Answer:
        head = self.channel.recv(4, socket.MSG_WAITALL)
        (length,) = struct.unpack(">I", head)
        found: Answer = unpacked(Answer, self.channel.recv(length, socket.MSG_WAITALL))
        return found

    def changed(self) -> list[list[str]]:
        return [call for call in self.head.fake.calls() if set(call) & set(CHANGES)]


@pytest.fixture
def side(tmp_path: Path) -> Iterator[Side]:
    head = Head(tmp_path)
    allow = tmp_path / "root/etc/rekindle/allow.conf"
    allow.parent.mkdir(parents=True)
    allow.write_text("mode = observe\n")
    allow.chmod(0o600)
    environ = {"PATH": head.fake.path, "REKINDLE_BUCKET": "b-1", "REKINDLE_ROOT": str(tmp_path / "root")}
    settings = Settings.read(environ, {"cluster": "ml", "state_dir": str(tmp_path / "state")})
    own = tmp_path / "state-root"
    own.mkdir(mode=0o700)
    root = Helper(settings, own)
    with served(root, 3) as [mine, *others]:
        yield Side(head, root, own, allow, mine, Channels(others))


def requests(rng: random.Random, secret: Path) -> Iterator[bytes]:
    """What no agent would send."""
    words: list[Any] = [None, True, -1, 2**70, 1e308, "", "\0", "x" * 5000, "../../etc/shadow", [], {}, str(secret)]
    words += [7, 8, "node1", "--uid=root", "root", {"kind": "cancel", "job": 7}, {"work": "read"}, "a" * 64]
    verbs = [*HelperVerb, "exec", "", 7, None]
    names = [*Request.__slots__, "unknown"]
    for _ in range(400):
        if rng.random() < 0.15:
            yield rng.randbytes(rng.randint(0, 300))
            continue
        wire = {name: rng.choice(words) for name in rng.sample(names, rng.randint(0, 5))}
        yield json.dumps({**wire, "verb": rng.choice(verbs)}).encode()
    yield b"[" * 100_000
    yield b'{"verb": "read", "args": ["sh", "-c", "id"], "limit": 10}'


def test_whatever_is_sent_it_answers_and_changes_nothing(side: Side, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("the-secret")
    for raw in requests(random.Random(7), secret):
        side.send(raw)
        answer = side.answer()
        assert "the-secret" not in json.dumps(answer.to_wire())
    assert side.changed() == []
    side.send(b"", MAX_REQUEST_BYTES + 1)  # what follows cannot be told from what it announces
    assert side.channel.recv(4) == b""
    assert side.channels.ask(Request(verb=HelperVerb.ALLOWED))["observes"] is True


def test_nothing_is_changed_before_the_lock_without_the_lease_or_against_the_file(side: Side) -> None:
    side.head.fake.jobs([{"JobID": "7", "UserName": "ann"}])
    cancel = Change(kind=ChangeKind.CANCEL, job=7)

    def refused(left_s: float) -> type[Exception]:
        with pytest.raises(SlurmError) as why:
            side.channels.ask(Request(verb=HelperVerb.CHANGE, change=cancel, left_s=left_s))
        return why.type

    side.allow.write_text(ACTS)
    assert refused(60.0) is NotHolder
    side.channels.lock(wait_s=0.0, stop=threading.Event())
    assert refused(0.0) is NotHolder
    side.allow.write_text("mode = observe\n[allow]\nverbs = *\n")
    assert refused(60.0) is BarredHere
    side.allow.write_text(f"{ACTS}[deny]\nusers = ann\n")
    assert refused(60.0) is BarredHere
    assert side.changed() == []
    side.allow.write_text(ACTS)
    RemoteGate(side.channels).make(cancel)
    assert side.changed() == [["scancel", "7"]]


def test_the_caps_are_the_helpers_own(side: Side) -> None:
    side.head.fake.jobs([{"JobID": "7", "UserName": "ann", "State": "PENDING"}])
    side.allow.write_text(f"{ACTS}[caps]\nstarted = 2 2\n")
    side.channels.lock(wait_s=0.0, stop=threading.Event())
    release = Change(kind=ChangeKind.RELEASE, job=7)
    for _ in range(2):
        RemoteGate(side.channels).make(release)
    with pytest.raises(BarredHere, match="2 started per hour"):
        RemoteGate(side.channels).make(release)
    assert (side.own / "caps.json").exists()


def test_only_what_was_captured_here_is_submitted(side: Side) -> None:
    """A spec of one's own has no name here: names are keyed hashes, and the key is root's."""
    side.allow.write_text(ACTS)
    side.channels.lock(wait_s=0.0, stop=threading.Event())
    order: Order = order_of(spec="a" * 64)
    assert order.verb is Verb.SUBMIT
    for verb in (HelperVerb.SUBMIT, HelperVerb.REHEARSE):
        with pytest.raises(SlurmRefused, match="not kept on this head node"):
            Asking(side.channels).ask(verb, order=order)
    with pytest.raises(SlurmRefused, match="--remove-state alone"):
        Asking(side.channels).ask(HelperVerb.REMOVE)
    assert side.changed() == []


@pytest.mark.parametrize(
    ("work", "asked"),
    [
        ("read", {"path": "/etc/shadow", "limit": 100}),
        ("read", {"path": "/box/rekindle/heartbeats/../../../etc/shadow", "limit": 100}),
        ("deliver", {"root": "/root", "key": ".ssh/authorized_keys", "body": "eA==", "until": 1e9}),
        ("deliver", {"root": "/box", "key": "rekindle/heartbeats/slurm.ml.7.json", "body": "eA==", "until": 1e9}),
        ("resolved", {"path": "etc"}),
        ("exec", {"path": "/bin/sh"}),
    ],
)
def test_files_are_touched_in_closed_forms_alone(side: Side, work: str, asked: dict[str, Any]) -> None:
    side.allow.write_text(ACTS)
    side.channels.lock(wait_s=0.0, stop=threading.Event())
    with pytest.raises((SlurmError, OSError, ValueError)):
        RemoteWorkers(side.channels).ask(("x", "y"), "/box", work, asked, None, None)


def test_files_are_touched_only_as_users_who_have_jobs(side: Side) -> None:
    side.head.fake.jobs([{"JobID": "7", "UserID": "1234", "GroupID": "1234"}])
    workers, asked = RemoteWorkers(side.channels), {"path": "/"}
    for uid, gid in ((0, 0), (1235, 1234), (1234, 0), (None, 0)):
        with pytest.raises(OSError, match="has no job here"):
            workers.ask(("x", "y"), "/", "answers", asked, uid, gid)
    assert workers.ask(("x", "y"), "/", "answers", asked, None, None) is True
    assert workers.ask(("x", "y"), "/", "answers", asked, 1234, 1234) is True


def test_nothing_but_the_agents_own_questions_is_run(side: Side) -> None:
    assert RemoteReads(side.channels).read(["scontrol", "show", "config"], limit=1 << 20)
    for args in (
        ["scontrol", "update", "jobid=7", "priority=1"],
        ["scontrol", "write", "batch_script", "7", "/etc/passwd"],
        ["scontrol", "show", "config", "-d"],
        ["squeue", "--noheader", "--all", "--local", "--nodelist", "n1 --x", "-O", "JobID:#"],
        ["squeue", "--noheader", "--all", "--local", "--states=all", "-O", "Comment:|aaaaaaaaaaaa#"],
        ["sbatch", "--wrap", "id"],
        ["sh", "-c", "id"],
    ):
        assert not is_question(args)
        with pytest.raises(SlurmRefused):
            RemoteReads(side.channels).read(args)
    for call in side.head.fake.calls():
        assert is_question(call), call


def test_every_question_of_the_agents_own_is_known(tmp_path: Path) -> None:
    head = Head(tmp_path)
    head.fake.jobs([{"JobID": "7", "UserName": "ann", "Comment": "rekindle"}])
    head.look()
    for call in head.fake.calls():
        assert is_question(call), call
    [job] = head.reads.jobs()
    asked: list[list[str]] = []

    class Recorder:
        def read(self, args: Sequence[str], *, limit: int = 0) -> str:
            asked.append(list(args))
            return ""

    given: dict[str, list[Any]] = {
        "int": [7],
        "str": ["n1"],
        "Job": [job],
        "Sequence[Job]": [[job]],
        "Settings": [replace(head.reads.settings(), accounting=name) for name in ("accounting_storage/slurmdbd", "")],
    }
    methods = [found for name, found in vars(CopyReads).items() if name[0] != "_" and name != "printed"]
    for method in methods:
        asked.clear()
        kinds = [one.annotation for name, one in signature(method).parameters.items() if name != "self"]
        for arguments in product(*(given[kind] for kind in kinds)):
            with suppress(SlurmError):
                method(CopyReads(Recorder(), lambda: datetime.now(UTC)), *arguments)
        assert asked, method
        for call in asked:
            assert is_question(call), call


def test_no_secret_leaves_the_helper(side: Side) -> None:
    from tests.agent_slurm.test_hashes import environment

    environment(side.head, 7, HF_TOKEN="hf_1", PATH="/bin")
    told = [
        side.channels.ask(Request(verb=HelperVerb.VARIABLES, job=7, **about))["variables"]
        for about in ({"names": ("HF_TOKEN", "PATH")}, {"prefixes": ALL})
    ]
    assert told == [{"PATH": "/bin"}] * 2


def test_a_request_of_another_version_is_refused_and_the_next_one_answered(side: Side) -> None:
    side.send(b'{"verb": "a verb of tomorrow"}')
    assert side.answer().failed == "SlurmRefused"
    side.send(packed(Request(verb=HelperVerb.ALLOWED)))
    assert side.answer().failed == ""


def test_where_this_process_is_not_root_there_is_nothing_to_separate(monkeypatch: pytest.MonkeyPatch) -> None:
    from rekindle.slurm_agent.privileged import separation

    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert separation.user() is None


def test_what_all_jobs_showed_at_once_is_captured_from_while_nobody_has_read_later(
    side: Side, monkeypatch: pytest.MonkeyPatch
) -> None:
    def excluded(since: float | None) -> tuple[str, int]:
        before = side.head.fake.run()
        found = side.channels.ask(Request(verb=HelperVerb.CAPTURE, job=7, text="rekindle", since=since))
        return found["exclude"], side.head.fake.run() - before

    at = time.monotonic()
    side.head.fake.jobs([{"JobID": "7", "ExcNodeList": "node1"}])
    assert excluded(at) == ("node1", 4), "also slurmctld's settings, and the script"
    side.head.fake.jobs([{"JobID": "7", "ExcNodeList": "node2"}])
    assert excluded(at) == ("node1", 1)
    assert excluded(time.monotonic()) == ("node2", 3)
    assert excluded(None) == ("node2", 3)
    side.head.fake.jobs([{"JobID": "7", "ExcNodeList": "node3"}])
    monkeypatch.setattr(helper, "READING_S", -1.0)
    assert excluded(at) == ("node3", 3), "a number is another job's later"
