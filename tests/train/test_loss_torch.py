"""Losses and gradients of real PyTorch, in one process: what is read of them, and what looking at them costs."""

from __future__ import annotations

import math
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo
import torch.distributed as dist
from torch import nn
from torch._dynamo.testing import CompileCounter
from torch._dynamo.utils import counters
from torch._subclasses import FakeTensorMode
from torch.distributed._composable.fsdp import fully_shard
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.parallel import DistributedDataParallel

from rekindle.integrations.local import PARAMETERS, LocalWatch
from rekindle.monitor.base.values import Unreadable, capture
from rekindle.monitor.live import LiveMonitor
from tests.monitor.boxes import PATIENCE_S, ObservedBox
from tests.monitor.one_rank import Heard, started


@pytest.fixture
def box(tmp_path: Path) -> ObservedBox:
    return ObservedBox(tmp_path / "mailbox")


@pytest.fixture
def monitor(box: ObservedBox) -> Iterator[LiveMonitor]:
    with started(box) as made:
        yield made


@pytest.fixture(scope="module")
def gang(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """torch.distributed with this process as its only rank."""
    store = dist.FileStore(str(tmp_path_factory.mktemp("gang") / "store"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


# ---- values --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.bool]
)
@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
def test_one_element_of_any_real_dtype_is_read(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    assert capture(torch.ones(shape, dtype=dtype)) == 1.0


def test_a_tensor_that_requires_grad_and_a_parameter_are_read_without_a_warning(
    recwarn: pytest.WarningsRecorder,
) -> None:
    assert capture(torch.tensor(2.0, requires_grad=True) * 3) == 6.0
    assert capture(nn.Parameter(torch.tensor(2.0))) == 2.0
    assert [str(warning.message) for warning in recwarn] == []


STRANGE: dict[str, Callable[[], Any]] = {
    "vector": lambda: torch.zeros(3),
    "empty": lambda: torch.zeros(0),
    "complex": lambda: torch.tensor(1j),
    "sparse": lambda: torch.tensor([1.0]).to_sparse(),
    "meta": lambda: torch.zeros((), device="meta"),
    "nested": lambda: torch.nested.nested_tensor([torch.zeros(1)]),
}


@pytest.mark.parametrize("name", STRANGE)
def test_a_tensor_that_holds_no_single_number_is_not_known(name: str) -> None:
    assert isinstance(capture(STRANGE[name]()), Unreadable)


def test_a_tensor_without_data_is_not_known_nor_is_a_real_one_while_none_have_any() -> None:
    with FakeTensorMode():
        assert isinstance(capture(torch.zeros(())), Unreadable)
        assert isinstance(capture(torch.ones(())), Unreadable)


def test_a_batched_tensor_inside_vmap_is_not_known() -> None:
    seen: list[Any] = []

    def one(row: torch.Tensor) -> torch.Tensor:
        seen.append(capture(row.sum()))
        return row

    torch.vmap(one)(torch.ones(2, 3))
    assert all(isinstance(value, Unreadable) for value in seen)


@pytest.mark.usefixtures("gang")
def test_a_loss_spread_over_ranks_is_read_only_where_no_rank_must_be_asked() -> None:
    mesh = init_device_mesh("cpu", (1,))
    local = torch.tensor(2.5)
    assert capture(DTensor.from_local(local, mesh, [Replicate()])) == 2.5
    assert isinstance(capture(DTensor.from_local(local, mesh, [Partial()])), Unreadable)


def test_an_accumulator_that_is_zeroed_after_the_step_is_known_as_it_was_and_so_is_its_nan(
    monitor: LiveMonitor,
) -> None:
    total = torch.zeros(())
    for step in range(1, 2001):
        total += math.nan if step % 500 == 0 else step
        monitor.step(step, loss=total, grad_norm=total, tokens=total, accuracy=total)
        total.zero_()
    losses = [monitor._state.loss_at(step) for step in range(1, 2001)]
    wrong = [step for step, loss in enumerate(losses, start=1) if loss != step]
    assert wrong == [500, 1000, 1500, 2000]
    assert all(math.isnan(losses[step - 1] or 0.0) for step in wrong)


def test_a_view_of_many_losses_keeps_none_of_their_storage(monitor: LiveMonitor) -> None:
    storages = []
    for step in range(60):
        losses = torch.ones(1_000_000)
        storages.append(StorageWeakRef(losses.untyped_storage()))
        monitor.step(step, loss=losses[step], grad_norm=losses[0], tokens=losses[1], accuracy=losses[2:3])
        del losses
    assert all(storage.expired() for storage in storages)


def test_memory_stays_flat_over_many_steps(monitor: LiveMonitor) -> None:
    def train(first: int, steps: int) -> int:
        for step in range(first, first + steps):
            monitor.step(step, loss=torch.ones(1000)[3], grad_norm=torch.ones(()), tokens=torch.tensor(7))
            if step % 500 == 0:
                monitor._losses.settle(PATIENCE_S)
        monitor._losses.settle(PATIENCE_S)
        return tracemalloc.get_traced_memory()[0]

    for _ in range(1000):  # so that how many are written meanwhile, which is a matter of time, changes nothing
        monitor._accounts.heartbeat().to_json()
    tracemalloc.start()
    try:
        before = train(0, 20_000)
        after = train(20_000, 30_000)
    finally:
        tracemalloc.stop()
    assert after < before + 100_000, (before, after)


# ---- LocalWatch ----------------------------------------------------------------------------------------------------


def trained(model: nn.Module, watch: LocalWatch, steps: int, spoil: Callable[[int], float] = lambda step: 1.0) -> None:
    rows = torch.arange(4) if isinstance(model[0], nn.Embedding) else torch.ones(4, 4)  # type: ignore[index]
    for step in range(steps):
        model.zero_grad(set_to_none=True)
        out = model(rows)
        loss = (out * spoil(step)).abs().sum()
        loss.backward()
        watch.loss(loss)
        watch.stepped(step)


@pytest.mark.parametrize(
    "model",
    [
        nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)),
        nn.Sequential(nn.Embedding(10, 4, sparse=True), nn.Linear(4, 4)),
        nn.Sequential(nn.Embedding(10, 4, sparse=True)),
        nn.Sequential(nn.Linear(4, 4), nn.LazyLinear(4)),
        nn.Sequential(nn.Linear(4, 1200), nn.Linear(1200, 1200)),
    ],
    ids=["plain", "sparse and dense", "sparse only", "lazy", "large"],
)
def test_a_bad_gradient_is_seen_in_any_kind_of_model_and_the_healthy_steps_are_not(model: nn.Module) -> None:
    heard = Heard()
    watch = LocalWatch(heard)
    watch.gradients(model)
    trained(model, watch, 6, lambda step: math.nan if step == 3 else 1.0)
    watch.close()
    assert set(heard.bad) == {(3, "gradient"), (3, "loss")}


def strange_models() -> dict[str, nn.Module]:
    frozen = nn.Sequential(nn.Linear(4, 4))
    frozen.requires_grad_(requires_grad=False)
    with torch.device("meta"):
        meta = nn.Sequential(nn.Linear(4, 4))
    return {
        "empty": nn.Sequential(),
        "frozen": frozen,
        "meta": meta,
        "lazy": nn.Sequential(nn.LazyLinear(4)),
        "complex": nn.Sequential(nn.Linear(4, 4).to(torch.complex64)),
    }


@pytest.mark.parametrize("name", strange_models())
def test_a_model_that_cannot_be_looked_at_raises_nothing(name: str) -> None:
    watch = LocalWatch(Heard())
    watch.gradients(strange_models()[name])
    watch.gradients(object())
    for loss in (torch.tensor(3), torch.zeros(0), torch.tensor(1j), torch.zeros((), device="meta"), "nan", None):
        watch.loss(loss)
    assert watch.stepped(1) is None
    watch.close()


@pytest.mark.usefixtures("gang")
def test_a_sharded_model_is_left_alone_and_its_loss_is_looked_at() -> None:
    heard = Heard()
    watch = LocalWatch(heard)
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
    watch.gradients(model)
    trained(model, watch, 3, lambda step: math.nan if step == 1 else 1.0)
    watch.close()
    assert heard.bad[0] == (1, "loss")


@pytest.mark.usefixtures("gang")
def test_a_model_that_has_a_communication_hook_keeps_it_and_is_looked_at_too() -> None:
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

    heard = Heard()
    watch = LocalWatch(heard)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)))
    model.register_comm_hook(None, fp16_compress_hook)
    watch.gradients(model)
    watch.gradients(model)
    inputs = torch.ones(4, 4)
    model(inputs).sum().backward()
    watch.stepped(1)
    (model(inputs).sum() * math.inf).backward()
    watch.stepped(2)
    watch.close()
    assert heard.bad == [(2, "gradient")]


