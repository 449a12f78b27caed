"""The changes that can be made to jobs and nodes: a closed set, each field of a type of its own. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Final

from rekindle.compat import StrEnum
from rekindle.protocol.bounds import Items, Text, Whole, check_printable
from rekindle.protocol.cluster.orders import MAX_NODES, NodeCount, NodeName, Repair, Signal, SlurmJobId, Verb
from rekindle.protocol.codec import Document
from rekindle.protocol.wire import MailboxError
from rekindle.slurm_agent.privileged.allowed import Counted


class ChangeKind(StrEnum):
    """One command each."""

    SIGNAL = "signal"
    CANCEL = "cancel"
    CANCEL_WAITING = "cancel_waiting"  # only while it is pending
    HOLD = "hold"
    REQUEUE_HELD = "requeue_held"
    RELEASE = "release"
    NOTE = "note"
    START = "start"
    PLACE = "place"  # in the queue: priority, nice, or QOS
    EXCLUDE = "exclude"
    RESIZE = "resize"
    WAIT_FOR = "wait_for"
    DRAIN = "drain"
    RESUME = "resume"
    MARK = "mark"
    REBOOT = "reboot"


# Which orders need it: one of them must be allowed.
VERBS: Final[Mapping[ChangeKind, frozenset[Verb]]] = {
    ChangeKind.SIGNAL: frozenset({Verb.SIGNAL}),
    ChangeKind.CANCEL: frozenset({Verb.CANCEL}),
    ChangeKind.CANCEL_WAITING: frozenset({Verb.CANCEL, Verb.SUBMIT}),
    ChangeKind.HOLD: frozenset({Verb.HOLD}),
    ChangeKind.REQUEUE_HELD: frozenset({Verb.HOLD, Verb.REQUEUE}),
    ChangeKind.RELEASE: frozenset({Verb.REQUEUE, Verb.SUBMIT}),
    ChangeKind.NOTE: frozenset({Verb.CANCEL, Verb.HOLD, Verb.REQUEUE, Verb.SUBMIT}),
    ChangeKind.START: frozenset({Verb.REQUEUE}),
    ChangeKind.PLACE: frozenset({Verb.REQUEUE, Verb.SUBMIT}),
    ChangeKind.EXCLUDE: frozenset({Verb.EXCLUDE, Verb.REQUEUE}),
    ChangeKind.RESIZE: frozenset({Verb.SHRINK, Verb.REQUEUE}),
    ChangeKind.WAIT_FOR: frozenset({Verb.REQUEUE, Verb.SUBMIT}),
    ChangeKind.DRAIN: frozenset({Verb.DRAIN}),
    ChangeKind.RESUME: frozenset({Verb.RESUME}),
    ChangeKind.MARK: frozenset({Verb.MARK}),
    ChangeKind.REBOOT: frozenset({Verb.REBOOT}),
}
COUNTED: Final[Mapping[ChangeKind, Counted]] = {
    ChangeKind.DRAIN: Counted.DRAINED,
    ChangeKind.REBOOT: Counted.REBOOTED,
    ChangeKind.MARK: Counted.MARKED,
    ChangeKind.RELEASE: Counted.STARTED,
}
MAX_PRIORITY: Final = 2**32 - 2  # Source: slurm slurm.h, INFINITE and NO_VAL beyond it
Line = Annotated[str, Text(2000, check=check_printable)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Change(Document):
    """One change. `policy`: of the job, where no words of its record name one. `for_job`: the protected job on whose
    behalf one of the same user, that waits for it, is changed; with `of_others` one of another user, as the policy of
    the order's Job says."""

    kind: ChangeKind
    job: SlurmJobId | None = None
    policy: Line = "default"
    node: NodeName | None = None
    signal: Signal | None = None
    is_batch: bool = False
    text: Line = ""
    nodes: Annotated[tuple[NodeName, ...], Items(MAX_NODES)] = ()
    low: NodeCount | None = None
    high: NodeCount | None = None
    cpus: NodeCount | None = None
    after_s: Annotated[int, Whole(0, 60)] = 0
    repair: Repair | None = None
    priority: Annotated[int, Whole(1, MAX_PRIORITY)] | None = None
    nice: Annotated[int, Whole(-MAX_PRIORITY, MAX_PRIORITY)] | None = None
    qos: Annotated[str, Text(255, pattern=r"[\w.+-]*", problem="is no name of a QOS")] = ""
    for_job: SlurmJobId | None = None
    of_others: bool = False

    def check_fields(self) -> None:
        """Raises: MailboxError."""
        for name in NEEDED.get(self.kind, ("job",)):
            if getattr(self, name) in (None, ""):
                raise MailboxError(name, f"is needed for {self.kind}")
        if self.kind is ChangeKind.PLACE and self.priority is None and self.nice is None and not self.qos:
            raise MailboxError("priority", "or nice or qos is needed")


