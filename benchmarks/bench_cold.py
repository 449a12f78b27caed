"""Cold start from the shipped bundle: each kind of function's init, clients included, beside a plain handler's.

The bundle is built as `make package` builds it, unpacked, made read-only like Lambda's folder, and imported by the
functions' own version of Python with nothing else on its path. The plain handler imports the same boto3 from the same
bundle and makes the same clients. Beside a durable function stands a plain durable handler, which loads AWS's durable
SDK too: without it there is no durable function, so what it takes is not ours to save.

Seconds are CPU seconds; on Lambda a function has a share of a core that goes by its memory. Source: Lambda guide,
"Configure Lambda function memory" (1,769 MB is one core). Each process ends at once, as Lambda's does not end at all:
taking an interpreter down costs a fifth of what is measured, ours and plain alike.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from infra.functions import FUNCTIONS as DECLARED
from infra.functions import RUNTIME, Trigger
from infra.package import BUNDLE, PackagingError, build, find_compiler

RUNS = 15
GOAL = 1.6
CORE_MB = 1769
CONFIG = Path(__file__).parent.parent / ".chalice" / "config.json"
FUNCTIONS = {
    "event function": "training_job_event",
    "recover": "recover",
    "sweep": "sweep",
    "API, Slack": "app",
    "fan-out": "notice_event",
    "delivery": "deliver",
}
DURABLE = {declared.name for declared in DECLARED if declared.trigger is Trigger.DURABLE}
NAMES = ("TABLE", "BUS", "BUCKET", "QUARANTINE_URL", "RECOVER_FUNCTION")
INIT = """
import app
"""
PLAIN = """
import boto3
from botocore.config import Config
session = boto3.session.Session(region_name="us-west-2")
for service in {clients!r}:
    session.client(service, config=Config(connect_timeout=3, read_timeout=20))
"""
DURABLE_SDK = "import aws_durable_execution_sdk_python\n"
MADE = """
from chalicelib import bootstrap
print(*sorted(bootstrap.service().clients.made))
"""
END = """
sys.stdout.flush()
import os
os._exit(0)
"""


def main() -> None:
    """Print one line per kind of function."""
    python = find_compiler(os.environ)
    if python is None:
        print(f"not measured: {RUNTIME}, which the functions run under, is not on this machine's PATH")
        return
    with tempfile.TemporaryDirectory(prefix="rekindle-cold-") as scratch:
        try:
            build(Path(scratch, "out"))
        except PackagingError as err:
            print(f"not measured: {err}".partition("\n")[0], file=sys.stderr)
            return
        task = Path(scratch, "task")
        with zipfile.ZipFile(Path(scratch, "out", BUNDLE)) as archive:
            archive.extractall(task)
        _measure(python, task)


def _measure(python: str, task: Path) -> None:
    clients = {name: _clients(python, task, name) for name in FUNCTIONS.values()}
    scripts = {"bare": ""}
    for name in FUNCTIONS.values():
        scripts[name] = INIT
        scripts[f"plain {name}"] = PLAIN.format(clients=clients[name]) + (DURABLE_SDK if name in DURABLE else "")
    samples: dict[str, list[float]] = {name: [] for name in scripts}
    for _ in range(RUNS):
        for name, script in scripts.items():
            samples[name].append(_seconds(python, task, script, name))
    memory = json.loads(CONFIG.read_text(encoding="utf-8"))["lambda_functions"]
    middle = {name: min(values) for name, values in samples.items()}  # the others were disturbed
    print(f"{RUNTIME}, the bundle as shipped, CPU ms at init, least of {RUNS}, a bare interpreter taken off")
    print(f"{'':18} {'ours':>6} {'plain':>6} {'ratio':>6} {'MB':>6} {'s on it':>8}   clients")
    for label, name in FUNCTIONS.items():
        ours, plain = middle[name] - middle["bare"], middle[f"plain {name}"] - middle["bare"]
        memory_mb = memory[name if name != "app" else "api_handler"]["lambda_memory_size"]
        on_lambda = middle[name] * max(1.0, CORE_MB / memory_mb)
        figures = f"{ours * 1000:6.0f} {plain * 1000:6.0f} {ours / plain:6.2f} {memory_mb:6d} {on_lambda:8.2f}"
        print(f"{label:18} {figures}   {' '.join(clients[name])}")
    print(f"goal of the ratio: {GOAL} or less; Slack waits three seconds for the API's answer")


def _seconds(python: str, task: Path, script: str, name: str) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    _run(python, task, script, name)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime + after.ru_stime) - (before.ru_utime + before.ru_stime)


def _clients(python: str, task: Path, name: str) -> tuple[str, ...]:
    """The clients that the function's parts ask for; the SDK's own of `recover` is Lambda's as well."""
    return tuple(_run(python, task, INIT + MADE, name).split())


def _run(python: str, task: Path, script: str, name: str) -> str:
    """-B: nothing is kept from one start to the next, as on Lambda."""
    environ = {f"REKINDLE_{variable}": "x" for variable in NAMES}
    environ |= {"AWS_LAMBDA_FUNCTION_NAME": "x", "_HANDLER": f"app.{name}"}
    environ |= {"AWS_REGION": "us-west-2", "AWS_DEFAULT_REGION": "us-west-2", "PATH": os.environ.get("PATH", "")}
    environ |= {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x"}
    done = subprocess.run(
        [python, "-s", "-S", "-B", "-P", "-c", f"import sys; sys.path.insert(0, {str(task)!r})\n{script}{END}"],
        env=environ,
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise SystemExit(f"the bundle does not start:\n{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    main()
