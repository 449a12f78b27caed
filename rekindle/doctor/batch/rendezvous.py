"""How the ranks of a script find each other. Pure.

Source: torch.distributed.run: --nnodes 1, --node-rank 0, --rdzv-backend static, --master-addr 127.0.0.1, --master-port
29500 where nothing is given; PET_<NAME> in the environment stands for an option.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from rekindle.doctor.base.checks import AUTO_RESUME_GUIDE, Area, check
from rekindle.doctor.base.findings import Finding, error, quoted, warning
from rekindle.doctor.batch.payloads import flags
from rekindle.doctor.batch.run import has_auto_resume
from rekindle.doctor.batch.script import Batch
from rekindle.sbatch.shell import LATER, Command

_TORCHRUN: Final = re.compile(r"(?:.*/)?torchrun")
# Their words name a launcher and start none.
_START_NOTHING: Final = frozenset(
    (
        *("echo", "printf", "export", "readonly", "declare", "typeset", "local", "command", "which", "type", "hash"),
        *("test", "[", "[[", "alias", "ls", "file"),
    )
)
_MODULE: Final = ("torch.distributed.run", "torch.distributed.launch")
_LOCALHOST: Final = re.compile(r"(?:localhost|127(?:\.\d{1,3}){3}|\[?::1\]?|0\.0\.0\.0)(?::.*)?", re.IGNORECASE)
_FIXED_HOST: Final = re.compile(
    r"(?:\d{1,3}(?:\.\d{1,3}){3}|ip-\d+-\d+-\d+-\d+[\w.-]*|[A-Za-z][\w-]*(?:\.[\w-]+)+)(?::.*)?"
)
_ADDRESS_NAMES: Final = ("MASTER_ADDR", "PET_MASTER_ADDR", "PET_RDZV_ENDPOINT", "MAIN_PROCESS_IP")
_ADDRESS_FLAGS: Final = ("master_addr", "rdzv_endpoint", "main_process_ip")
_OWN_STORE: Final = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"
MANY_RESTARTS: Final = 10
# In the batch shell, which runs on the first node, these are 0; each task has its own. Source: sbatch(1), srun(1).
_OWN_RANK: Final = re.compile(r"\$\{?SLURM_(?:NODEID|PROCID)\b")


@dataclass(frozen=True, slots=True)
class _Launch:
    """One torchrun: its options until the program begins. `is_whole` False: a variable hides some of them."""

    line: int
    options: dict[str, str]
    is_whole: bool
    is_step: bool  # srun's own words: the batch shell works them out


def rendezvous_findings(batch: Batch) -> Iterator[Finding]:
    """Everything about addresses, ports and lists of nodes."""
    launches = _launches(batch)
    yield from _rendezvous(batch, launches)
    yield from _restarts(batch, launches)
    yield from _port(batch, launches)
    yield from _nodelist(batch)


def restarts_of(batch: Batch) -> int:
    """How often torchrun may start its workers again in their place."""
    return max((_count(launch) for launch in _launches(batch)), default=0)


def _launches(batch: Batch) -> list[_Launch]:
    return [launch for command in batch.shell.commands if (launch := _launch(batch, command)) is not None]


def _count(launch: _Launch) -> int:
    restarts = launch.options.get("max_restarts", "")
    return int(restarts) if restarts.isascii() and restarts.isdigit() and len(restarts) < 9 else 0


def _launch(batch: Batch, command: Command) -> _Launch | None:
    if command.is_inner or command.program in _START_NOTHING or command.program.startswith("-"):  # command -v
        return None
    words = batch.words(command)
    start = next((i for i, word in enumerate(words) if _TORCHRUN.fullmatch(word) or word in _MODULE), None)
    if start is None:
        return None
    options: list[str] = []
    is_whole = True
    for word in words[start + 1 :]:
        if re.search(r"\.py$|\.py['\"]?$", word) or word in ("-m", "--module", "--no_python", "--no-python"):
            break
        if re.fullmatch(r"\$\{?[A-Za-z_]\w*(?:\[[@*]\])?\}?", word) and (not options or "=" in options[-1]):
            is_whole = False
        options.append(word)
    found = {name: value or "" for name, value in flags(options)}
    return _Launch(command.line, found, is_whole, command.program == "srun")


@check("batch-rendezvous", Area.SCRIPT, "torch.distributed.run")
def _rendezvous(batch: Batch, launches: list[_Launch]) -> Iterator[Finding]:
    """On several nodes: no localhost, no fixed host, torchrun with nnodes and endpoint, no rank of the batch shell.

    Ranks never meet, or only where they ran first.
    """
    yield from _addresses(batch, launches)
    if batch.nodes is not None and batch.nodes > 1:
        for launch in launches:
            yield from _torchrun(batch, launch)


def _addresses(batch: Batch, launches: list[_Launch]) -> Iterator[Finding]:
    if batch.nodes == 1:
        return
    many = (batch.nodes or 0) > 1
    spans = batch.nodes is None and any("SLURM_" in launch.options.get("nnodes", "") for launch in launches)
    for name, value, line in dict.fromkeys(_named_addresses(batch)):
        if _LOCALHOST.fullmatch(value) and (many or spans):
            say = error if many else warning
            on = f"{batch.nodes} nodes" if many else "several nodes"
            message = f"{name} {quoted(value)} is each node itself: on {on} the ranks never meet"
            yield say(batch.at(line), message)
        elif _FIXED_HOST.fullmatch(value) and not _LOCALHOST.fullmatch(value) and many:
            message = f"{name} {quoted(value)} is one fixed host: the job waits for it wherever it runs next"
            yield warning(batch.at(line), message)


def _named_addresses(batch: Batch) -> Iterator[tuple[str, str, int]]:
    """Each address at which ranks shall meet: the name of its variable or flag, its value, and the line."""
    for name in _ADDRESS_NAMES:
        for value in batch.shell.values.get(name, []):
            yield name, value, batch.shell.lines[name]
    for command in batch.shell.commands:
        if command.is_inner or command.program in ("echo", "printf"):
            continue
        for flag, given in flags(batch.words(command)):
            if flag in _ADDRESS_FLAGS and given:
                yield f"--{flag}", given, command.line


def _torchrun(batch: Batch, launch: _Launch) -> Iterator[Finding]:
    given, at = launch.options, batch.at(launch.line)
    environment = any(name.startswith("PET_") for name in batch.shell.values)
    if "standalone" in given:
        yield error(at, f"--standalone is for one node; on {batch.nodes} each trains alone")
        return
    nnodes = given.get("nnodes")
    if nnodes == "1" or (nnodes is None and launch.is_whole and not environment):
        text = "--nnodes=1" if nnodes else "torchrun without --nnodes"
        yield error(at, f"{text}: on {batch.nodes} nodes each trains alone")
        return
    if not launch.is_whole or environment:
        return
    rank = given.get("node_rank")
    if rank is not None and launch.is_step and _OWN_RANK.search(rank):
        message = f"--node_rank {quoted(rank)} is worked out by the batch shell, where it is 0 for every node"
        yield error(at, f"{message}; use --rdzv_backend=c10d, or quote it for the task's own shell")
    elif "rdzv_endpoint" not in given and "master_addr" not in given:
        yield error(at, "torchrun without --rdzv_endpoint or --master_addr: every node waits at itself")
    elif given.get("rdzv_backend", "static") == "static" and rank is None:
        yield error(at, "torchrun without --rdzv_backend=c10d or --node_rank: every node takes itself for the first")


@check("batch-torchrun-restarts", Area.SCRIPT, "torch.distributed.run; pytorch/pytorch issue 135712")
def _restarts(batch: Batch, launches: list[_Launch]) -> Iterator[Finding]:
    """torchrun's own restarts get a new store, are few, and are not relied on to end workers soon.

    They keep the rendezvous' store, where workers read the addresses of the start before.
    """
    shares_store = "1" not in batch.shell.values.get(_OWN_STORE, [])
    for launch in launches:
        at, given = batch.at(launch.line), launch.options
        count = _count(launch)
        fewest, _, most = given.get("nnodes", "").partition(":")
        has_spare = bool(most) and most != fewest
        if (count or has_spare) and shares_store:
            what = "a restart may meet the addresses of the start before it"
            what += ", and a spare node is not taken in" if has_spare else ""
            yield warning(at, f"torchrun shares its store between its starts: {what}; export {_OWN_STORE}=1")
        if count > MANY_RESTARTS:
            message = f"--max-restarts={count} hides a crash that comes back: {MANY_RESTARTS} are enough"
            yield warning(at, f"{message}, what lasts is recovered by a new start")
        if "shutdown_timeout" in given and (count or has_spare):
            yield warning(at, "--shutdown-timeout does not hold in a restart: workers that ignore SIGTERM get 30 s")


@check("batch-port", Area.SCRIPT, "torch.distributed.run")
def _port(batch: Batch, launches: list[_Launch]) -> Iterator[Finding]:
    """No fixed port without --exclusive.

    Another job on the node may have it.
    """
    if batch.option("exclusive") is not None:
        return
    values = [(value, batch.shell.lines["MASTER_PORT"]) for value in batch.shell.values.get("MASTER_PORT", [])]
    for launch in launches:
        endpoint = launch.options.get("rdzv_endpoint", "")
        values += [
            (value, launch.line) for value in (launch.options.get("master_port", ""), endpoint.rpartition(":")[2])
        ]
    for value, line in dict.fromkeys(values):
        if value.isascii() and value.isdigit():
            message = f"port {value[:8]} is fixed, and without --exclusive another job on the node may have it"
            yield warning(batch.at(line), message)
            return


@check("batch-nodelist", Area.SCRIPT, AUTO_RESUME_GUIDE)
def _nodelist(batch: Batch) -> Iterator[Finding]:
    """SLURM_JOB_NODELIST is not used with auto-resume.

    It is stale after a resume.
    """
    if not has_auto_resume(batch):
        return
    texts = [(command.line, word) for command in batch.shell.commands for word in command.words]
    texts += [(batch.shell.lines[name], value) for name, values in batch.shell.values.items() for value in values]
    for line, text in texts:
        if re.search(r"SLURM_(?:JOB_)?NODELIST", text.replace(LATER, "$")):
            yield warning(
                batch.at(line),
                "SLURM_JOB_NODELIST is that of the start: after an auto-resume it is stale; ask `scontrol show "
                "job $SLURM_JOB_ID`",
            )
            return
