"""Histories: published rates with their sources, and traces from a folder of the user's."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from fleets.causes import HOST, SOFTWARE, SPOT
from fleets.histories import LLAMA3, History, lablup, llama3, llama3_mix, mean_s_between_failures, meta512, poisson
from fleets.runs import DAY_S
from fleets.traces import LANL_FILE, SKYPILOT_FILE, histories
from rekindle.doctor.stack.runs import FAILURES_PER_NODE_DAY

LANL_HEAD = (
    "system,machine_type,n_nodes,n_procs,procs_per_node,node,start,fixed,down_minutes,cause_category,cause_detail,"
    "same_event"
)


def test_llama3s_table_has_419_interruptions_each_with_its_source() -> None:
    assert sum(row.count for row in LLAMA3) == 419
    assert all("2407.21783" in row.source for row in LLAMA3)
    history = llama3(0)
    assert len(history.failures) == 419
    assert (history.nodes * history.gpus_per_node, history.wall_s) == (16_384, 54 * DAY_S)
    assert history.mean_s == pytest.approx(3.1 * 3600, rel=0.01)  # the paper's own figure


def test_every_cause_says_where_it_is_from() -> None:
    causes, weights = llama3_mix()
    assert sum(weights) == 419
    assert all(cause.source for cause in causes)


@pytest.mark.parametrize("drawn", [llama3, meta512, lablup])
def test_a_seed_draws_the_same_history_again_and_another_seed_another(drawn: object) -> None:
    assert callable(drawn)
    assert drawn(3) == drawn(3)
    assert drawn(3).failures != drawn(4).failures
    times = [failure.at_s for failure in drawn(3).failures]
    assert times == sorted(times)
    assert 0 <= times[0] <= times[-1] <= drawn(3).wall_s


def test_the_rate_is_the_doctors_and_a_smaller_node_fails_in_proportion() -> None:
    assert mean_s_between_failures(64) == pytest.approx(DAY_S / (64 * FAILURES_PER_NODE_DAY))
    assert mean_s_between_failures(64, gpus_per_node=1) == pytest.approx(8 * mean_s_between_failures(64))
    drawn = poisson(nodes=64, days=4000, mean_s=mean_s_between_failures(64), seed=1)
    assert drawn.mean_s == pytest.approx(mean_s_between_failures(64), rel=0.1)


def test_half_of_the_504_gpus_failures_are_on_three_nodes() -> None:
    found = lablup(0).failures
    lasting = [failure for failure in found if failure.lasts]
    assert len({one.node for one in lasting}) <= 3
    assert len(lasting) >= len(found) / 2


def _gz(path: Path, *lines: str) -> None:
    with gzip.open(path, "wt") as out:
        out.write("\n".join(lines) + "\n")


def test_traces_that_are_not_there_are_named_each_with_why() -> None:
    for folder in (None, Path("does-not-exist")):
        found = dict(histories(folder))
        assert set(found.values()) == {"is not there"}
        assert LANL_FILE in found


def test_a_lanl_trace_is_read_with_its_own_times_and_nodes(tmp_path: Path) -> None:
    _gz(
        tmp_path / LANL_FILE,
        LANL_HEAD,
        "20,cluster,512.0,2048.0,4.0,7.0,2002-01-02 00:00:00,2002-01-02 01:00:00,60,Hardware,CPU,No",
        "20,cluster,512.0,2048.0,4.0,8.0,2002-01-01 00:00:00,2002-01-01 01:00:00,60,Software,OS,No",
        "18,cluster,1024.0,4096.0,4.0,1.0,2002-05-06 08:45:00,2002-05-06 09:00:00,15,,,No",
        "2,cluster,49.0,6152.0,128.0,3.0,1997-01-23 07:15:00,1997-01-23 08:15:00,60,Software,DST,No",
    )
    found = dict(histories(tmp_path))
    twenty = found["LANL system 20"]
    assert isinstance(twenty, History)
    assert [(failure.at_s, failure.node, failure.cause) for failure in twenty.failures] == [
        (0.0, 8, SOFTWARE),
        (DAY_S, 7, HOST),
    ]
    assert twenty.nodes == 512
    assert isinstance(found["LANL system 18"], History)


def test_spot_nodes_that_leave_are_interruptions_until_there_are_enough_again(tmp_path: Path) -> None:
    rows = [f"{number * 1000},add,node{number}" for number in range(4)]
    rows += ["100000,remove,node0", "200000,remove,node1", "300000,remove,node2", "900000,add,node9"]
    (tmp_path / "bamboo_p3-trace.csv").write_text("\n".join(rows) + "\n")
    history = dict(histories(tmp_path))["Bamboo p3-trace"]
    assert isinstance(history, History)
    assert history.nodes == 2
    assert {failure.cause for failure in history.failures} == {SPOT}
    last = history.failures[-1]
    assert last.back_at_s is not None
    assert last.back_at_s - last.at_s == pytest.approx(600.0)


@pytest.mark.parametrize(
    "lines",
    [
        ("not,the,columns", "1,2,3"),
        (LANL_HEAD, "20,cluster,many,2048.0,4.0,7.0,2002-01-02 00:00:00,,60,Hardware,CPU,No"),
        (LANL_HEAD, "20,cluster,512.0,2048.0,4.0,7.0,yesterday,,60,Hardware,CPU,No"),
        (LANL_HEAD,),
    ],
)
def test_a_trace_that_cannot_be_read_is_left_out_with_the_reason(tmp_path: Path, lines: tuple[str, ...]) -> None:
    _gz(tmp_path / LANL_FILE, *lines)
    reason = dict(histories(tmp_path))[LANL_FILE]
    assert isinstance(reason, str)
    assert reason.startswith("cannot be read: ")


def test_a_trace_that_is_cut_short_is_left_out_with_the_reason(tmp_path: Path) -> None:
    _gz(tmp_path / SKYPILOT_FILE, "kind,nodes,campaign,zone_instance,start_s,end_s,value", *["a,b,c,d,0,1,0"] * 500)
    whole = (tmp_path / SKYPILOT_FILE).read_bytes()
    (tmp_path / SKYPILOT_FILE).write_bytes(whole[: len(whole) // 2])
    reason = dict(histories(tmp_path))[SKYPILOT_FILE]
    assert isinstance(reason, str)
    assert reason.startswith("cannot be read: ")
