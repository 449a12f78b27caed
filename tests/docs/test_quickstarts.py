"""The quick starts are run line by line, as their pages have them."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from localcloud.cloud import STACK
from localcloud.slurm.commands import lay_out
from rekindle.cli.main import build_parser
from rekindle.protocol.cluster.names import nodes_key, queue_name
from tests.docs.pages import ROOT, Page, clean_environ

PAGES = sorted((ROOT / "docs").glob("quickstart-*.md"))
CLUSTER = "lab"


@contextmanager
def served(store: Path) -> Iterator[dict[str, str]]:
    """The embedded cloud as `python -m localcloud serve` brings it up: the environment that leads to it."""
    environ = clean_environ()
    command = [sys.executable, "-m", "localcloud", "serve", "--store", str(store), "--processes", "--attached"]
    cloud = subprocess.Popen(
        command, cwd=ROOT, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    drains = [threading.Thread(target=cloud.stderr.read, daemon=True)] if cloud.stderr else []
    try:
        assert cloud.stdout is not None
        drains[0].start()
        ready = json.loads(next(line for line in cloud.stdout if line.startswith('{"aws"')))
        drains.append(threading.Thread(target=cloud.stdout.read, daemon=True))
        drains[1].start()
        yield environ | ready["environ"] | {"REKINDLE_API": ready["api"]}
    finally:
        assert cloud.stdin is not None
        cloud.stdin.close()
        cloud.wait(60)
        for one in drains:
            one.join()


def _page(name: str, folder: Path, environ: dict[str, str], **exports: str) -> Page:
    folder.mkdir()
    return Page(ROOT / "docs" / name, folder, environ, exports)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.name))
def test_every_command_of_a_quick_start_can_be_typed(path: Path, tmp_path: Path) -> None:
    page = Page(path, tmp_path, {})
    typed = [line for line in (*page.lines("sh"), *page.lines("console")) if line.startswith("rekindle ")]
    assert len(typed) > 4
    for line in typed:
        assert callable(build_parser().parse_args(shlex.split(line, comments=True)[1:]).run), line


def test_a_quick_start_has_no_command_that_is_not_run_or_parsed(tmp_path: Path) -> None:
    """A fence of another language would be passed over."""
    for path in PAGES:
        titled = [one for one in Page(path, tmp_path, {}).fences() if "title=" in one.info]
        others = {one.info for one in Page(path, tmp_path, {}).fences()} - {one.info for one in titled}
        assert others <= {"sh", "console"}, path.name


@pytest.mark.long
@pytest.mark.process
def test_the_quick_start_of_a_training_job_recovers_a_real_run(tmp_path: Path) -> None:
    with served(tmp_path / "store") as environ:
        page = _page("quickstart-training-job.md", tmp_path / "here", environ)
        page.run()
    assert "recovered" in page.printed["rekindle show inc-quickstart --watch"]
    assert "recovered 1" in page.printed["rekindle ledger --job quickstart"]
    (log,) = (tmp_path / "store" / "jobs").glob("quickstart-r2/*.log")
    assert "resumed at step 151" in log.read_text()


@pytest.mark.long
@pytest.mark.process
def test_the_quick_start_of_slurm_protects_a_job(tmp_path: Path) -> None:
    conf = lay_out(tmp_path / "slurm")
    with served(tmp_path / "store") as environ:
        environ |= {
            "PATH": f"{conf.parent / 'bin'}:{environ['PATH']}",
            "SLURM_CONF": str(conf),
            "REKINDLE_CLUSTER": CLUSTER,
        }
        with head_node(tmp_path / "agent", environ):
            (tmp_path / "run").mkdir()
            page = _page("quickstart-slurm.md", tmp_path / "here", environ, RUN=str(tmp_path / "run"))
            page.run()
    assert "node1" in page.printed["rekindle clusters lab"]
    assert "slurm.lab.100" in page.printed["rekindle jobs $JOB"]
    assert "nothing was done" in page.printed["rekindle drill node_lost --job $JOB"]


@pytest.mark.long
@pytest.mark.process
def test_a_shell_of_the_embedded_cloud_leads_to_it_and_has_its_exit_status(tmp_path: Path) -> None:
    program = tmp_path / "asks"
    command = f"{sys.executable} -m rekindle.cli.main status"
    program.write_text(f"#!/bin/sh\n{command} && exit 7\n")
    program.chmod(0o755)
    done = subprocess.run(
        [sys.executable, "-m", "localcloud", "shell", "--store", str(tmp_path / "store")],
        cwd=ROOT,
        env=clean_environ() | {"SHELL": str(program)},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 7, done.stderr
    assert "protection  on" in done.stdout


@contextmanager
def head_node(folder: Path, environ: dict[str, str]) -> Iterator[None]:
    """What step 1 leaves behind: the agent as a process beside Slurm, and its queue."""
    folder.mkdir()
    code = f"import boto3; boto3.client('sqs').create_queue(QueueName={queue_name(STACK, CLUSTER)!r})"
    subprocess.run([sys.executable, "-c", code], env=environ, check=True)
    more = {
        "REKINDLE_STATE_DIR": str(folder),
        "REKINDLE_CLUSTER_FILE": str(folder / "none"),
        "SAGEMAKER_RESOURCE_CONFIG_PATH": str(folder / "none.json"),
        "REKINDLE_POLL_S": "1",
    }
    with (folder / "agent.log").open("w") as log:
        agent = subprocess.Popen(
            [sys.executable, "-m", "rekindle.slurm_agent"], cwd=ROOT, env=environ | more, stdout=log, stderr=log
        )
        try:
            _wait_reported(environ)
            yield
        finally:
            agent.terminate()
            agent.wait(60)


def _wait_reported(environ: dict[str, str]) -> None:
    """Until the agent has told of its nodes, which the page has its reader wait a minute for."""
    code = f"""
import boto3, os
boto3.client("s3").get_waiter("object_exists").wait(
    Bucket=os.environ["REKINDLE_BUCKET"], Key={nodes_key(CLUSTER)!r}, WaiterConfig={{"Delay": 1, "MaxAttempts": 150}}
)
"""
    subprocess.run([sys.executable, "-c", code], env=environ, check=True)
