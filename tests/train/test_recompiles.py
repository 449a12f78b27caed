"""A run that compiles its code anew, for minutes where shapes change, is told apart from one that stands still."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.monitor.boxes import PATIENCE_S, QUICK, ObservedBox, start_monitor

LIMIT_S, SILENT_S = 2.0, 5.0


def slow_to_compile(graph: torch.fx.GraphModule, _: list[torch.Tensor]) -> Callable[..., Any]:
    """A backend of torch.compile that takes as long as a large model does, from the second graph on."""
    if made:
        threading.Event().wait(SILENT_S)
    made.append(graph)
    return graph.forward


made: list[torch.fx.GraphModule] = []


@pytest.mark.parametrize("compiles", [True, False])
def test_no_stall_is_reported_while_a_new_shape_is_compiled(compiles: bool, tmp_path: Path) -> None:
    box = ObservedBox(tmp_path)
    torch.compiler.reset()
    made.clear()
    model = torch.compile(torch.nn.Linear(4, 4), backend=slow_to_compile, dynamic=False)
    monitor = start_monitor(
        mailbox=box,
        config=replace(QUICK, stall_floor_s=LIMIT_S, stall_startup_s=60.0),
        env={"REKINDLE_JOB_ID": "job", "TRAINING_JOB_NAME": "run-1"},
    )
    for step in range(1, 10):
        monitor.step(step, loss=float(model(torch.ones(3, 4)).sum().detach()))
    if compiles:
        monitor.step(10, loss=float(model(torch.ones(5, 4)).sum().detach()))
    else:
        threading.Event().wait(SILENT_S)
    monitor.finish(timeout_s=PATIENCE_S)
    assert len(made) == (2 if compiles else 1)
    assert any("stall" in key for key in box.written) is not compiles