NEEDED: Final[Mapping[ChangeKind, tuple[str, ...]]] = {
    ChangeKind.SIGNAL: ("job", "signal"),
    ChangeKind.NOTE: ("job", "text"),
    ChangeKind.RESIZE: ("job", "low", "high"),
    ChangeKind.WAIT_FOR: ("job", "text", "for_job"),
    ChangeKind.DRAIN: ("node", "text"),
    ChangeKind.RESUME: ("node",),
    ChangeKind.MARK: ("node", "repair"),
    ChangeKind.REBOOT: ("node", "text"),
}


def command(change: Change, key: str) -> list[str]:
    """The argument list. `key`: the job as Slurm's commands name it, "" for a node."""
    match change.kind:
        case ChangeKind.SIGNAL:
            return ["scancel", f"--signal={change.signal}", *(["--batch"] if change.is_batch else []), key]
        case ChangeKind.CANCEL:
            return ["scancel", key]
        case ChangeKind.CANCEL_WAITING:
            return ["scancel", "--state=PENDING", key]
        case ChangeKind.HOLD:
            return ["scontrol", "uhold", key]
        case ChangeKind.REQUEUE_HELD:
            return ["scontrol", "requeuehold", key]
        case ChangeKind.RELEASE:
            return ["scontrol", "release", key]
        case ChangeKind.REBOOT:
            return ["scontrol", "reboot", "ASAP", f"reason={change.text}", str(change.node)]
        case ChangeKind.DRAIN | ChangeKind.RESUME | ChangeKind.MARK:
            return ["scontrol", "update", f"nodename={change.node}", *_values(change)]
    return ["scontrol", "update", f"jobid={key}", *_values(change)]


def _values(change: Change) -> list[str]:
    match change.kind:
        case ChangeKind.NOTE:
            return [f"admincomment={change.text}"]
        case ChangeKind.START:
            return [f"starttime=now{f'+{change.after_s}' if change.after_s else ''}"]
        case ChangeKind.PLACE:
            given = (("priority", change.priority), ("nice", change.nice), ("qos", change.qos or None))
            return [f"{name}={value}" for name, value in given if value is not None]
        case ChangeKind.EXCLUDE:
            return [f"excnodelist={','.join(change.nodes)}"]
        case ChangeKind.RESIZE:
            return [f"numnodes={change.low}-{change.high}", *([f"numcpus={change.cpus}"] if change.cpus else [])]
        case ChangeKind.WAIT_FOR:
            return [f"dependency={change.text}"]
        case ChangeKind.DRAIN:
            return ["state=drain", f"reason={change.text}"]
        case ChangeKind.RESUME:
            # With a blank: versions before 25 keep a reason beyond `resume`, and refuse an empty one.
            return ["state=resume", "reason= "]
        case ChangeKind.MARK:
            return ["state=fail", f"reason={change.repair}"]
    raise ValueError(f"{change.kind} sets no value")
