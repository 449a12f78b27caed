"""The command line of the demo.

Exit status: 0 when every recovery succeeded and every loss is what it would have been, 1 when not, 130 after Ctrl-C.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import logging
import shutil
import signal
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TextIO

from localcloud.demo.director import Director
from localcloud.demo.report import Result, as_json, write
from localcloud.demo.stage import (
    EXAMPLE,
    MONITOR,
    PATIENT_MONITOR,
    WORKERS,
    raised,
    write_dataset,
)
from localcloud.demo.story import Fault
from localcloud.demo.undisturbed import Undisturbed
from localcloud.demo.view import LineView, results
from rekindle.client.api import Client
from rekindle.client.table import Style
from rekindle.console.server import running

MARK = ".rekindle-demo"  # in every folder that a demo has made, so that no other folder is ever cleared
LARGE_PARTS = ("data", "jobs", "trace")  # what nothing needs afterwards
# The folder itself is the cloud's store, where `rekindle` looks when no other service is named.
PARTS = (*LARGE_PARTS, "report.json", "service.log")


def play(options: argparse.Namespace) -> int:
    """Run the demo with the options of `localcloud.demo.options`; returns the exit status."""
    faults = tuple(Fault) if options.fault == "all" else (Fault(options.fault),)
    out = Path(options.out).resolve()
    with contextlib.ExitStack() as held:
        try:
            problem = _clear(out, held)
        except OSError as err:
            problem = f"{out}: {err.strerror}: choose another --out"
        if problem:
            print(problem, file=sys.stderr)
            return 2
        return _run(out, faults, options)


def _run(out: Path, faults: tuple[Fault, ...], options: argparse.Namespace) -> int:
    # With --json, standard output is the report's alone.
    stream = sys.stderr if options.json else sys.stdout
    signal.signal(signal.SIGTERM, _terminated)
    try:
        with _service_log(out / "service.log"):
            result = _play(out, faults, seed=options.seed, stream=stream)
    except KeyboardInterrupt:
        print("interrupted: every process of the demo has been ended", file=sys.stderr)
        return 130
    write(result, out / "report.json")
    if options.json:
        json.dump(as_json(result), sys.stdout, indent=2)
        print()
    _conclude(result, out, stream)
    if result.ok and not options.keep:
        _remove(out / name for name in LARGE_PARTS)
    return 0 if result.ok else 1


def _play(out: Path, faults: tuple[Fault, ...], *, seed: int, stream: TextIO) -> Result:
    data = out / "data"
    write_dataset(data)
    monitor = MONITOR if Fault.FREEZE in faults else PATIENT_MONITOR
    reference = Undisturbed(EXAMPLE / "reference.py", data=data, seed=seed, workers=WORKERS)
    with (
        contextlib.closing(reference),
        raised(out=out, data=data, seed=seed, monitor=monitor) as stage,
        running(Client(url=stage.api_url)) as site,
    ):
        print(f"Watch it in a browser, while it lasts: {site.link}", file=stream, flush=True)
        return Director(stage, LineView(stream), reference, seed=seed).run(faults)


def _conclude(result: Result, out: Path, stream: TextIO) -> None:
    style = Style.of(stream)
    lines = ["", results(result.recoveries, style)]
    compared = result.comparison
    if compared is not None and compared.equal:
        lines.append(
            f"Same loss at the same step: {compared.steps_compared} steps of {len(result.attempts)} attempts are, bit "
            f"for bit, those of a run that was never disturbed (step {compared.last_step}: {compared.last_loss:.6f})."
        )
    elif compared is not None:
        differs = f"The loss differs from the undisturbed run's from step {compared.first_difference} on."
        lines.append(style.paint(differs, "bold", "red"))
    if result.problem:
        broke_off = f"Broke off: {result.problem}. See {out / 'service.log'} and {out / 'jobs'}."
        lines.append(style.paint(broke_off, "bold", "red"))
    took = (result.ended_at - result.started_at).total_seconds()
    lines.append(f"Took {took:.0f} s. Report: {_shown(out / 'report.json')}")
    if result.recoveries and result.recoveries[-1].incident is not None:
        incident_id = result.recoveries[-1].incident.incident_id
        lines.append("The same story, from the same store:")
        commands = ("incidents --all", f"show {incident_id}", "ledger", "console")
        lines.extend(f"  {_rekindle()} {command} --store {_shown(out)}" for command in commands)
    print(*lines, sep="\n", file=stream, flush=True)


def _rekindle() -> str:
    """How the reader calls the command line: by name where the shell finds it, else by its place."""
    beside = Path(sys.executable).with_name("rekindle")
    return "rekindle" if shutil.which("rekindle") or not beside.exists() else _shown(beside)


def _shown(path: Path) -> str:
    """Relative to where the reader stands, where that is shorter."""
    with contextlib.suppress(ValueError):
        return str(path.relative_to(Path.cwd()))
    return str(path)


def _clear(out: Path, held: contextlib.ExitStack) -> str:
    """Have an empty place for this demo alone. Returns why not, where the folder is not ours to clear."""
    if out.exists() and not out.is_dir():
        return f"{out} is not a folder: choose another --out"
    if out.exists() and not (out / MARK).exists() and any(out.iterdir()):
        return f"{out} exists and was not made by the demo: choose another --out"
    out.mkdir(parents=True, exist_ok=True)
    mark = held.enter_context((out / MARK).open("a"))
    try:
        fcntl.flock(mark, fcntl.LOCK_EX | fcntl.LOCK_NB)  # given back when this process ends, however it ends
    except BlockingIOError:
        return f"another demo is running in {out}: wait for it, or choose another --out"
    _remove([*(out / name for name in PARTS), *out.glob("*.sqlite*")])
    return ""


def _remove(paths: Iterable[Path]) -> None:
    for path in paths:
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


@contextlib.contextmanager
def _service_log(path: Path) -> Iterator[None]:
    """The app logs to standard output, as on Lambda; here that goes to a file, and the screen is the view's."""
    with path.open("w", buffering=1) as log, contextlib.redirect_stdout(log):
        logging.basicConfig(stream=log, level=logging.INFO, force=True)
        logging.captureWarnings(capture=True)
        try:
            yield
        finally:
            logging.captureWarnings(capture=False)
            logging.basicConfig(stream=sys.stderr, force=True)


def _terminated(*_: object) -> None:
    """SIGTERM ends the demo as Ctrl-C does: through every `finally`, so that no process is left behind."""
    raise KeyboardInterrupt
