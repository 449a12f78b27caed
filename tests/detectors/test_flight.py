"""Who is missing, from flight recorders: NCCL's fields as torch publishes them, and files that lie. Gloo's own dumps
are made and judged by the tests of the frameworks.
"""

from __future__ import annotations

import json
import pickle
import pickletools
import time
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rekindle.checkpoints.pickle_values import NotPlain, plain_value
from rekindle.cli.main import main
from rekindle.detectors.dumps import BadDump, flight_of, read_dump
from rekindle.detectors.flight import FlightVerdict, who_is_missing
from rekindle.detectors.rank_rules import STRONG, FlightRule
from rekindle.detectors.ras import ras_of
from rekindle.protocol.flights import MAX_CALLS, MAX_GROUPS, Flight, RasState, ranks_of, ranks_text
from rekindle.protocol.reports import MAX_REPORT_BYTES
from tests.sizes import examples

WORLD = ("0", "default_pg")


def entry(
    seq: int, group: tuple[str, str] = WORLD, op: str = "nccl:all_reduce", state: str = "completed", **more: Any
) -> dict[str, Any]:
    """Source: torch/csrc/distributed/c10d/FlightRecorder.hpp, version 2.10 of the dump."""
    fields: dict[str, Any] = {
        "record_id": seq, "pg_id": int(group[0]), "process_group": group, "collective_seq_id": seq, "p2p_seq_id": 0,
        "op_id": seq, "profiling_name": op, "time_created_ns": 10**18 + seq, "input_sizes": [[1024, 8]],
        "input_dtypes": ["BFloat16"], "output_sizes": [[1024, 8]], "output_dtypes": ["BFloat16"], "state": state,
        "time_discovered_started_ns": None, "time_discovered_completed_ns": None, "retired": state == "completed",
        "timeout_ms": 600000, "is_p2p": False, "frames": [{"name": "f", "filename": "train.py", "line": 3}],
    }  # fmt: skip
    return fields | more


def dump(*entries: dict[str, Any], groups: dict[tuple[str, str], list[int]] | None = None) -> dict[str, Any]:
    config = {name: {"name": name, "desc": desc, "ranks": str(ranks)} for (name, desc), ranks in (groups or {}).items()}
    return {"version": "2.10", "pg_config": config, "pg_status": {}, "entries": list(entries), "nccl_version": "2.27.5"}


def judged(dumps: dict[int, dict[str, Any]], world: int) -> FlightVerdict:
    return who_is_missing({rank: flight_of(one) for rank, one in dumps.items()}, world)


def waits(seq: int, group: tuple[str, str] = WORLD, **more: Any) -> list[dict[str, Any]]:
    return [
        entry(seq - 1, group, **{**more, "state": "completed"}),
        entry(seq, group, **{"state": "scheduled", **more}),
    ]


