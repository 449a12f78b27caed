"""How a run ends whose save was given up."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.process

SCRIPT = """
import sys
import torch.distributed as dist
from rekindle.integrations import torch_ranks

class Quiet:
    should_stop = True
    def finish(self, why):
        print("sealed", why, flush=True)

dist.init_process_group("gloo", init_method="tcp://127.0.0.1:0", rank=0, world_size=1)
if "given-up" in sys.argv:
    torch_ranks.end_collectives()
try:
    if "error" in sys.argv:
        raise KeyError("the script's own")
finally:
    torch_ranks.finish(Quiet())
"""


def ended(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", SCRIPT, *words], capture_output=True, text=True, timeout=120, check=False
    )


def test_a_run_whose_save_was_given_up_ends_with_an_error_after_all_is_sealed() -> None:
    run = ended("given-up")
    assert (run.returncode, run.stdout) == (1, "sealed stopped\n"), run.stderr
    assert "SaveGivenUp" in run.stderr


def test_a_run_that_only_stopped_ends_with_0() -> None:
    run = ended()
    assert (run.returncode, run.stdout) == (0, "sealed stopped\n"), run.stderr


def test_the_script_s_own_error_is_not_replaced() -> None:
    run = ended("given-up", "error")
    assert (run.returncode, run.stdout) == (1, "sealed stopped\n"), run.stderr
    assert "KeyError" in run.stderr
    assert "SaveGivenUp" not in run.stderr
