"""Cold start: the import of app beside the import of boto3, each in fresh interpreters, interleaved.

`import app` loads the triggers; each function's own parts are loaded at Lambda's init by `warm_up`. So the two kinds of
function are measured as well, whole, with boto3 and everything they import, but without making clients.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
from pathlib import Path

RUNS = 9
GOAL = 1.6  # Cloud Custodian's Lambda handler, the nearest peer, stands at 1.65
ROOT = Path(__file__).parent.parent
PARTS = (
    "import app, boto3\n"
    "from chalicelib import bootstrap\n"
    "env = {k: 'x' for k in ('AWS_REGION', 'REKINDLE_TABLE', 'REKINDLE_BUS', 'REKINDLE_BUCKET',"
    " 'REKINDLE_QUARANTINE_URL', 'REKINDLE_RECOVER_FUNCTION')}\n"
    "class NoClients:\n"
    "    def client(self, name, config=None): return None\n"
    "bootstrap.build(env, session=NoClients()).prepare('@NAME@')\n"
)
EVENT_PARSER = "from chalicelib.ingest import training_job\n"
STATEMENTS = {
    "bare": "pass",
    "boto3": "import boto3",
    "app": "import app",
    "event function": PARTS.replace("@NAME@", "training_job_event") + EVENT_PARSER,
    "recover": PARTS.replace("@NAME@", "recover") + "from chalicelib.recovery import entry\n",
}
# Clients are made at Lambda's init phase and counted apart: the same clients that bootstrap makes.
CLIENTS = (
    "import boto3; s = boto3.Session(region_name='us-west-2')\n"
    "for n in ('dynamodb', 'sagemaker', 's3', 'ssm', 'lambda', 'sqs', 'events'): s.client(n)"
)


def seconds(statement: str) -> float:
    """CPU seconds of one fresh interpreter: steadier than the wall on a shared machine."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", statement], check=True, cwd=ROOT, env=environment())
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime + after.ru_stime) - (before.ru_utime + before.ru_stime)


def environment() -> dict[str, str]:
    """Compiled modules are kept, for boto3 and for us alike; make switches that off for everything else."""
    return {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}


def main() -> None:
    """Print medians minus a bare interpreter, and the ratios."""
    statements = {**STATEMENTS, "clients": CLIENTS}
    for statement in statements.values():
        seconds(statement)  # warm the file cache, and compile
    samples: dict[str, list[float]] = {name: [] for name in statements}
    for _ in range(RUNS):
        for name, statement in statements.items():
            samples[name].append(seconds(statement))
    middle = {name: statistics.median(values) for name, values in samples.items()}
    boto3 = middle["boto3"] - middle["bare"]
    print(f"CPU ms, median of {RUNS}, a bare interpreter taken off      ratio to import boto3")
    print(f"import boto3                     {boto3 * 1000:7.0f}")
    for name in ("app", "event function", "recover"):
        cost = middle[name] - middle["bare"]
        goal = f"    (goal {GOAL} or less)" if name == "app" else "    (with boto3, without clients)"
        print(f"{'import app' if name == 'app' else name:32} {cost * 1000:7.0f}    {cost / boto3:7.2f}{goal}")
    print(f"seven clients (apart, at init)   {(middle['clients'] - middle['boto3']) * 1000:7.0f}")


if __name__ == "__main__":
    main()