def test_a_second_call_moves_the_look_and_closing_takes_it_away() -> None:
    first, second = (nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)) for _ in range(2))

    def hooks(model: nn.Module) -> int:
        return sum(len(parameter._backward_hooks or ()) for parameter in model.parameters())

    watch = LocalWatch(Heard())
    watch.gradients(first)
    watch.gradients(first)
    assert hooks(first) == PARAMETERS
    watch.gradients(second)
    assert (hooks(first), hooks(second)) == (0, PARAMETERS)
    watch.close()
    assert hooks(second) == 0


def test_no_thread_is_made_and_what_many_small_batches_leave_is_bounded() -> None:
    before = threading.active_count()
    model = nn.Sequential(nn.Linear(4, 4))
    watch = LocalWatch(Heard())
    watch.gradients(model)
    for _ in range(2000):  # gradients that are accumulated, and never a step
        watch.loss(model(torch.ones(1, 4)).sum())
        model(torch.ones(1, 4)).sum().backward()
    assert sum(map(len, watch._found.values())) <= 2 * 256
    assert threading.active_count() == before


# ---- the gradient scaler -------------------------------------------------------------------------------------------


def test_overflows_under_a_real_scaler_are_its_own_business(monitor: LiveMonitor, box: ObservedBox) -> None:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 1)).half()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**24, growth_interval=3)
    monitor.scaler(scaler)
    watch = LocalWatch(monitor)
    watch.gradients(model)
    # Master weights would be float32; the scaler refuses to unscale float16 gradients, so its steps are made by hand.
    scaler.scale(torch.zeros((), requires_grad=True))
    overflows = 0
    for step in range(60):
        optimizer.zero_grad()
        loss = model(torch.randn(4, 8).half()).float().pow(2).mean()
        scaler.scale(loss).backward()
        is_over = not all(
            bool(parameter.grad.isfinite().all()) for parameter in model.parameters() if parameter.grad is not None
        )
        overflows += is_over
        scaler._scale.mul_(0.5 if is_over else 1.0)  # type: ignore[union-attr]
        monitor.step(step, loss=loss, work_s=watch.stepped(step))
    watch.close()
    monitor._losses.settle(PATIENCE_S)
    assert overflows > 3
    assert monitor.health()["scaled_gradients_not_finite"] > 0
    assert monitor.health()["scaler_skips"] >= overflows - 1
    assert not monitor._state.is_poisoned
    assert not any("non_finite" in key for key in box.written)


