"""`python -m localcloud serve --store DIR`: the embedded cloud with the app on it, until it is told to end.

Prints one line of JSON when it is ready: `{"aws": url, "api": url, "environ": {...}}`. Ends at SIGTERM, SIGINT, or when
standard input is closed (`--attached`), so that whoever started it cannot leave it behind.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import threading
from pathlib import Path

from localcloud.clock import RealClock
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
    options = parser.parse_args(argv)
    return _serve(options.store, options.port, options.aws_port, is_still=options.still, is_attached=options.attached)


def _serve(store: Path, port: int, aws_port: int, *, is_still: bool, is_attached: bool) -> int:
    over = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: over.set())
    if is_attached:
        threading.Thread(target=_wait_for_end_of_input, args=(over,), name="attached", daemon=True).start()
    with Cloud(http=True, clock=RealClock(), store=store, port=aws_port, resumes=not is_still) as cloud:
        from app import app  # only now: importing it makes clients, which must find this cloud in the environment

        cloud.deploy_app(app, schedules=not is_still)
        url = cloud.serve_api(app, port=port)
        ready = {"aws": cloud.environ()["AWS_ENDPOINT_URL"], "api": url, "environ": cloud.environ()}
        sys.stdout.write(json.dumps(ready) + "\n")
        sys.stdout.flush()
        over.wait()
    return 0


def _wait_for_end_of_input(over: threading.Event) -> None:
    sys.stdin.read()
    over.set()


if __name__ == "__main__":
    sys.exit(main())
