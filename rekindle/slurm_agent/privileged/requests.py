"""What the agent can ask of root's helper: a closed set of verbs, each field of a type and length of its own. Pure.

A frame is its length (four bytes) and JSON. Nothing that is not described here is done.
"""

from __future__ import annotations

import json
import re
import socket
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Final

from rekindle.compat import StrEnum
from rekindle.protocol import codec
from rekindle.protocol.bounds import Items, Number, Sha256, Text, Whole
from rekindle.protocol.cluster.orders import Barred, NodeName, Order, SlurmJobId
from rekindle.protocol.codec import Document
from rekindle.protocol.keys import KeyKind, doorbell_key, parse_key
from rekindle.protocol.wire import FOLDER, MAX_MESSAGE_BYTES, MailboxError
from rekindle.slurm_agent.base import ports
from rekindle.slurm_agent.copies.reads import MAX_JSON_BYTES
from rekindle.slurm_agent.files.messages import MAX_FILES, is_for_the_run
from rekindle.slurm_agent.files.worker import WorkNotDone
from rekindle.slurm_agent.files.workers import Hangs, WorkPending
from rekindle.slurm_agent.privileged.changes import Change
from rekindle.slurm_agent.reading.jobs import CODE_COLUMNS, COLUMNS, LEAN_COLUMNS, STEP_COLUMNS, format_of
from rekindle.slurm_agent.reading.run import Denied, TooMuch, Unreadable

MAX_REQUEST_BYTES: Final = 16 * 1024 * 1024
MAX_ANSWER_BYTES: Final = 2 * MAX_JSON_BYTES  # some characters take two in JSON
MAX_LEFT_S: Final = 60.0
_HEAD: Final = struct.Struct(">I")


class HelperVerb(StrEnum):
    """What root's helper does."""

    LOCK = "lock"
    CREDENTIALS = "credentials"
    RESOURCES = "resources"
    READ = "read"
    ALLOWED = "allowed"
    CHECK = "check"
    CHANGE = "change"
    STATE = "state"  # of what slurmctld keeps: whether it can be read
    SCRIPT = "script"
    VARIABLES = "variables"  # without secrets
    ARGUMENTS = "arguments"
    CAPTURE = "capture"
    SPEC = "spec"
    KEEP = "keep"
    REMOVE = "remove"
    SUBMIT = "submit"
    REHEARSE = "rehearse"
    DIFFERENCES = "differences"
    SECRETS = "secrets"  # the names of those that a copy has otherwise
    FIXED = "fixed"
    FILES = "files"


class FileWork(StrEnum):
    """What is done with a user's files, as that user; see `files.worker_process`."""

    FAILURE = "failure"
    CHECKPOINTS = "checkpoints"
    CHANGED = "changed"
    DELIVER = "deliver"
    READ = "read"
    ANSWERS = "answers"
    RESOLVED = "resolved"


def _whole_path(value: str, field: str) -> None:
    if not value.startswith("/") or "\0" in value:
        raise MailboxError(field, "is no whole path")


def _heartbeat(value: str, field: str) -> None:
    """A heartbeat alone is read whole."""
    _whole_path(value, field)
    at = value.rfind(f"/{FOLDER}/")
    key = parse_key(value[at + 1 :]) if at != -1 else None
    if key is None or key.kind is not KeyKind.HEARTBEAT or "/../" in value:
        raise MailboxError(field, "is no heartbeat")


def _for_the_run(value: str, field: str) -> None:
    if not is_for_the_run(value) and value != doorbell_key():
        raise MailboxError(field, "is nothing that is brought to a run")


FilePath = Annotated[str, Text(4096, check=_whole_path)]
Name = Annotated[str, Text(2000)]
Big = Annotated[int, Whole(0, 2**64)]
Stamps = Annotated[Mapping[Annotated[str, Text(4096)], tuple[Big, Big, Big]], Items(MAX_FILES)]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Failure(Document):
    paths: Annotated[tuple[Annotated[str, Text(4096)], ...], Items(8)]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Checkpoints(Document):
    job_id: Name
    now: Name
    mailbox: FilePath | None = None
    place: FilePath | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Changed(Document):
    root: FilePath
    most: Annotated[int, Whole(0, MAX_FILES)]
    most_bytes: Annotated[int, Whole(0, 32 * 1024 * 1024)]
    sent: Stamps


