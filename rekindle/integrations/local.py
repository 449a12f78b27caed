"""What one rank alone knows of a step: were its own gradient and loss finite before any average, how long did it work.

After the all-reduce a NaN is everybody's. Before it, it has one owner, and often a broken device. `LocalWatch` looks at
the gradients of a few small parameters as autograd delivers them, before DistributedDataParallel puts them into its
buckets: DDP's communication is not touched, so its result and its communication hooks stay what they are. A NaN travels
backwards through all layers before the one where it arose, so it reaches the first parameters, unless it arose in a
weight's own gradient only; that one is seen in the next loss, on all ranks alike.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterator
from typing import Any

import torch

from rekindle.integrations.guarded import Guarded, guarded
from rekindle.monitor import Monitor
from rekindle.monitor.base.guard import hide_from_compiler
from rekindle.monitor.base.trouble import logger
from rekindle.monitor.base.values import Captured, capture, collect, is_pending, is_ready, read

GRADIENT, LOSS = "gradient", "loss"
PARAMETERS = 4  # that are looked at: the first one, and others spread over the model for its branches
SMALL = 2**14  # elements: their sum takes microseconds, also on a CPU
STEPS_KEPT = 64  # whose values, or device times, may be outstanding
FOLD_AT = 256  # looks in one step, as under gradient accumulation, until they are made one
CLOSE_S = 2.0
_LOOK_S = 0.01
_is_compiling = getattr(torch.compiler, "is_compiling", lambda: False)  # there from torch 2.3 on


class LocalWatch(Guarded):
    """One per process, on the training thread. None of its methods raises or waits, but `close` for two seconds.

    watch = LocalWatch(mon)
    watch.gradients(model)                  # once; FSDP2 shards its gradients out of sight: watch.loss(loss) each step,
                                            # and own work is that of a few of its modules' forward passes
    ...
    mon.step(step, loss=loss, work_s=watch.stepped(step))       # at each step
    """

    def __init__(self, monitor: Monitor) -> None:
        self._monitor = monitor
        self._found: dict[tuple[str, Any], list[Any]] = {}  # by metric and device
        self._unread: deque[tuple[int, str, Captured]] = deque()
        self._handles: list[Any] = []
        self._began: Any = None
        self._worked: Any = None
        self._spans: list[tuple[Any, Any]] = []  # of own work in this step, where modules tell it
        self._entered: dict[int, Any] = {}  # modules whose forward pass has begun
        self._paces: deque[list[tuple[Any, Any]]] = deque(maxlen=STEPS_KEPT)
        self._spare: list[Any] = []  # events of the device that are used again: making one takes longer than recording
        # Inside a compiled function: one graph break, and nothing of ours is traced.
        hide_from_compiler(self, ("loss", "stepped"))

    @guarded("gradients")
    def gradients(self, model: Any) -> None:
        """Look at this rank's own gradients from now on. Calling it again moves the look to that model."""
        for handle in self._handles:
            handle.remove()
        self._handles = [parameter.register_hook(self._see) for parameter in _spread(list(_small(model)))]
        if not self._handles:
            self._handles = self._watch_modules(model)
        if not self._handles:
            logger.warning("The model has no gradients to look at on this rank: its loss is looked at")

    @guarded("loss")
    def loss(self, loss: Any) -> None:
        """This rank's own loss, before any averaging over ranks. Only floating-point tensors are looked at."""
        if isinstance(loss, torch.Tensor) and not _is_capturing():
            self._look(LOSS, loss)

    @guarded("stepped")
    def stepped(self, step: int) -> float | None:
        """The step is over. Returns the newest known seconds of own work in a step, for `Monitor.step(work_s=...)`.

        Own work is from the end of the last step to the last gradient: before a rank waits for any other. Under FSDP2,
        where ranks wait for each other at each module: from the end of the last step to the model's forward pass, and
        the forward passes of some modules, once their parameters are there. On a GPU the device measures it, so it is
        that of a step or two ago. None where neither is looked at.
        """
        if _is_capturing():
            return None  # what was queued before may not be asked about now
        for (metric, _), values in self._found.items():
            if values and len(self._unread) < STEPS_KEPT:
                self._unread.append((step, metric, capture(_worst(values))))
        self._found.clear()
        self._tell()
        if self._began is not None and self._worked is not None:
            self._paces.append([(self._began, self._worked), *self._spans])
        self._spans = []
        self._began, self._worked = self._now(None), None
        return self._pace()

    @guarded("close")
    def close(self) -> None:
        """Take the hooks away and report what is outstanding."""
        until = time.monotonic() + CLOSE_S
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        while self._tell(is_last=True) and time.monotonic() < until:
            time.sleep(_LOOK_S)  # noqa: TID251  the run is over

    @guarded("gradient")
    def _see(self, gradient: Any) -> None:
        """A hook of autograd: returns nothing, so that the gradient stays what it is."""
        if _is_compiling() or _is_capturing():
            return  # in a graph that is recorded nothing is computed, and its replays call no hook
        self._look(GRADIENT, gradient)
        self._worked = self._now(self._worked)

    def _watch_modules(self, model: Any) -> list[Any]:
        """Hooks on FSDP2's innermost modules, behind its own hooks, which wait for the parameters of all ranks."""
        sharded = [module for module in model.modules() if hasattr(module, "unshard")]  # torch's FSDPModule
        inner = [
            module for module in sharded if not any(hasattr(part, "unshard") for part in list(module.modules())[1:])
        ]
        if not inner:
            return []
        handles = [model.register_forward_pre_hook(lambda *_: self._mark(None), prepend=True)]  # before FSDP's own
        for number, module in enumerate(_spread(inner)):
            handles.append(module.register_forward_pre_hook(lambda *_, number=number: self._mark(number)))
            handles.append(module.register_forward_hook(lambda *_, number=number: self._mark(number, ends=True)))
        return handles

    @guarded("module")
    def _mark(self, number: int | None, *, ends: bool = False) -> None:
        """The model's forward pass begins (None), or that of a module begins or ends. A hook: returns nothing."""
        if _is_compiling() or _is_capturing() or len(self._spans) >= FOLD_AT:
            return
        if number is None:
            self._worked = self._worked or self._now(None)
        elif not ends:
            self._entered[number] = self._now(None)
        elif (began := self._entered.pop(number, None)) is not None:
            self._spans.append((began, self._now(None)))

    def _look(self, metric: str, values: Any) -> None:
        values = _plain(values.detach())
        if values is None:
            return
        with torch.no_grad():
            # Not finite where a value is not; float64, so that large values of half precision do not overflow.
            total = values.sum(dtype=torch.float32 if values.device.type == "mps" else torch.float64)
        found = self._found.setdefault((metric, total.device), [])
        found.append(total)
        if len(found) >= FOLD_AT:
            found[:] = [_worst(found)]

    def _tell(self, *, is_last: bool = False) -> int:
        """Report the values that are there. Returns how many are not."""
        collect()
        while self._unread:
            step, metric, value = self._unread[0]
            # Where a library cannot tell that a value is there, it is read one step later, so that it is by then.
            is_fresh = is_pending(value) and len(self._unread) <= 1 and not is_last
            if is_fresh or not is_ready(value):
                break
            self._unread.popleft()
            number = read(value)
            if number is not None and not math.isfinite(number):
                self._monitor.local_non_finite(step, metric)
        return len(self._unread)

    def _pace(self) -> float | None:
        newest = None
        while self._paces:
            spans = self._paces[0]
            if len({isinstance(mark, float) for span in spans for mark in span}) > 1:
                pass  # the device came into use in between
            elif isinstance(spans[0][0], float):
                newest = sum(worked - began for began, worked in spans)
            elif all(worked.query() for _, worked in spans):
                newest = sum(began.elapsed_time(worked) for began, worked in spans) / 1000.0
                self._spare += (mark for span in spans for mark in span)
            else:
                break
            self._paces.popleft()
        return newest

    def _now(self, before: Any) -> Any:
        """A mark on the device's own time line, or this host's clock where it computes itself. before: is moved."""
        if not torch.cuda.is_initialized():
            return time.perf_counter()
        event = before if isinstance(before, torch.cuda.Event) else None
        if event is None:
            event = self._spare.pop() if self._spare else torch.cuda.Event(enable_timing=True)
        event.record()
        return event


