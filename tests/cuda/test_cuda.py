"""The training side on a real CUDA device: what it reads there, what it never waits for, and what it must not break.

`make test-cuda` runs these, with a Python that holds PyTorch for CUDA and pytest.
"""

from __future__ import annotations

import math
import os
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from rekindle.integrations.local import LocalWatch
from rekindle.integrations.snapshots import load_file, save_file
from rekindle.monitor.base.values import Captured, capture, collect, is_ready, read
from rekindle.monitor.live import LiveMonitor
from tests.monitor.boxes import PATIENCE_S, ObservedBox
from tests.monitor.one_rank import Heard, started

LONG = 2_000_000_000  # cycles of the device's clock: about a second
DEVICE = torch.device("cuda")


@pytest.fixture
def box(tmp_path: Path) -> ObservedBox:
    return ObservedBox(tmp_path / "mailbox")


@pytest.fixture
def monitor(box: ObservedBox) -> Iterator[LiveMonitor]:
    with started(box) as made:
        yield made


def busy(cycles: int = LONG) -> torch.cuda.Event:
    """Work for the device, queued on the current stream. The event tells whether it is done."""
    torch.cuda._sleep(cycles)  # type: ignore[no-untyped-call]
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record()  # type: ignore[no-untyped-call]
    return event


def until(is_so: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < end, f"still not so: {what}"
        threading.Event().wait(0.002)


def number(value: Captured) -> float | None:
    until(lambda: not collect() and is_ready(value), "the value is there")
    return read(value)


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 128), nn.Tanh(), nn.Dropout(0.1), nn.Linear(128, 1)).to(DEVICE)