def test_the_member_that_others_wait_for_is_named_along_a_chain_of_groups() -> None:
    """Data parallel in 0-7, tensor parallel in pairs. Rank 7 is in its own code: 6 waits for it, all for 6 and 7."""
    everybody = list(range(8))
    pairs = {rank: ((str(1 + rank // 2), "tp"), [rank - rank % 2, rank - rank % 2 + 1]) for rank in everybody}
    dumps: dict[int, dict[str, Any]] = {}
    for rank in everybody:
        pair, members = pairs[rank]
        groups = {WORLD: everybody, pair: members}
        calls = (
            [entry(8, pair), *waits(41)]
            if rank < 6
            else [entry(40), *(waits(8, pair) if rank == 6 else [entry(7, pair)])]
        )
        dumps[rank] = dump(*calls, groups=groups)
    verdict = judged(dumps, 8)
    assert (verdict.ranks, verdict.rule) == ((7,), FlightRule.NOT_ENTERED)
    assert verdict.confidence < STRONG  # never a node's end by this alone


def test_a_group_that_a_rank_has_never_called_is_known_by_its_members() -> None:
    group, members = ("3", "ep"), [0, 1, 2, 3]
    dumps = {rank: dump(entry(5), *waits(1, group)[1:], groups={WORLD: members, group: members}) for rank in (0, 1, 3)}
    dumps[2] = dump(entry(5), groups={WORLD: members, group: members})
    verdict = judged(dumps, 4)
    assert (verdict.ranks, verdict.rule) == ((2,), FlightRule.NOT_ENTERED)


@pytest.mark.parametrize(
    "other", [{"op": "nccl:_all_gather_base"}, {"input_sizes": [[1024, 9]]}, {"input_dtypes": ["Float"]}]
)
def test_another_operation_or_size_is_named_and_is_the_codes(other: dict[str, Any]) -> None:
    dumps = {rank: dump(*waits(9, **(other if rank == 5 else {}))) for rank in range(8)}
    verdict = judged(dumps, 8)
    assert (verdict.ranks, verdict.rule) == ((5,), FlightRule.MISMATCHED)


def test_sizes_that_may_differ_are_no_mismatch() -> None:
    dumps = {rank: dump(*waits(9, op="nccl:all_to_all", input_sizes=[[rank]])) for rank in range(8)}
    assert judged(dumps, 8).rule is FlightRule.ALL_ENTERED


def test_a_half_that_differs_from_the_other_is_not_condemned() -> None:
    dumps = {rank: dump(*waits(9, input_sizes=[[4 + rank % 2]])) for rank in range(2)}
    verdict = judged(dumps, 2)
    assert verdict.confidence <= 0.4


def test_who_waits_elsewhere_is_named_where_each_waits_for_the_other() -> None:
    members = list(range(8))
    dumps = {rank: dump(entry(3), *waits(41), groups={WORLD: members, ("1", "ckpt"): members}) for rank in members}
    dumps[3] = dump(entry(40), *waits(2, ("1", "ckpt")), groups={WORLD: members, ("1", "ckpt"): members})
    verdict = judged(dumps, 8)
    assert (verdict.ranks, verdict.rule) == ((3,), FlightRule.ELSEWHERE)


def test_a_stage_of_a_pipeline_that_sends_nothing_is_named() -> None:
    members = list(range(4))

    def stage(*calls: dict[str, Any]) -> dict[str, Any]:
        return dump(entry(3), *calls, groups={WORLD: members})

    def receive(rank: int) -> dict[str, Any]:
        op = f"nccl:recv {rank}<-{rank - 1}"
        return entry(3, op=op, state="scheduled", is_p2p=True, p2p_seq_id=12)

    verdict = judged({0: stage(), 1: stage(), 2: stage(receive(2)), 3: stage(receive(3))}, 4)
    assert (verdict.ranks, verdict.rule) == ((1,), FlightRule.NOT_ENTERED)


def test_nobody_is_missing_is_an_answer() -> None:
    inside = judged({rank: dump(*waits(9, state="started")) for rank in range(8)}, 8)
    assert (inside.ranks, inside.rule) == ((), FlightRule.ALL_ENTERED)
    idle = judged({rank: dump(entry(9)) for rank in range(8)}, 8)
    assert (idle.ranks, idle.rule) == ((), FlightRule.NOBODY_WAITS)
    late = judged({rank: dump(*waits(9, state="scheduled" if rank == 6 else "started")) for rank in range(8)}, 8)
    assert (late.ranks, late.rule) == ((6,), FlightRule.NOT_STARTED)


def test_a_rank_without_a_recorder_is_named_by_those_who_wait_and_less_surely() -> None:
    whole = {rank: dump(*waits(9)) for rank in range(7)}
    verdict = judged(whole, 8)
    assert (verdict.ranks, verdict.rule, verdict.confidence) == ((7,), FlightRule.NOT_ENTERED, 0.6)
    assert judged({rank: whole[rank] for rank in range(4)}, 8).rule is FlightRule.UNKNOWN


def test_what_is_overwritten_or_timed_out_is_read_as_it_is_meant() -> None:
    one = dump(entry(9, state="scheduled", retired=True)) | {"pg_status": {"0": {"last_enqueued_collective": "31"}}}
    (group,) = flight_of(one).groups
    assert group.first_waiting is not None  # NCCL's: retired and not completed has timed out
    assert group.entered == 31
    (gloo,) = flight_of(dump(entry(9, op="gloo:all_reduce", state="scheduled", retired=True))).groups
    assert gloo.first_waiting is None


# ---- files that lie --------------------------------------------------------------------------------------------------


class _Runs:
    def __reduce__(self) -> Any:
        return (Path.touch, (Path(__file__).parent / "ran",))


HOSTILE = {
    "a call": pickle.dumps({"version": "2.10", "entries": [_Runs()]}, protocol=2),
    "a global": b"\x80\x02cos\nsystem\n.",
    "a persistent id": b"\x80\x02Pid\n.",
    "a memo of four billion": b"\x80\x02K\x01r\xff\xff\xff\xff.",
    "a bytearray of a terabyte": b"\x80\x05\x96" + (1 << 40).to_bytes(8, "little") + b".",
    "a text of a terabyte": b"\x80\x04\x8d" + (1 << 40).to_bytes(8, "little") + b".",
    "cut short": pickle.dumps(dump(entry(1)), protocol=2)[:-40],
    "a mark alone": b"\x80\x02(.",
    "a pop too many": b"\x80\x02aaa.",
    "an unhashable key": b"\x80\x02}]K\x01s.",
    "nothing": b"",
    "deep JSON": b"[" * 100_000,
    "JSON of no dump": b'{"version": 3}',
    "an old version": b'{"version": "1.3", "entries": []}',
    "not finite": b'{"version": "2.1", "x": NaN}',
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_refused_and_never_run(name: str) -> None:
    tracemalloc.start()
    begun = time.monotonic()
    with pytest.raises(BadDump):
        read_dump(HOSTILE[name])
    assert tracemalloc.get_traced_memory()[1] < 16 << 20
    tracemalloc.stop()
    assert time.monotonic() - begun < 5.0
    assert not (Path(__file__).parent / "ran").exists()


def test_a_value_that_holds_itself_or_doubles_is_read_in_bounded_time() -> None:
    doubling = b"\x80\x02]q\x00" + b"".join(
        b"]q" + bytes([at + 1]) + b"(h" + bytes([at]) + b"h" + bytes([at]) + b"e" for at in range(200)
    )
    assert isinstance(plain_value(doubling + b"."), list)
    itself = b"\x80\x02}q\x00(X\x07\x00\x00\x00versionX\x03\x00\x00\x002.1X\x07\x00\x00\x00entries]q\x01(h\x00h\x01eu."
    assert read_dump(itself) == Flight()


@settings(max_examples=examples(300), deadline=None)
@given(st.binary(max_size=200))
def test_no_bytes_lead_to_another_error(raw: bytes) -> None:
    for text in (raw, b"\x80\x02" + raw):
        try:
            read_dump(text)
        except BadDump:
            continue


@settings(max_examples=examples(300), deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(
            ["version", "entries", "pg_status", "pg_config", "collective_seq_id", "state", "is_p2p", "ranks"]
        ),
        st.recursive(
            st.none() | st.integers() | st.text(max_size=5) | st.sampled_from(["2.10", "scheduled", "nccl:x"]),
            lambda inner: (
                st.lists(inner, max_size=3)
                | st.dictionaries(st.sampled_from(["0", "state", "process_group", "profiling_name", "ranks"]), inner)
            ),
            max_leaves=8,
        ),
    )
)
def test_fields_of_any_type_are_passed_over(fields: dict[str, Any]) -> None:
    odd = dump({**entry(4), **fields}, entry(5)) | fields
    try:
        flight = flight_of(odd | {"version": "2.10"})
    except BadDump:
        return
    who_is_missing(dict.fromkeys(range(4), flight), 4)


@settings(max_examples=examples(200), deadline=None)
@given(
    st.recursive(
        st.none() | st.integers() | st.text() | st.floats(allow_nan=False),
        lambda one: st.lists(one) | st.dictionaries(st.text(), one) | st.tuples(one, one),
    ),
    st.integers(0, 4),
)
def test_plain_values_are_read_as_they_were_written(value: Any, protocol: int) -> None:
    try:
        assert plain_value(pickle.dumps(value, protocol=protocol)) == value
    except NotPlain:  # of the oldest protocols some numbers are calls, and long numbers have opcodes of their own
        names = {opcode.name for opcode, _, _ in pickletools.genops(pickle.dumps(value, protocol=protocol))}
        assert names & {"LONG4"}


def test_a_part_is_small_however_much_a_dump_holds() -> None:
    groups = {(str(at), f"group {at}"): list(range(0, 16384, 8)) for at in range(40)}
    calls = [entry(seq, group, state="scheduled") for seq in range(200) for group in groups]
    flight = flight_of(dump(*calls, groups=groups))
    assert len(flight.groups) == MAX_GROUPS
    assert all(len(group.calls) <= MAX_CALLS for group in flight.groups)
    assert len(json.dumps(flight.to_wire())) < MAX_REPORT_BYTES / 2
    assert flight.groups[0].ranks == "0-16376:8"


@given(st.sets(st.integers(0, 300)))
def test_ranks_are_written_so_that_they_can_be_read(ranks: set[int]) -> None:
    text = ranks_text(ranks)
    assert not text or ranks_of(text, 301) == ranks


# ---- NCCL's RAS ------------------------------------------------------------------------------------------------------


def ras(ranks: dict[int, int], missing: dict[int, dict[str, bool]]) -> dict[str, Any]:
    """Source: NCCL's src/ras/client_support.cc, the JSON form."""
    place = {"host": "node-1", "pid": 7, "cuda_dev": 0, "nvml_dev": 0}
    fine = {"init_state": 0, "async_error": 0, "finalize_called": False, "destroy_flag": False, "abort_flag": False}
    return {
        "nccl_version": "2.29.2",
        "communicators_count": 1,
        "communicators": [
            {
                "hash": "0x1", "size": len(ranks) + len(missing), "ranks_count": len(ranks),
                "ranks": [place | {"rank": rank, "status": fine, "collective_counts": {"AllReduce": count, "Reduce": 0}}
                          for rank, count in ranks.items()],
                "missing_ranks": [place | {"rank": rank, "status": status} for rank, status in missing.items()],
            }
        ],
    }  # fmt: skip


def test_ras_names_the_dead_before_those_that_are_behind() -> None:
    found = ras_of(ras({0: 41, 1: 41, 2: 40}, {3: {"unresponsive": True, "considered_dead": True}})).suspects
    assert [(report.rank, report.state, report.is_of_run) for report in found] == [
        (3, RasState.DEAD, True),
        (2, RasState.BEHIND, True),
    ]
    assert ras_of(ras({0: 41, 1: 41}, {})).suspects == ()


# ---- the command -----------------------------------------------------------------------------------------------------


def test_the_command_reads_pickles_json_and_ras(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for rank in range(3):
        one = dump(*waits(9), groups={WORLD: [0, 1, 2, 3]})
        (tmp_path / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(one, protocol=2))
    (tmp_path / "nccl_trace_rank_3.json").write_text(json.dumps(dump(entry(8), groups={WORLD: [0, 1, 2, 3]})))
    (tmp_path / "ras.json").write_text(json.dumps(ras({0: 9, 1: 9, 2: 9, 3: 8}, {})))
    assert main(["hang", str(tmp_path), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["ranks"], told["rule"], told["world_size"]) == ([3], "not_entered", 4)
    assert told["groups"][0]["waiting"] == [0, 1, 2]
    assert [one["state"] for one in told["ras"]] == ["behind"]
    assert main(["hang", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "suspect:    rank 3" in out
    assert "all_reduce 9" in out


@pytest.mark.parametrize("name", ["trace", "rank_1"])
def test_a_file_without_a_rank_or_with_lies_is_one_clear_error(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / name).write_bytes(HOSTILE["a call"] if name == "rank_1" else json.dumps(dump(entry(1))).encode())
    assert main(["hang", str(tmp_path)]) != 0
    assert capsys.readouterr().err.count("\n") == 1
