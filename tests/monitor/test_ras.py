"""NCCL's RAS is asked by its own protocol: of a server on a real socket that answers as its client_support.cc does."""

from __future__ import annotations

import json
import os
import socketserver
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from rekindle.detectors.rank_rules import ACCUSES_NO_NODE, RankRule
from rekindle.detectors.ranks import find_suspects
from rekindle.detectors.ras import MAX_ANSWER_BYTES, read_ras
from rekindle.monitor.base.trouble import Trouble
from rekindle.monitor.liveness import ras as asked
from rekindle.monitor.liveness.ras import Ras, question
from rekindle.protocol.flights import RasState, RasSuspect
from rekindle.protocol.reports import RankReport, ReportKind, report_key
from tests.detectors.test_flight import ras as answer_of
from tests.monitor.boxes import PATIENCE_S, QUICK, ObservedBox, start_monitor

SILENT: Mapping[str, bool] = {"unresponsive": True, "considered_dead": False}
# As NCCL 2.24 to 2.28.6 answer, for a job of 32 of which one process was stopped.
TEXT = """NCCL version 2.27.3 compiled with CUDA 12.9
CUDA runtime version 12090, driver version 12090

Job summary
===========

  Nodes  Processes         GPUs  Processes     GPUs
(total)   per node  per process    (total)  (total)
      4          8            1         32       32

Communicators... (2.05s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         1         4       7-8        32        32   RUNNING  INCOMPLETE
    1         8         4         1         4        32   RUNNING  MISMATCH

Errors
======

INCOMPLETE
  Missing communicator data from 1 job process
  Process 3487984 on node 172.16.64.213 managing GPU 5

#0-0 (cf264af53edbe986) INCOMPLETE
  Missing communicator data from 1 rank
  Rank 21 -- GPU 5 managed by process 3487984 on node 172.16.64.213

Warnings
========

TIMEOUT
  Encountered 2 communication timeouts while gathering communicator data

#0-0 (cf264af53edbe986) MISMATCH
  Communicator ranks have different AllReduce operation counts
  30 ranks have launched up to operation 6650
  Rank 7 has launched up to operation 6649 -- GPU 7 managed by process 483079 on node 172.16.64.210

"""


@dataclass
class Server:
    """One process's RAS. `knows_json`: whether it is new enough; `held`: what an answer waits for."""

    answer: bytes
    knows_json: bool = True
    greeting: bytes = b"SERVER PROTOCOL 2\n"
    held: threading.Event = field(default_factory=threading.Event)
    commands: list[str] = field(default_factory=list)
    address: str = ""

    def serve(self, handler: socketserver.StreamRequestHandler) -> None:
        for line in handler.rfile:
            command = line.decode().strip()
            self.commands.append(command)
            if command.startswith("CLIENT PROTOCOL "):
                handler.wfile.write(self.greeting)
            elif command == "SET FORMAT json":
                told = "OK" if self.knows_json else f"ERROR: Unknown command {command}"
                handler.wfile.write(f"{told}\n".encode())
            elif command == "STATUS":
                self.held.wait(PATIENCE_S)
                handler.wfile.write(self.answer)
                return


@pytest.fixture
def serve() -> Iterator[Callable[..., Server]]:
    raised: list[tuple[socketserver.ThreadingTCPServer, Server]] = []

    def start(answer: bytes, *, holds: bool = False, **more: Any) -> Server:
        server = Server(answer=answer, **more)
        if not holds:
            server.held.set()

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                server.serve(self)

        class Quiet(socketserver.ThreadingTCPServer):
            daemon_threads = True

            def handle_error(self, request: Any, client_address: Any) -> None:
                """A client that is gone is no news."""

        listening = Quiet(("127.0.0.1", 0), Handler)
        server.address = f"127.0.0.1:{listening.server_address[1]}"
        threading.Thread(target=listening.serve_forever, args=(0.05,), daemon=True).start()
        raised.append((listening, server))
        return server

    yield start
    for listening, server in raised:
        server.held.set()
        listening.shutdown()
        listening.server_close()


def of_this_job(*, pid: int | None = None) -> bytes:
    """Four ranks: 3 does not answer, 2 is behind. All are of one process, or of this one."""
    status = answer_of({0: 41, 1: 41, 2: 40}, {3: dict(SILENT)})
    for row in (*status["communicators"][0]["ranks"], *status["communicators"][0]["missing_ranks"]):
        row.update(pid=os.getpid() if pid is None else pid, nvml_dev=row["rank"])
    return json.dumps(status).encode()


def told(address: str, *, rank: int = 0, world: int = 4, later: Any = None, soon_s: float = PATIENCE_S) -> Any:
    environ = {"NCCL_RAS_ADDR": address}
    found = Ras(rank, world, Trouble()).ask(environ, later or (lambda _: None), soon_s)
    return [(suspect.rank, suspect.state) for suspect in found]


def test_it_is_asked_in_json_and_in_text_where_that_is_not_known(serve: Callable[..., Server]) -> None:
    new, old = serve(of_this_job()), serve(TEXT.encode(), knows_json=False)
    assert told(new.address) == [(3, RasState.UNRESPONSIVE), (2, RasState.BEHIND)]
    assert told(old.address, world=32) == [(21, RasState.UNRESPONSIVE), (7, RasState.BEHIND)]
    assert new.commands == old.commands == ["CLIENT PROTOCOL 2", "SET FORMAT json", "STATUS"]


def test_an_answer_about_another_job_is_none(serve: Callable[..., Server]) -> None:
    assert told(serve(of_this_job(pid=1)).address) == []
    assert told(serve(TEXT.encode(), knows_json=False).address, world=16) == []


