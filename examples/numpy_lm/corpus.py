"""The text the example learns, and the order in which it is read.

The text is the Python language reference that every Python installation carries for `help()`
(`pydoc_data.topics`), read when it is needed: real prose, nothing downloaded, nothing copied into this
repository.

A dataset is a folder:

* `text.bin`     one byte per symbol, already mapped to `0 .. VOCABULARY-1`
* `weights.f32`  one float per batch, the weight its loss carries (1.0; what a data-mixing pipeline would write).
                 A broken record in this file is how a batch is poisoned: NaN × loss is NaN.

Batches are numbered like the steps that consume them, from 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import numpy as np

SYMBOLS = "\n" + "".join(chr(code) for code in range(32, 127))
VOCABULARY = len(SYMBOLS)
_UNKNOWN = SYMBOLS.index("?")


def python_reference(size_bytes: int) -> str:
    """About `size_bytes` of English prose from this Python's own help texts, the same on every call."""
    text = ""
    for name in sorted(topics):
        text += topics[name] + "\n\n"
        if len(text) >= size_bytes:
            break
    return text[:size_bytes]


def encode(text: str) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Symbols of `text`; whatever lies outside printable ASCII becomes a question mark."""
    table = np.full(256, _UNKNOWN, dtype=np.uint8)
    for index, symbol in enumerate(SYMBOLS):
        table[ord(symbol)] = index
    return table[np.frombuffer(text.encode("ascii", errors="replace"), dtype=np.uint8)]


def write_dataset(folder: Path, *, batches: int, size_bytes: int = 100_000) -> None:
    """Write the dataset for a run of at most `batches` steps."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "text.bin").write_bytes(encode(python_reference(size_bytes)).tobytes())
    np.ones(batches + 1, dtype=np.float32).tofile(folder / "weights.f32")


def poison(folder: Path, batch: int) -> None:
    """Break the record of one batch where the dataset lies: every attempt that trains on it sees NaN."""
    weights = np.memmap(folder / "weights.f32", dtype=np.float32, mode="r+")
    weights[batch] = np.nan
    weights.flush()


class Sampler:
    """Which windows of text each batch holds: a shuffled pass over the text, reshuffled for each epoch.

    `batch` is the number of the batch drawn last. Each step draws one, skipped or not, so that batch numbers and
    step numbers stay the same thing. All ranks hold the same sampler and take their own rows of its batches.
    `state` and `restore` carry the position and the random generator, so that a resumed run reads on where the
    saved one stopped.
    """

    def __init__(self, folder: Path, *, rows: int, window: int, seed: int, poisoned: Iterable[int] = ()) -> None:
        self._text = np.fromfile(folder / "text.bin", dtype=np.uint8)
        self._weights = np.memmap(folder / "weights.f32", dtype=np.float32, mode="r")
        self._rows = rows
        self._window = window
        self._poisoned = frozenset(poisoned)
        self._windows = (len(self._text) - 1) // window
        if self._windows < rows:
            raise ValueError(f"{folder}: {len(self._text)} symbols do not fill one batch of {rows} x {window}")
        self._random = np.random.Generator(np.random.PCG64(seed))
        self._before_shuffle = self._random.bit_generator.state
        self._order = self._random.permutation(self._windows)
        self._cursor = 0
        self.batch = 0

    def __len__(self) -> int:
        """How many batches the dataset has weights for: the longest run it can feed."""
        return len(self._weights) - 1

    def next_batch(self) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], np.float32]:
        """Inputs and targets `(rows, window)` and the batch's weight; moves on by one batch."""
        self.batch += 1
        if self._cursor + self._rows > self._windows:
            self._before_shuffle = self._random.bit_generator.state
            self._order = self._random.permutation(self._windows)
            self._cursor = 0
        starts = self._order[self._cursor : self._cursor + self._rows] * self._window
        index = starts[:, None] + np.arange(self._window)[None, :]
        weight = np.float32(np.nan) if self.batch in self._poisoned else np.float32(self._weights[self.batch])
        self._cursor += self._rows
        return self._text[index], self._text[index + 1], weight

    def state(self) -> dict[str, Any]:
        """JSON-ready position: the generator as it was before the current shuffle, and how far that pass has got."""
        return {"random": self._before_shuffle, "cursor": self._cursor, "batch": self.batch}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue exactly where `state` was taken."""
        self._before_shuffle = state["random"]
        self._random.bit_generator.state = state["random"]
        self._order = self._random.permutation(self._windows)
        self._cursor = int(state["cursor"])
        self.batch = int(state["batch"])


def in_windows(step: int, windows: Sequence[Sequence[int]]) -> bool:
    """Whether `step` lies in one of the half-open windows `[from_step, to_step)` that are to be skipped."""
    return any(first <= step < end for first, end in windows)
