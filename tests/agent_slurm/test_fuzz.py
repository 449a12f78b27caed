"""Whatever a command prints, a parser gives a value or its one typed error."""

import contextlib
import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rekindle.protocol.cluster.documents import AttemptDoc, JobSpec, NodeFacts
from rekindle.protocol.cluster.node_states import read_state
from rekindle.slurm_agent.copies import capture, spec
from rekindle.slurm_agent.reading import comment, jobs, nodemap, nodes, options, script, text
from rekindle.slurm_agent.reading.run import Unreadable
from rekindle.slurm_agent.watching.attempt_docs import ShownJob, base_of, doc_of

pytestmark = pytest.mark.long

RECORDED = Path(__file__).parent / "recorded"
NOW = datetime(2026, 11, 21, 16, 7, tzinfo=UTC)
QUICK = settings(max_examples=150, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
# Pieces that outputs are made of, beside any text at all.
PIECES = st.sampled_from(
    ("|m|", "|m#", "\n", "=", " ", ",", "[", "]", "-", "(null)", "N/A", "NodeName=", "JobId=", "State=", "Reason=", "1")
)
WORDS = st.sampled_from(
    ("CANCELLED by 7", "node[1-3]", "IDLE+DRAIN*", "99999999999999999999", "²", "\x00", "\ud800", "afterok:1(x)?")
)
ANY = st.one_of(st.text(max_size=400), st.lists(PIECES | WORDS, max_size=40).map("".join))


def mangled() -> st.SearchStrategy[str]:
    """A recording with a piece cut out, and another put in."""
    whole = st.sampled_from([path.read_text() for path in sorted(RECORDED.glob("*.txt"))])

    def cut(parts: tuple[str, float, float, str]) -> str:
        base, one, other, extra = parts
        low, high = sorted((int(one * len(base)), int(other * len(base))))
        return base[:low] + extra + base[high:]

    unit = st.floats(0, 1, allow_nan=False)
    return st.tuples(whole, unit, unit, ANY).map(cut)


READERS: dict[str, Callable[[str], object]] = {
    "squeue": lambda found: jobs.parse_jobs(found, "|0123456789ab|", "|0123456789ab#", NOW),
    "rows": lambda found: jobs.parse_jobs(found, "|m|", "|m#", NOW),
    "steps": lambda found: jobs.parse_steps(found, "|0123456789ab|", "|0123456789ab#"),
    "job": jobs.parse_detail,
    "nodes": nodes.parse_nodes,
    "settings": nodes.parse_settings,
    "state": jobs.state_of,
    "node state": read_state,
    "hosts": text.hosts,
    "moment": text.moment,
    "seconds": text.seconds,
    "exit": text.exit_status,
    "dependencies": jobs.plain_dependency,
    "repointed": lambda found: jobs.repointed(found, 1, 2),
    "comment": comment.parse,
    "script": script.read,
    "exported": options.exported,
    "resources": lambda found: nodemap.parse(found.encode("utf-8", "surrogatepass")),
    "environment": lambda found: capture.parse_environment(found.encode("utf-8", "surrogatepass")),
    "arguments": lambda found: capture.find_arguments(found.encode("utf-8", "surrogatepass"), "a b c"),
}


@pytest.mark.parametrize("name", sorted(READERS))
@QUICK
@given(printed=st.one_of(ANY, mangled()))
def test_a_reader_gives_a_value_or_its_error(name: str, printed: str) -> None:
    with contextlib.suppress(Unreadable):
        READERS[name](printed)


COLUMN = st.one_of(
    ANY, st.sampled_from(["RUNNING", "PENDING", "1", "0", "²", "%²j", "node[1-2]", "1795276000", "rekindle:p"])
)


def as_read(printed: str) -> str:
    """As `run.py` reads what a command prints: what is no UTF-8 is replaced."""
    return printed.encode("utf-8", "replace").decode("utf-8", "replace")


@QUICK
@given(columns=st.lists(COLUMN, min_size=len(jobs.COLUMNS), max_size=len(jobs.COLUMNS)), restart=st.integers(0, 9))
def test_every_job_that_is_read_makes_a_document_that_can_be_read(columns: list[str], restart: int) -> None:
    columns[0], columns[1] = "77", str(restart)
    row = as_read("|m|".join(column.replace("|m", "") for column in columns) + "|m#")
    try:
        (job,) = jobs.parse_jobs(row, "|m|", "|m#", NOW)
    except Unreadable:
        return
    said = comment.parse(job.comment) or comment.Comment()
    shown = ShownJob(job=job, base=base_of("ml", job, said), asked=said, detail={"ExitCode": columns[5]})
    try:
        doc = doc_of("ml", shown, NOW)
    except Unreadable:
        return
    assert AttemptDoc.from_json(json.dumps({"v": 1} | doc.to_wire())) == doc


@QUICK
@given(
    values=st.dictionaries(
        st.sampled_from(["NumNodes", "TimeLimit", "MinMemoryNode", "Nice", "CoreSpec", "TresPerNode", "ReqNodeList"]),
        ANY,
    ),
    environment=st.dictionaries(st.sampled_from(["SLURM_NTASKS", "SLURM_EXPORT_ENV", spec.EXCLUDED, "A"]), ANY),
    columns=st.lists(COLUMN, min_size=len(jobs.COLUMNS), max_size=len(jobs.COLUMNS)),
)
def test_every_job_that_is_read_makes_a_spec_that_can_be_read(
    values: dict[str, str], environment: dict[str, str], columns: list[str]
) -> None:
    columns[0], columns[1] = "77", "0"
    row = as_read("|m|".join(column.replace("|m", "") for column in columns) + "|m#")
    try:
        (job,) = jobs.parse_jobs(row, "|m|", "|m#", NOW)
    except Unreadable:
        return
    captured = capture.parse_environment(
        b"\0\0\0\0"
        + "\0".join(f"{name}={given}" for name, given in environment.items()).encode("utf-8", "surrogatepass")
    )
    kept = {name: given for name, given in captured.items() if given.isprintable()}
    taken = spec.build_spec(job, values, script="#!/bin/sh\n", environment=capture.Captured(kept=kept), arguments=())
    if taken.spec is None:
        assert taken.cannot[-1].startswith(spec.NOT_WRITABLE)
    else:
        assert JobSpec.from_json(taken.spec.to_json()) == taken.spec


@QUICK
@given(state=ANY, reason=st.text(max_size=60))
def test_every_node_that_is_read_makes_facts_that_can_be_read(state: str, reason: str) -> None:
    line = f"NodeName=n1 State={state} Reason={reason}".replace("\n", " ")
    for node in nodes.parse_nodes(line):
        facts = NodeFacts(name=node.name, state=node.state, flags=node.flags, reason=node.reason)
        assert len(facts.state) <= 64
        assert all(len(flag) <= 2000 for flag in facts.flags)


@QUICK
@given(words=st.lists(st.binary(min_size=0, max_size=8).filter(lambda word: b"\0" not in word), min_size=1, max_size=6))
def test_packed_arguments_are_found_as_they_were(words: list[bytes]) -> None:
    program = b"/fsx/run.sh"
    packed = b"".join(len(word + b"\0").to_bytes(4, "big") + word + b"\0" for word in [program, *words])
    state = b"\xff\x00junk" + (len(words) + 1).to_bytes(4, "big") + packed + b"\x00tail"
    command = b" ".join([program, *words]).decode("utf-8", "surrogateescape")
    found = capture.find_arguments(state, command)
    assert found == tuple(word.decode("utf-8", "replace") for word in words)