def test_a_real_scaler_that_skips_is_read_without_waiting_for_it(monitor: LiveMonitor) -> None:
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    monitor.scaler(scaler)
    for step in range(10):
        optimizer.zero_grad()
        loss = model(torch.ones(2, 4)).mean()
        scaler.scale(loss * (math.inf if step == 5 else 1.0)).backward()
        scaler.step(optimizer)
        scaler.update()
        monitor.step(step, loss=loss)
    assert monitor.health()["scaler_skips"] == 1
    assert scaler.get_scale() == 512.0


def test_a_scaler_whose_scale_has_another_name_is_named_once_and_training_goes_on(
    monitor: LiveMonitor, caplog: pytest.LogCaptureFixture
) -> None:
    scaler = torch.amp.GradScaler("cpu")
    del scaler._scale
    monitor.scaler(scaler)
    for step in range(3):
        monitor.step(step, loss=1.0)
    assert [record.message for record in caplog.records if "GradScaler" in record.message] == [
        "A GradScaler tells its scale only after a wait: skipped steps are not known"
    ]
    assert "scaler_skips" not in monitor.health()


# ---- torch.compile -------------------------------------------------------------------------------------------------


def graphs(step: Callable[[int], Any]) -> tuple[int, int, int]:
    """(graphs compiled, graph breaks, frames compiled) by twenty calls."""
    torch._dynamo.reset()
    counters.clear()
    for number in range(20):
        step(number)
    return counter.frame_count, sum(counters["graph_break"].values()), counters["frames"]["ok"]


counter = CompileCounter()


def compiled(model: Any) -> Any:
    global counter
    counter = CompileCounter()
    return torch.compile(model, backend=counter)


@pytest.mark.usefixtures("gang")
def test_a_compiled_model_has_as_many_graphs_with_the_monitor_as_without(monitor: LiveMonitor) -> None:
    def model() -> Any:
        torch.manual_seed(1)
        return DistributedDataParallel(nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)))

    def train(run: Any, number: int, watch: LocalWatch | None) -> None:
        loss = run(torch.ones(4, 8)).pow(2).mean()
        loss.backward()
        if watch is not None:
            watch.loss(loss)
            monitor.step(number, loss=loss, work_s=watch.stepped(number))

    first, bare = compiled(model()), compiled(model())
    graphs(lambda number: train(first, number, None))  # the process's first one looks at torch's own functions, too
    without = graphs(lambda number: train(bare, number, None))
    watched = model()
    watch = LocalWatch(monitor)
    watch.gradients(watched)
    run = compiled(watched)
    assert graphs(lambda number: train(run, number, watch)) == without
    late = model()
    run = compiled(late)
    run(torch.ones(4, 8))
    watch.gradients(late)
    torch._dynamo.reset()
    run = compiled(late)
    assert graphs(lambda number: train(run, number, watch)) == without


def test_a_compiled_function_that_calls_the_monitor_is_broken_once_and_not_compiled_again(
    monitor: LiveMonitor,
) -> None:
    model = nn.Linear(4, 4)
    watch = LocalWatch(monitor)

    def train(rows: torch.Tensor) -> torch.Tensor:
        loss = model(rows).pow(2).mean()
        watch.loss(loss)
        monitor.step(7, loss=loss)
        return loss * 2

    run = compiled(train)
    made, _, frames = graphs(lambda number: run(torch.ones(3, 4)))
    assert made == 2
    assert frames <= 3
    assert monitor._losses._taken == 20 or monitor._state.loss_at(7) is not None
