"""The random generators of one process: without them a resumed run drops other neurons than the run it continues."""

from __future__ import annotations

import base64
import hashlib
import inspect
import io
import random
import sys
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

import torch

from rekindle.integrations.torch_ranks import gathered, rank_and_world

_B = TypeVar("_B")
GATHER_S = 60.0  # the ranks are at the same step; the slowest comes within its own part of it


def rng_state() -> dict[str, Any]:
    """Python's, NumPy's (where it is loaded), torch's, and those of the process's accelerator: plain data and tensors.

    `torch.load(weights_only=True)` reads it back.
    """
    version, internal, gauss = random.getstate()
    state: dict[str, Any] = {
        "python": [version, list(internal), gauss],
        "torch": torch.get_rng_state(),
    }
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None:
        kind, keys, position, has_gauss, cached = numpy.random.get_state()
        state["numpy"] = [kind, [int(key) for key in keys], int(position), int(has_gauss), float(cached)]
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def gathered_rng(step: int) -> list[dict[str, Any]]:
    """`rng_state` of all ranks, in order, on rank 0; an empty list elsewhere. Call it on every rank.

    step: of the save that they are for. Raises: TimeoutError on rank 0 where a rank does not come within a minute.
    """
    if rank_and_world()[1] == 1:
        return [rng_state()]
    written = io.BytesIO()
    torch.save(rng_state(), written)
    texts = gathered(base64.b64encode(written.getvalue()).decode(), GATHER_S, f"rng-{step}")
    return [torch.load(io.BytesIO(base64.b64decode(text)), weights_only=True) for text in texts]


def restore_rng(state: dict[str, Any]) -> None:
    """Put them back. A generator that is not in `state`, or not in this process, is left as it is."""
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    torch.set_rng_state(state["torch"])
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None and "numpy" in state:
        kind, keys, position, has_gauss, cached = state["numpy"]
        numpy.random.set_state((kind, numpy.array(keys, dtype=numpy.uint32), position, has_gauss, cached))
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])


def quietly(loader: Iterable[_B]) -> Iterator[_B]:
    """The loader's batches, without what starting to read them does to torch's generator.

    A DataLoader draws its workers' seed when an iteration starts, and a resumed run starts one more than the run that
    it continues. What the data themselves draw in this process stays drawn, as it does in the middle of an epoch.
    Source: torch/utils/data/dataloader.py, _BaseDataLoaderIter.__init__
    """
    before = torch.get_rng_state()
    batches = iter(loader)
    is_late = inspect.isgenerator(batches)
    if not is_late:
        torch.set_rng_state(before)
        yield from batches
        return
    for first in batches:  # Accelerate's loaders start at the first batch only, together with reading it
        torch.set_rng_state(before)
        yield first
        break
    else:
        torch.set_rng_state(before)
    yield from batches


def seed_draws(*numbers: int) -> None:
    """Seed this process's generators from these numbers alone: the same numbers, the same draws. For workers."""
    text = " ".join(str(number) for number in numbers).encode()
    seed = int.from_bytes(hashlib.sha256(text).digest()[:8], "little")
    random.seed(seed)
    torch.default_generator.manual_seed(seed)
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed % 2**32)


def draws_of(dataset: Any) -> str | None:
    """Which generator of this process reading a sample changes ("torch", "python", "numpy"); None for none.

    Reads the first sample of a map-style dataset, once, and puts the generators back. None also where there is none.
    Not for a process that will fork workers: a file that the data open when they are first read would be shared by all.
    """
    try:
        if not hasattr(dataset, "__getitem__") or not len(dataset):
            return None
    except TypeError:
        return None
    before = rng_state()
    try:
        dataset[0]
        after = rng_state()
    except Exception:  # the loader's own to raise, when it comes to it
        return None
    finally:
        restore_rng(before)
    if not torch.equal(before["torch"], after["torch"]):
        return "torch"
    return next((name for name in ("python", "numpy") if before.get(name) != after.get(name)), None)
