"""The quick starts are pasted into a shell, as their pages have them."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from localcloud.cloud import STACK
from rekindle.cli.main import build_parser, main
from rekindle.protocol.cluster.names import queue_name
from tests.docs.pages import ROOT, Page, clean_environ
from tests.fakes.slurm_commands import lay_out

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
        for drain in drains:
            drain.join()


def _page(name: str, folder: Path, environ: dict[str, str]) -> Page:
    folder.mkdir()
    return Page(ROOT / "docs" / name, folder, environ)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.name))
def test_every_command_of_a_quick_start_can_be_typed(path: Path, tmp_path: Path) -> None:
    page = Page(path, tmp_path, {})
    lines = [*page.lines("sh"), *page.lines("console")]
    typed = [found[1] for line in lines if (found := re.search(r"(?:^|until |\$\()(rekindle [^|;]+)", line))]
    assert len(typed) > 4
    for line in typed:
        assert callable(build_parser().parse_args(shlex.split(line, comments=True)[1:]).run), line


def test_a_quick_start_has_no_command_that_is_not_run_or_parsed(tmp_path: Path) -> None:
    """A fence of another language would be passed over."""
    for path in PAGES:
        titled = [fence for fence in Page(path, tmp_path, {}).fences() if "title=" in fence.info]
        others = {fence.info for fence in Page(path, tmp_path, {}).fences()} - {fence.info for fence in titled}
        assert others <= {"sh", "console"}, path.name


@pytest.mark.long
@pytest.mark.process
def test_the_quick_start_of_a_training_job_recovers_a_real_run(tmp_path: Path) -> None:
    page = _page("quickstart-training-job.md", tmp_path / "here", clean_environ())
    page.run(within=["python -m localcloud shell --store build/try"])
    assert "recovered" in page.printed["rekindle show inc-quickstart --watch"]
    assert "recovered 1" in page.printed["rekindle ledger --job quickstart"]
    (log,) = (page.folder / "build" / "try" / "jobs").glob("quickstart-r2/*.log")
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
            "REKINDLE_MAILBOX": str(tmp_path / "run"),  # in place of the page's /fsx
        }
        with head_node(tmp_path / "agent", environ):
            (tmp_path / "run").mkdir()
            page = _page("quickstart-slurm.md", tmp_path / "here", environ)
            page.run()
    assert "idle" in page.printed["until rekindle clusters lab | grep idle; do sleep 5; done"]
    assert "slurm.lab.100" in page.printed["until rekindle jobs $JOB; do sleep 5; done"]
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
            yield
        finally:
            agent.terminate()
            agent.wait(60)


def _scripts() -> Iterator[tuple[str, str]]:
    for path in PAGES:
        for name, text in Page(path, path, {}).files().items():
            if name.endswith(".sbatch"):
                yield f"{path.name}: {name}", text
    for path in (ROOT / "examples").glob("*/*.sbatch"):
        yield str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")


@pytest.mark.parametrize(("name", "text"), sorted(_scripts()))
def test_the_scripts_of_quick_starts_and_examples_are_clean_under_the_doctor(
    name: str, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "job.sbatch").write_text(text)
    assert main(["doctor", "cluster", "--script", str(tmp_path / "job.sbatch")]) == 0
    assert "nothing is wrong" in capsys.readouterr().out