def test_few_ranks_ask_and_none_where_ras_is_off(serve: Callable[..., Server]) -> None:
    server = serve(of_this_job())
    asks = [bool(told(server.address, rank=rank, world=4096)) for rank in range(4096)]
    assert sum(asks) <= asked.ASKERS
    assert asks[0]
    before = len(server.commands)
    assert Ras(0, 4, Trouble()).ask({"NCCL_RAS_ADDR": server.address, "NCCL_RAS_ENABLE": "0"}, print) == ()
    assert len(server.commands) == before


def test_a_late_answer_is_heard_and_nothing_waits_for_it(serve: Callable[..., Server]) -> None:
    server, heard, has_heard = serve(of_this_job(), holds=True), list[RasSuspect](), threading.Event()

    def later(suspects: tuple[RasSuspect, ...]) -> None:
        heard.extend(suspects)
        has_heard.set()

    client, environ = Ras(0, 4, Trouble()), {"NCCL_RAS_ADDR": server.address}
    assert client.ask(environ, later, 0.01) == ()
    assert client.ask(environ, later, PATIENCE_S) == ()  # the first question still stands
    server.held.set()
    assert has_heard.wait(PATIENCE_S)
    assert [suspect.rank for suspect in heard] == [3, 2]


@pytest.mark.parametrize(
    "hostile",
    [
        {"answer": b"", "greeting": b"HTTP/1.1 400 Bad Request\r\n"},
        {"answer": b"{" * 100_000},
        {"answer": b"x" * (MAX_ANSWER_BYTES + 1)},
        {"answer": b""},
        {"answer": b'{"communicators": [{"size": 4, "ranks": [{"rank": -1}, 7, null]}]}'},
    ],
)
def test_what_is_no_answer_is_none(hostile: dict[str, Any], serve: Callable[..., Server]) -> None:
    assert told(serve(**hostile).address) == []


def test_where_nothing_listens_or_nothing_ends_it_is_given_up(serve: Callable[..., Server]) -> None:
    assert told("127.0.0.1:1") == told("nonsense") == []
    server = serve(of_this_job(), holds=True)
    with pytest.raises(TimeoutError):
        question(server.address, limit_s=0.05)


def test_no_text_is_too_odd_to_be_read() -> None:
    lines = TEXT.splitlines(keepends=True)
    for at in range(len(lines)):
        for text in ("".join(lines[:at]), "".join(lines[at:]), "Communicators...\n" + lines[at] * 3):
            try:
                read_ras(text.encode())
            except ValueError:
                assert "Communicators..." not in text
    listed = TEXT.replace("Rank 21 -- GPU 5 managed by process 3487984 on node 172.16.64.213", "The missing rank: 21")
    assert [suspect.rank for suspect in read_ras(listed.encode()).suspects] == [21, 7]
    dead = TEXT.replace(
        "Errors\n======\n", "Errors\n======\n\nDEAD\n  Process 3487984 on node 172.16.64.213 managing GPU 5\n"
    )
    assert read_ras(dead.encode()).suspects[0].state is RasState.DEAD


def test_a_rank_of_a_small_communicator_is_the_runs_where_its_device_is_known() -> None:
    status = json.loads(of_this_job())
    small = answer_of({0: 9, 1: 8}, {})["communicators"][0]
    for row, device in zip(small["ranks"], (1, 2), strict=True):
        row.update(pid=os.getpid(), nvml_dev=device)
    other = {**small, "hash": "0x2", "ranks": [{**row, "pid": 1} for row in small["ranks"]]}
    status["communicators"] = [{**status["communicators"][0], "missing_ranks": []}, small, other]
    found = read_ras(json.dumps(status).encode()).suspects
    assert [(suspect.rank, suspect.size, suspect.is_of_run) for suspect in found] == [(2, 4, True), (1, 2, False)]


def test_a_monitor_sends_it_with_its_stall_and_it_names_who_is_silent(
    serve: Callable[..., Server], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    box, server = ObservedBox(tmp_path / "mailbox"), serve(of_this_job(), holds=True)
    monkeypatch.setenv("NCCL_RAS_ADDR", server.address)
    monitors = [
        start_monitor(
            mailbox=box,
            rank=rank,
            world_size=4,
            config=replace(QUICK, stall_startup_s=0.1),
            env={"REKINDLE_JOB_ID": "job", "TRAINING_JOB_NAME": "run-1", "NODE_NAME": f"node-{rank}"},
        )
        for rank in range(3)
    ]
    keys = [report_key("run-1", ReportKind.STALL, rank) for rank in range(3)]
    box.wait(lambda: set(keys) <= set(box.written))  # the stall is not held up by an answer that does not come
    server.held.set()
    try:
        box.wait(lambda: all(RankReport.from_json(box.get(key) or b"").ras for key in keys))
        verdict = find_suspects([RankReport.from_json(box.get(key) or b"") for key in keys], 4)
    finally:
        for monitor in monitors:
            monitor.finish(timeout_s=PATIENCE_S)
    assert verdict.suspect_ranks == (3,)
    assert "NCCL's RAS: its process does not answer" in verdict.text


def test_it_joins_the_other_sources_and_condemns_nobody_alone() -> None:
    gone = RasSuspect(state=RasState.UNRESPONSIVE, rank=3, size=4, is_of_run=True, text="its process does not answer")
    alone = find_suspects([], 4, ras=[gone])
    assert (alone.suspect_ranks, alone.rule) == ((3,), RankRule.RAS_SILENT)
    assert alone.rule in ACCUSES_NO_NODE
    failed = replace(gone, state=RasState.FAILED)  # a survivor's error is seldom its own
    other = replace(gone, size=2, is_of_run=False)
    assert find_suspects([], 4, ras=[failed, other]).suspect_ranks == ()
