"""Whatever somebody leaves where Rekindle reads is read, or refused with its one error, and soon: every reader."""

from __future__ import annotations

import inspect
import re
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from chalicelib.domain.model.errors import RecoveryError
from rekindle.monitor.mail.exchange import Note
from rekindle.protocol.message import Message
from rekindle.protocol.wire import MAX_DEPTH, MailboxError, Place, parse_json
from rekindle.slurm_agent.base.ports import SlurmError
from tests.security.bad_documents import DOCUMENTS, WORDS, arguments_of, messages, readers

SOON_S = 2.0  # for one document, on a machine that does other things too
OURS = (MailboxError, SlurmError, RecoveryError, OSError)
# No readers: they write, make clients, load modules, or are given texts of our own; and walks through whole folders,
# which have their own tests (tests/checkpoints, and the process that they run in: test_agent_budgets).
NOT_READERS = (
    "rekindle.checkpoints.folders.",
    "rekindle.slurm_agent.base.aws.",
    "rekindle.slurm_agent.files.worker_process.",
    "rekindle.slurm_agent.files.messages.deliver",
    "rekindle.slurm_agent.reading.jobs.parse_steps",  # its separators are ours
    "rekindle.slurm_agent.files.userfs.write",
    "rekindle.slurm_agent.files.userfs.folder",
    "rekindle.slurm_agent.orders.verbs.",
    "rekindle.checkpoints.tensors.has_nan",  # is asked for a tensor that was found before
    "rekindle.monitor.base.guard.",
    "rekindle.monitor.saving.leftovers.",
    "rekindle.monitor.saving.file_clock.",
    "rekindle.signatures.__getattr__",
    "rekindle.protocol.message.Message.from_json",  # of no message in particular
    "rekindle.monitor.mail.exchange.Note.from_text",  # of no note in particular
)
FOUND = {
    name: reader
    for name, reader in readers().items()
    if not name.startswith(NOT_READERS) and not name.rpartition(".")[2].startswith("_")
} | {f"{kind.__module__}.{kind.__name__}.from_text": kind.from_text for kind in Note.__subclasses__()}


def corpus() -> Iterator[tuple[str, str, bytes]]:
    for name, text in WORDS.items():
        yield name, text, text.encode("utf-8", "surrogatepass")
    for name, raw in DOCUMENTS.items():
        if len(raw) <= 2_000_000:  # larger ones are refused by their size, before they are read
            yield name, raw.decode("utf-8", "replace"), raw


def allowed(function: Callable[..., Any]) -> tuple[type[BaseException], ...]:
    """Our own errors, and what its contract names."""
    named = re.findall(r"Raises:([^\n]*)", inspect.getdoc(function) or "")
    return (*OURS, ValueError) if any("ValueError" in one for one in named) else OURS


@pytest.mark.parametrize("name", sorted(FOUND))
def test_a_reader_gives_a_value_or_its_own_error_and_soon(name: str) -> None:
    function = FOUND[name]
    for label, text, raw in corpus():
        args, named = arguments_of(function, text, raw)
        began = time.thread_time()
        try:
            given = function(*args, **named)
            if inspect.isgenerator(given):
                for _ in zip(given, range(100_000), strict=False):
                    pass
        except allowed(function):
            pass
        assert time.thread_time() - began < SOON_S, f"{label} took too long"


@pytest.mark.parametrize("kind", messages(), ids=lambda kind: kind.__qualname__)
@pytest.mark.parametrize("label", sorted(DOCUMENTS))
def test_a_message_is_read_whole_or_refused_by_its_field(kind: type[Message], label: str) -> None:
    began = time.thread_time()
    with pytest.raises(MailboxError):
        kind.from_json(DOCUMENTS[label])
    assert time.thread_time() - began < SOON_S


def test_the_readers_are_found_and_not_listed() -> None:
    assert {
        "rekindle.protocol.wire.Place.parse",
        "rekindle.slurm_agent.reading.comment.parse",
        "rekindle.slurm_agent.copies.capture.find_arguments",
        "rekindle.slurm_agent.files.cause.of_text",
        "rekindle.signatures.classifier.classify",
        "rekindle.checkpoints.pickle_values.plain_value",
    } <= FOUND.keys()
    assert len(FOUND) > 80
    assert {message.__name__ for message in messages()} >= {
        "Manifest",
        "Heartbeat",
        "AttemptDoc",
        "JobSpec",
        "Order",
        "RankReport",
    }


@pytest.mark.parametrize(
    "uri", ["file://[", "file:///a%00b", "file:///%ff", "/fsx/\ud800", "s3://bucket/a\nb", "s3://bucket/\udc80"]
)
def test_a_place_that_nothing_can_hold_is_refused_by_its_field(uri: str) -> None:
    with pytest.raises(MailboxError, match=r"^mailbox: "):
        Place.parse(uri, "mailbox")


def test_what_is_read_can_be_written_down_again() -> None:
    deep = b"[" * MAX_DEPTH + b"]" * MAX_DEPTH
    assert parse_json(deep, 1000)
    for raw in (b"[" + deep + b"]", b'{"a":1e999}', b'{"a":-1e999}', b'["\\ud83d"]', b'{"\\udc00":1}', b"\xff"):
        with pytest.raises(MailboxError):
            parse_json(raw, 1000)
    assert parse_json('["\\ud83d\\ude00"]', 1000) == ["\U0001f600"]