def _small(model: Any) -> Iterator[Any]:
    """Parameters whose gradients autograd delivers whole on this rank, small ones where there are any."""
    usable = [parameter for parameter in model.parameters() if _is_usable(parameter)]
    limit = max(SMALL, min((parameter.numel() for parameter in usable), default=0))
    return (parameter for parameter in usable if parameter.numel() <= limit)


def _is_usable(parameter: Any) -> bool:
    # Sharded parameters (DTensor, FSDP's FlatParameter) and those without a shape yet are of classes of their own.
    is_plain = type(parameter) in (torch.nn.Parameter, torch.Tensor)
    return is_plain and parameter.requires_grad and parameter.is_leaf and parameter.numel() > 0


def _spread(parameters: list[Any]) -> list[Any]:
    count = len(parameters)
    places = dict.fromkeys(index * count // PARAMETERS for index in range(min(PARAMETERS, count)))
    return [parameters[place] for place in places]


def _plain(values: Any) -> Any:
    """The values of a tensor that holds some here; None for every other one."""
    if type(values).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
        return None  # spread over ranks, or without data
    if values.layout is torch.sparse_coo:
        values = values.coalesce().values()
    if values.is_complex():
        values = torch.view_as_real(values.resolve_conj())
    has_data = values.layout is torch.strided and values.numel() > 0 and not values.is_meta
    return values if values.is_floating_point() and has_data else None


def _worst(values: list[Any]) -> Any:
    """One that is not finite, where there is one."""
    with torch.no_grad():
        return values[0] if len(values) == 1 else torch.stack(values).sum()


def _is_capturing() -> bool:
    return bool(torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing())


class StepLoss:
    """Collects the losses of one step's batches. A value that is not finite stays so in what comes out."""

    def __init__(self) -> None:
        self._sum: Any = None
        self._count = 0

    def add(self, loss: Any) -> None:
        """A batch's loss: a number or a tensor, which is read as it is now. None is no loss."""
        if loss is None:
            return
        # A copy: scripts keep one tensor and add to it in place.
        value = loss.detach().clone() if isinstance(loss, torch.Tensor) else loss
        try:
            self._sum = value if self._count == 0 else self._sum + value
        except Exception:  # of another shape or device than the one before: the newest speaks for the step
            self._sum, self._count = value, 0
        self._count += 1

    def take(self, *, is_divided: bool = False) -> Any:
        """The mean of what was added since the last call, its sum where that was divided already; None for nothing."""
        value, count = self._sum, self._count
        self.clear()
        return value if is_divided or count < 2 else value / count

    def clear(self) -> None:
        self._sum, self._count = None, 0


def learning_rate(optimizer: Any) -> Any:
    """That of the first parameter group, as a number or a tensor; None where there is none."""
    try:
        rate = optimizer.param_groups[0]["lr"]
    except (AttributeError, IndexError, KeyError, TypeError):
        return None
    return rate.detach().clone() if isinstance(rate, torch.Tensor) else rate
