"""What the monitor and a LocalWatch cost a training loop on a CUDA device.

    python3 -m benchmarks.bench_cuda [--blocks 12] [--json]      with a Python that holds PyTorch for CUDA

Two models: a small one, whose steps are bound by launches from the processor, and one of 124 million parameters in
bfloat16. Blocks of steps with and without the monitor take turns in one process, so that both meet the same clocks and
neighbours. Printed for each: the median of a step in both, their difference, and the wall-clock time of `Monitor.step`
with a loss and a gradient norm that the device still computes.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

from rekindle.monitor.starting import start_in

STEPS_PER_BLOCK = 40


def _models(torch: Any) -> dict[str, tuple[Any, Any]]:
    from torch import nn

    torch.manual_seed(0)
    small = nn.Sequential(*[nn.Linear(256, 256) for _ in range(24)], nn.Linear(256, 1)).cuda()
    layer = nn.TransformerEncoderLayer(768, 12, 3072, dropout=0.0, batch_first=True, norm_first=True)
    large = nn.Sequential(nn.TransformerEncoder(layer, 12), nn.Linear(768, 50257)).cuda().to(torch.bfloat16)
    return {
        "small": (small, torch.randn(64, 256, device="cuda")),
        "124M": (large, torch.randn(8, 1024, 768, device="cuda", dtype=torch.bfloat16)),
    }


def _blocks(torch: Any, model: Any, data: Any, blocks: int) -> dict[str, float]:
    from rekindle.integrations.local import LocalWatch

    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    steps: dict[bool, list[float]] = {False: [], True: []}
    calls: list[float] = []
    number = 0
    with tempfile.TemporaryDirectory() as mailbox:
        env = {"REKINDLE_JOB_ID": "bench", "TRAINING_JOB_NAME": "bench-1"}
        monitor = start_in(env, mailbox=mailbox)
        watch = LocalWatch(monitor)

        def train(note: Callable[[Any], None]) -> float:
            torch.cuda.synchronize()
            began = time.perf_counter()
            for _ in range(STEPS_PER_BLOCK):
                optimizer.zero_grad(set_to_none=True)
                loss = model(data).float().square().mean()
                loss.backward()
                optimizer.step()
                note(loss)
            torch.cuda.synchronize()
            return (time.perf_counter() - began) / STEPS_PER_BLOCK

        def watched(loss: Any) -> None:
            nonlocal number
            number += 1
            began = time.perf_counter()
            monitor.step(number, loss=loss, grad_norm=loss, work_s=watch.stepped(number))
            calls.append(time.perf_counter() - began)

        train(lambda _: None)
        for block in range(2 * blocks):
            is_watched = block % 2 == 1
            if is_watched:
                watch.gradients(model)
                steps[True].append(train(watched))
            else:
                watch.close()
                steps[False].append(train(lambda _: None))
        monitor.finish()
    calls.sort()
    plain, with_it = statistics.median(steps[False]), statistics.median(steps[True])
    return {
        "step_ms": plain * 1e3,
        "watched_ms": with_it * 1e3,
        "added_us": (with_it - plain) * 1e6,
        "added_percent": (with_it / plain - 1) * 100,
        "call_us": calls[len(calls) // 2] * 1e6,
        "call_p99_us": calls[len(calls) * 99 // 100] * 1e6,
    }


def main(argv: list[str] | None = None) -> int:
    """Returns the exit status: 2 where there is no CUDA device."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench_cuda", description=__doc__)
    parser.add_argument("--blocks", type=int, default=12, help="of each kind, 40 steps long")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(argv)
    try:
        import torch
    except ImportError:
        torch = None
    if torch is None or not torch.cuda.is_available():
        print("bench_cuda: this Python has no PyTorch that sees a CUDA device", file=sys.stderr)
        return 2
    found = {name: _blocks(torch, model, data, options.blocks) for name, (model, data) in _models(torch).items()}
    if options.json:
        print(json.dumps(found))
        return 0
    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}")
    print(f"{'model':8}{'step ms':>10}{'watched':>10}{'added us':>10}{'added %':>10}{'call us':>10}{'p99':>10}")
    for name, row in found.items():
        figures = (row[key] for key in ("step_ms", "watched_ms", "added_us", "added_percent", "call_us", "call_p99_us"))
        print(f"{name:8}" + "".join(f"{figure:10.2f}" for figure in figures))
    return 0


if __name__ == "__main__":
    sys.exit(main())