@dataclass(frozen=True, slots=True, kw_only=True)
class _Deliver(Document):
    root: FilePath
    key: Annotated[str, Text(1024, check=_for_the_run)]
    body: Annotated[str, Text(2 * MAX_MESSAGE_BYTES)]  # in base64
    until: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Read(Document):
    path: Annotated[str, Text(4096, check=_heartbeat)]
    limit: Annotated[int, Whole(0, MAX_MESSAGE_BYTES)]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Path(Document):
    path: FilePath


_ASKED: Final[Mapping[FileWork, type[Document]]] = {
    FileWork.FAILURE: _Failure,
    FileWork.CHECKPOINTS: _Checkpoints,
    FileWork.CHANGED: _Changed,
    FileWork.DELIVER: _Deliver,
    FileWork.READ: _Read,
    FileWork.ANSWERS: _Path,
    FileWork.RESOLVED: _Path,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRequest(Document):
    """One order to `Workers.ask`. `same`: a digest of what it is the same as."""

    work: FileWork
    whose: Name
    kind: Name
    path: Annotated[str, Text(4096)]
    same: Annotated[str, Text(64)]
    asked: Mapping[str, Any]
    uid: Annotated[int, Whole(0, 2**32 - 2)] | None = None
    gid: Annotated[int, Whole(0, 2**32 - 2)] | None = None
    for_good: bool = False
    is_long: bool = False
    soft_s: Annotated[float, Number(0.0, 10.0)] | None = None

    def checked(self) -> dict[str, Any]:
        """What is asked, of the types that the work has. Raises: MailboxError."""
        found: dict[str, Any] = codec.write(_ASKED[self.work], codec.read(_ASKED[self.work], dict(self.asked)))
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Request(Document):
    """One request. `left_s`: for how long the agent holds the cluster's lease. `text`: a job's comment or its line.
    `since`, by time.monotonic: one of many captures, for which what all jobs showed after that moment will do."""

    verb: HelperVerb
    left_s: Annotated[float, Number(0.0, MAX_LEFT_S)] = 0.0
    args: Annotated[tuple[Annotated[str, Text(4000)], ...], Items(16)] = ()
    limit: Annotated[int, Whole(1, MAX_JSON_BYTES)] = 1
    change: Change | None = None
    order: Order | None = None
    job: SlurmJobId | None = None
    old: SlurmJobId | None = None
    text: Annotated[str, Text(128 * 1024)] = ""
    exclude: Annotated[str, Text(128 * 1024)] | None = None
    since: Annotated[float, Number(0.0, 1e12)] | None = None
    names: Annotated[tuple[Name, ...], Items(50_000)] = ()
    prefixes: Annotated[tuple[Name, ...], Items(16)] = ()
    spec: Sha256 | None = None
    files: FileRequest | None = None

    def check_fields(self) -> None:
        """What its verb needs is there. Raises: MailboxError."""
        for name in _NEEDED.get(self.verb, ()):
            if getattr(self, name) in (None, ()):
                raise MailboxError(name, f"is needed for {self.verb}")


_OF_A_COPY: Final = ("order", "job")
_NEEDED: Final[Mapping[HelperVerb, tuple[str, ...]]] = {
    HelperVerb.READ: ("args",),
    HelperVerb.CHECK: ("order",),
    HelperVerb.CHANGE: ("change",),
    HelperVerb.SCRIPT: ("job",),
    HelperVerb.VARIABLES: ("job",),
    HelperVerb.ARGUMENTS: ("job",),
    HelperVerb.CAPTURE: ("job",),
    HelperVerb.SPEC: ("spec",),
    HelperVerb.SUBMIT: ("order",),
    HelperVerb.REHEARSE: ("order",),
    HelperVerb.DIFFERENCES: _OF_A_COPY,
    HelperVerb.SECRETS: _OF_A_COPY,
    HelperVerb.FIXED: ("job",),
    HelperVerb.FILES: ("files",),
}

# ---- what is read of Slurm

_SQUEUE: Final = ("squeue", "--noheader", "--all", "--local")
_SCONTROL: Final = ("scontrol", "--all", "-o", "show")
_NUMBER: Final = re.compile(r"[1-9][0-9]{0,9}")
_MARK: Final = re.compile(r"\|([0-9a-f]{12})#\Z")
_COLUMNS: Final = (COLUMNS, LEAN_COLUMNS, STEP_COLUMNS, CODE_COLUMNS)


def _is_number(word: str) -> bool:
    return _NUMBER.fullmatch(word) is not None


def _is_node(word: str) -> bool:
    try:
        return bool(codec.read(NodeName, word))
    except MailboxError:
        return False


def _is_format(word: str) -> bool:
    mark = _MARK.search(word)
    return mark is not None and any(format_of(columns, mark[1])[0] == word for columns in _COLUMNS)


def _is_past(word: str) -> bool:
    return word in ("--format=JobID,State,ExitCode,NodeList", "--format=JobID,State,ExitCode,NodeList,DerivedExitCode")


_PAST: Final = ("--noheader", "--parsable2", "--delimiter=|", "--jobs", _is_number, _is_past)
_QUESTIONS: Final[Sequence[Sequence[Any]]] = (
    (*_SQUEUE, "--states=all", "-O", _is_format),
    (*_SQUEUE, "--states=all", "--jobs", _is_number, "-O", _is_format),
    (*_SQUEUE, "--steps", "-O", _is_format),
    (*_SQUEUE, "--nodelist", _is_node, "-O", "JobID:#"),
    ("squeue", "--all", "--local", "--states=all", "--jobs", _is_number, "--json"),
    (*_SCONTROL, "job"),
    (*_SCONTROL, "job", _is_number),
    (*_SCONTROL, "node"),
    (*_SCONTROL, "node", _is_node),
    (*_SCONTROL, "reservation"),
    ("scontrol", "show", "config"),
    ("scontrol", "write", "batch_script", _is_number, "-"),
    ("sacct", *_PAST),
    ("sacct", "--completion", *_PAST),
    ("sacct", "--duplicates", "--allocations", *_PAST),
)


def is_question(args: Sequence[str]) -> bool:
    """Whether it is one of the commands with which the agent reads Slurm."""
    return any(
        len(args) == len(form)
        and all(word == at if isinstance(at, str) else at(word) for word, at in zip(args, form, strict=False))
        for form in _QUESTIONS
    )


# ---- answers

_FAILURES: Final[Mapping[str, type[Exception]]] = {
    kind.__name__: kind
    for kind in (
        ports.SlurmUnavailable,
        ports.NotHolder,
        ports.SlurmRefused,
        ports.UnknownJob,
        ports.UnknownNode,
        ports.NotProtected,
        ports.BarredHere,
        Denied,
        TooMuch,
        Unreadable,
        WorkNotDone,
        Hangs,
        WorkPending,
        OSError,
    )
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer(Document):
    """What was done, or why it was not: one of `_FAILURES`."""

    done: Mapping[str, Any] = field(default_factory=dict)
    failed: Name = ""
    text: Name = ""
    barred: Barred | None = None


def failure(err: Exception) -> Answer:
    """What the agent is told of it."""
    kind = next((kind.__name__ for kind in type(err).__mro__ if kind.__name__ in _FAILURES), "SlurmRefused")
    barred = err.barred if isinstance(err, ports.BarredHere) else None
    return Answer(failed=kind, text=f"{err}"[:1000] or type(err).__name__, barred=barred)


def raised(answer: Answer) -> Exception:
    """The same, to be raised at the agent's side."""
    if answer.barred is not None:
        return ports.BarredHere(answer.text, answer.barred)
    return _FAILURES.get(answer.failed, ports.SlurmUnavailable)(answer.text)


def packed(document: Document) -> bytes:
    """As a frame's body."""
    return json.dumps(document.to_wire(), separators=(",", ":")).encode("utf-8", "surrogatepass")


def unpacked(kind: type[Any], raw: bytes) -> Any:
    """Raises: MailboxError."""
    try:
        wire = json.loads(raw)
    except (ValueError, RecursionError) as err:
        raise MailboxError("request", f"is no JSON: {err}"[:200]) from err
    return kind.from_wire(wire)


def received(channel: socket.socket, limit: int) -> bytes | None:
    """The next frame's body; None at the end. Raises: OSError, also for one that is longer."""
    head = _some(channel, _HEAD.size)
    if head is None:
        return None
    (length,) = _HEAD.unpack(head)
    if length > limit:
        raise OSError(f"a frame of {length} bytes")
    return _some(channel, length)


def _some(channel: socket.socket, length: int) -> bytes | None:
    found = bytearray()
    while len(found) < length:
        part = channel.recv(min(length - len(found), 1 << 20))
        if not part:
            return None
        found += part
    return bytes(found)
