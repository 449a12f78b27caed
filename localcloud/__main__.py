"""`python -m localcloud serve --store DIR`: the embedded cloud with the app deployed on it, until it is stopped.

Prints one line of JSON when it is ready: `{"aws": url, "api": url, "environ": {...}}`. Stops at SIGTERM, at SIGINT, or,
with `--attached`, when standard input is closed, so that it cannot outlive the process that started it.

`python -m localcloud shell --store DIR` starts a shell whose AWS endpoint and Rekindle service are this cloud; the
cloud stops when the shell exits.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path

from localcloud.aws.clock import RealClock
from localcloud.cloud import Cloud


def main(argv: list[str] | None = None) -> int:
    """Serve; the exit status is 0 after an orderly end."""
    parser = argparse.ArgumentParser(
        prog="python -m localcloud", description=__doc__.splitlines()[0] if __doc__ else ""
    )
    commands = parser.add_subparsers(dest="command", required=True)
    serve = commands.add_parser("serve", help="bring the embedded cloud up on loopback")
    serve.add_argument("--store", type=Path, required=True, help="folder that holds, or will hold, the cloud's facts")
    serve.add_argument("--port", type=int, default=0, help="port of the REST API; 0 takes a free one")
    serve.add_argument("--aws-port", type=int, default=0, help="port of the AWS endpoint; 0 takes a free one")
    serve.add_argument("--still", action="store_true", help="only look: no sweep, nothing is taken up again")
    serve.add_argument("--attached", action="store_true", help="end when standard input is closed")
    serve.add_argument("--processes", action="store_true", help="training jobs are real processes of this machine")
    shell = commands.add_parser("shell", help="a shell whose AWS is this cloud; training jobs are real processes")
    shell.add_argument("--store", type=Path, required=True, help="as for serve")
    options = parser.parse_args(argv)
    if options.command == "shell":
        return _shell(options.store)
    over = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: over.set())
    if options.attached:
        threading.Thread(target=_wait_for_end_of_input, args=(over,), name="attached", daemon=True).start()
    with _running_cloud(
        options.store, options.port, options.aws_port, is_still=options.still, has_processes=options.processes
    ) as (cloud, url):
        ready = {"aws": cloud.environ()["AWS_ENDPOINT_URL"], "api": url, "environ": cloud.environ()}
        sys.stdout.write(json.dumps(ready) + "\n")
        sys.stdout.flush()
        over.wait()
    return 0


@contextmanager
def _running_cloud(
    store: Path, port: int = 0, aws_port: int = 0, *, is_still: bool = False, has_processes: bool = False
) -> Iterator[tuple[Cloud, str]]:
    """The cloud with the app on it, and the address of its REST API."""
    store = store.absolute()  # its processes run in folders of their own
    store.mkdir(parents=True, exist_ok=True)
    with Cloud(http=True, clock=RealClock(), store=store, port=aws_port, resumes=not is_still) as cloud:
        from app import app  # only now: importing it makes clients, which must find this cloud in the environment

        if has_processes:
            cloud.run_processes(store / "jobs")
        cloud.deploy_app(app, schedules=not is_still)
        yield cloud, cloud.serve_api(app, port=port)


def _shell(store: Path) -> int:
    """Returns the shell's own exit status. Ctrl-C is the shell's affair."""
    before = dict(os.environ)
    with _running_cloud(store, has_processes=True) as (cloud, url):
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        program = before.get("SHELL") or "/bin/sh"
        sys.stderr.write(f"localcloud: {program} on the embedded cloud, {url}; `exit` ends both\n")
        log = (store / "service.log").open("a", encoding="utf-8")
        with log, redirect_stdout(log):  # the service's own lines would be written into the shell's
            return subprocess.run(
                [program],
                env={**before, **cloud.environ(), "REKINDLE_API": url},
                stdout=sys.__stdout__,
                check=False,
                preexec_fn=_hears_interrupts,
            ).returncode


def _hears_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _wait_for_end_of_input(over: threading.Event) -> None:
    sys.stdin.read()
    over.set()


if __name__ == "__main__":
    sys.exit(main())
