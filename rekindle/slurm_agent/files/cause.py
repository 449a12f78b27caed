"""Why a start failed, from the end of what it printed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rekindle.protocol.cluster.documents import CauseDoc
from rekindle.signatures import Classifier, Finding, root_cause
from rekindle.signatures.places import node_in, rank_in
from rekindle.slurm_agent.base.ports import OutputVerdict
from rekindle.slurm_agent.files import userfs

TAIL_BYTES: Final = 64 * 1024
MAX_LINE: Final = 500


def of_files(paths: Sequence[str], uid: int | None, gid: int | None) -> OutputVerdict:
    """The root cause that the files' ends show; none where none can be read. Never raises."""
    findings: list[Finding] = []
    for path in dict.fromkeys(path for path in paths if path.startswith("/")):
        try:
            with userfs.as_user(uid, gid):
                printed = userfs.tail(path, TAIL_BYTES)
        except (OSError, ValueError):  # the latter for a path that the system cannot be given
            continue
        findings += _findings(printed, len(findings))
    return _verdict(findings)


def of_text(printed: bytes) -> OutputVerdict:
    """The same, of what was printed."""
    return _verdict(_findings(printed, 0))


def _findings(printed: bytes, start: int) -> list[Finding]:
    judge = Classifier()
    lines = [line for line in printed.decode("utf-8", "replace").splitlines() if line.strip()]
    return [
        Finding(
            verdict=judge.classify(line),
            node=node_in(line),
            rank=rank_in(line),
            at=float(start + number),
            text=line[:MAX_LINE],
        )
        for number, line in enumerate(lines, start=1)
    ]


def _verdict(findings: list[Finding]) -> OutputVerdict:
    found = root_cause(findings, is_one_log=True)
    if found.fault is None or found.finding is None:
        return OutputVerdict()
    first = found.finding
    return OutputVerdict(
        text=" ".join(f"{found.text} Its output says: {first.text}".split()),
        cause=CauseDoc(
            label=found.label.value,
            fault=found.fault,
            response=found.first_response.value,
            rule=first.verdict.rule,
            node=first.node,
            rank=first.rank,
            line=None if first.at is None else int(first.at),
            evidence=" ".join(first.text.split()),
        ),
    )