# ---- values --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.bool]
)
@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
def test_one_element_of_any_real_dtype_is_read(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    assert number(capture(torch.ones(shape, dtype=dtype, device=DEVICE))) == 1.0


@pytest.mark.parametrize("bits", [0x7FC00000, 0xFFC00000, 0x7F800001, 0x7FFFFFFF, 0xFFFFFFFF], ids=hex)
def test_a_nan_of_any_bits_is_read_as_nan(bits: int) -> None:
    value = torch.tensor(bits - (1 << 32) if bits >> 31 else bits, dtype=torch.int32, device=DEVICE).view(torch.float32)
    read_back = number(capture(value))
    assert read_back is not None
    assert math.isnan(read_back)
    wide = torch.tensor(-1, dtype=torch.int64, device=DEVICE).view(torch.float64)
    assert math.isnan(number(capture(wide)) or 0.0)


def test_infinities_zeros_and_the_smallest_numbers_are_what_they_are() -> None:
    for value in (math.inf, -math.inf, 0.0, -0.0, 5e-324, -5e-324, 1.7e308):
        found = number(capture(torch.tensor(value, dtype=torch.float64, device=DEVICE)))
        assert found == value
        assert found is not None
        assert math.copysign(1.0, found) == math.copysign(1.0, value)


def test_step_returns_while_the_device_still_computes_the_loss(monitor: LiveMonitor) -> None:
    loss = torch.ones((), device=DEVICE)
    monitor.step(1, loss=loss * 3)  # the kernel is loaded, and pinned memory is there from now on
    is_done = busy()
    loss = loss * 3
    monitor.step(2, loss=loss, grad_norm=loss, tokens=loss, accuracy=loss)
    assert not is_done.query()  # type: ignore[no-untyped-call]
    until(lambda: monitor.alive() or monitor._state.loss_at(2) == 3.0, "the loss of step 2, read by any call")
    assert is_done.query()  # type: ignore[no-untyped-call]


def test_the_device_is_waited_for_by_nothing_until_a_value_is_used(monitor: LiveMonitor) -> None:
    """As torch sees it: in this mode, each wait for the device that it knows of raises."""
    model, watch = net(), LocalWatch(monitor)
    watch.gradients(model)
    data = torch.randn(32, 64, device=DEVICE)
    monitor.step(0, loss=torch.zeros((), device=DEVICE))
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for step in range(1, 100):
            loss = model(data).square().mean()
            loss.backward()
            monitor.step(step, loss=loss, grad_norm=loss * 2, work_s=watch.stepped(step), accuracy=loss)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    watch.close()


def test_a_value_that_is_overwritten_or_freed_at_once_is_known_as_it_was(monitor: LiveMonitor) -> None:
    total = torch.zeros((), device=DEVICE)
    for step in range(1, 2001):
        if step % 100 == 0:
            busy(20_000_000)
        total += math.nan if step % 500 == 0 else step
        monitor.step(step, loss=total, grad_norm=total.clone(), tokens=total)
        total.zero_()
    assert monitor._losses.settle(PATIENCE_S)
    losses = [monitor._state.loss_at(step) for step in range(1, 2001)]
    assert [step for step, loss in enumerate(losses, start=1) if loss != step] == [500, 1000, 1500, 2000]


def test_a_loss_of_another_stream_is_known_as_that_stream_computed_it(monitor: LiveMonitor) -> None:
    monitor.step(0, loss=torch.zeros((), device=DEVICE))
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    with torch.cuda.stream(side):
        torch.cuda._sleep(LONG // 4)  # type: ignore[no-untyped-call]
        loss = torch.ones((), device=DEVICE) * 7
        monitor.step(1, loss=loss)
    until(lambda: monitor.alive() or monitor._state.loss_at(1) == 7.0, "the loss of the other stream")


def test_no_number_is_read_in_parts_or_before_it_is_there() -> None:
    """Values whose bytes all differ from one to the next, read by another thread as soon as they are there."""
    draw = random.Random(7)
    wanted = [draw.uniform(-1e300, 1e300) for _ in range(60_000)]
    values = torch.tensor(wanted, dtype=torch.float64, device=DEVICE)
    waiting: deque[tuple[int, Captured]] = deque()
    wrong: list[tuple[int, float | None]] = []
    is_over = threading.Event()

    def reader() -> None:
        while waiting or not is_over.is_set():
            if waiting and is_ready(waiting[0][1]):
                index, value = waiting.popleft()
                if (found := read(value)) != wanted[index]:
                    wrong.append((index, found))
            else:
                time.sleep(0)

    thread = threading.Thread(target=reader)
    thread.start()
    for index in range(len(wanted)):
        waiting.append((index, capture(values[index])))
        collect()
    until(lambda: not collect(), "all are there")
    is_over.set()
    thread.join(PATIENCE_S)
    assert wrong == []


def test_while_the_device_stands_still_values_wait_and_another_thread_asks_it_nothing() -> None:
    torch.cuda.synchronize()
    is_done = busy(2 * LONG)
    # Not more than the device's queue of launches holds.
    taken = [capture(torch.full((), float(index), device=DEVICE)) for index in range(100)]
    assert collect()
    assert not is_done.query()  # type: ignore[no-untyped-call]
    assert not any(is_ready(one) for one in taken)
    torch.cuda.synchronize()
    other = threading.Thread(target=collect)
    other.start()
    other.join()
    assert not any(is_ready(one) for one in taken), "they are the thread's that began them"
    assert [number(one) for one in taken] == [float(index) for index in range(100)]


def test_heartbeats_go_on_while_training_waits_for_the_device(monitor: LiveMonitor, box: ObservedBox) -> None:
    monitor.step(1, loss=torch.ones((), device=DEVICE))
    box.wait_heartbeat("run-1", lambda beat: beat.step == 1)
    before = len(box.written)
    busy(2 * LONG)
    torch.cuda.synchronize()
    assert len(box.written) - before >= 5, box.written[before:]


# ---- CUDA graphs ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["global", "thread_local", "relaxed"])
def test_a_graph_can_be_captured_while_the_monitor_reads_losses(monitor: LiveMonitor, mode: str) -> None:
    """In the default mode an unsafe call of any thread (a query of an event is one) ends the capture."""
    weight = torch.ones(256, 256, device=DEVICE)
    data = torch.randn(256, 256, device=DEVICE)
    for step in range(1, 6):
        for more in range(200):
            monitor.step(1000 * step + more, loss=(data @ weight).mean())
        torch.cuda._sleep(LONG // 10)  # type: ignore[no-untyped-call]
        monitor.step(1000 * step + 999, loss=(data @ weight).mean())  # there only after the capture has begun
        graph = torch.cuda.CUDAGraph()
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        with torch.cuda.graph(graph, stream=stream, capture_error_mode=mode):
            out = data @ weight
            threading.Event().wait(0.3)  # several turns of the thread that reads losses
            loss = out.mean()
        graph.replay()
        torch.cuda.synchronize()
        assert torch.isclose(loss, (data @ weight).mean())


def test_a_step_inside_a_capture_leaves_the_capture_whole_and_its_loss_unknown(monitor: LiveMonitor) -> None:
    data = torch.randn(64, 64, device=DEVICE)
    monitor.step(1, loss=data.mean())
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = (data @ data).mean()
        monitor.step(2, loss=loss)
    for step in range(3, 6):
        graph.replay()
        monitor.step(step, loss=loss)
    assert monitor._losses.settle(PATIENCE_S)
    assert monitor._state.loss_at(2) is None
    assert monitor._state.loss_at(5) == pytest.approx(float(loss))


def captured_step(watch: LocalWatch, model: nn.Module, data: torch.Tensor) -> tuple[torch.cuda.CUDAGraph, torch.Tensor]:
    """A whole step in one graph, as PyTorch's documentation captures it, with the watch's hooks in place."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())  # type: ignore[no-untyped-call]
    with torch.cuda.stream(side):
        for step in range(3):
            optimizer.zero_grad(set_to_none=True)
            model(data).square().mean().backward()
            optimizer.step()
            watch.stepped(step)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    optimizer.zero_grad(set_to_none=True)
    with torch.cuda.graph(graph):
        loss = model(data).square().mean()
        loss.backward()
        optimizer.step()
        watch.stepped(3)
    return graph, loss


def test_a_whole_captured_step_is_replayed_and_nothing_of_it_is_called_bad() -> None:
    heard = Heard()
    watch = LocalWatch(heard)
    model, data = net(), torch.randn(32, 64, device=DEVICE)
    watch.gradients(model)
    # What a capture leaves unwritten is whatever lay in memory before: not finite here.
    for _ in range(4):
        del_me = [torch.full((256,), math.nan, device=DEVICE, dtype=torch.float64) for _ in range(2000)]
        del del_me
    graph, loss = captured_step(watch, model, data)
    first = 4
    for step in range(first, first + 50):
        graph.replay()
        watch.stepped(step)
    torch.cuda.synchronize()
    assert math.isfinite(float(loss))
    watch.close()
    assert heard.bad == []


def test_graphed_callables_work_with_the_hooks_of_a_watch() -> None:
    heard = Heard()
    watch = LocalWatch(heard)
    model, data = net(), torch.randn(32, 64, device=DEVICE)
    watch.gradients(model)
    graphed = torch.cuda.make_graphed_callables(model, (data,))
    for step in range(20):
        loss = graphed(data).square().mean()
        loss.backward()
        watch.stepped(step)
    watch.close()
    assert heard.bad == []


# ---- a rank's own --------------------------------------------------------------------------------------------------


def test_a_nan_gradient_is_named_at_its_step_and_work_is_what_the_device_took() -> None:
    heard = Heard()
    watch = LocalWatch(heard)
    model, data = net(), torch.randn(32, 64, device=DEVICE)
    watch.gradients(model)
    paces = []
    for step in range(1, 41):
        model.zero_grad()
        torch.cuda._sleep(LONG // 40)  # type: ignore[no-untyped-call]
        loss = model(data).square().mean()
        (loss * (math.nan if step == 30 else 1.0)).backward()
        paces.append(watch.stepped(step))
        torch.cuda._sleep(LONG // 80)  # type: ignore[no-untyped-call]  # after the gradients: not the rank's own work
        torch.cuda.synchronize()
    watch.close()
    assert {step for step, _ in heard.bad} == {30}
    known = sorted(pace for pace in paces if pace is not None)
    assert len(known) > 20
    begun, ended = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    begun.record()  # type: ignore[no-untyped-call]
    torch.cuda._sleep(LONG // 40)  # type: ignore[no-untyped-call]
    ended.record()  # type: ignore[no-untyped-call]
    torch.cuda.synchronize()
    alone = begun.elapsed_time(ended) / 1000.0  # type: ignore[no-untyped-call]
    assert known[len(known) // 2] >= 0.9 * alone


def test_under_ddp_and_nccl_the_gradients_are_the_same_with_and_without_a_watch(tmp_path: Path) -> None:
    store = dist.FileStore(str(tmp_path / "store"), 1)
    dist.init_process_group("nccl", store=store, rank=0, world_size=1)
    try:
        data = torch.randn(32, 64, device=DEVICE)
        found = []
        for is_watched in (False, True):
            model = DistributedDataParallel(net())
            watch = LocalWatch(Heard())
            if is_watched:
                watch.gradients(model)
            torch.manual_seed(3)
            for step in range(5):
                model.zero_grad()
                model(data).square().mean().backward()
                watch.stepped(step)
            watch.close()
            found.append([parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None])
        assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize("is_compiled", [False, True])
def test_a_run_that_is_resumed_from_a_file_goes_on_bit_for_bit(tmp_path: Path, *, is_compiled: bool) -> None:
    data = torch.randn(32, 64, device=DEVICE)

    def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> list[float]:
        losses = []
        run = torch.compile(model) if is_compiled else model
        for _ in range(steps):
            optimizer.zero_grad()
            loss = run(data).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(float(loss))
        return losses

    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    torch.cuda.manual_seed(11)
    train(model, optimizer, 10)
    path = save_file(tmp_path / "step.pt", step=10, model=model, optimizer=optimizer)
    wanted = train(model, optimizer, 10)
    other = net()
    other_optimizer = torch.optim.AdamW(other.parameters(), lr=1e-3)
    torch.cuda.manual_seed(99)
    assert load_file(path, model=other, optimizer=other_optimizer)["step"] == 10
    assert train(other, other_optimizer, 10) == wanted


def test_a_monitor_of_a_run_that_uses_no_device_makes_no_context_on_one(tmp_path: Path) -> None:
    """A context takes some 500 MB of the device's memory, which belongs to the run."""
    import subprocess
    import sys

    script = (
        "import torch, rekindle.monitor as r, sys\n"
        "from rekindle.integrations.local import LocalWatch\n"
        "from rekindle.integrations.rng import rng_state\n"
        "m = r.start(mailbox=sys.argv[1])\n"
        "w = LocalWatch(m); net = torch.nn.Linear(2, 1); w.gradients(net)\n"
        "for s in range(5):\n"
        "    l = net(torch.ones(1, 2)).sum(); l.backward(); m.step(s, loss=l, work_s=w.stepped(s))\n"
        "rng_state(); w.close(); m.finish()\n"
        "assert not torch.cuda.is_initialized()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)],
        env={**os.environ, "REKINDLE_JOB_ID": "job", "TRAINING_JOB_NAME": "run-1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr
