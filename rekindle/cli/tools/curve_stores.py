"""Training curves where TensorBoard, MLflow and Weights & Biases keep them on disk.

TensorBoard's event files are read by its own reader, which has to be installed. MLflow's file store has a file per
metric, `mlruns/EXPERIMENT/RUN/metrics/NAME`, of lines `milliseconds value step`.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from rekindle.cli.tools.columns import LOSSES, ChosenColumns
from rekindle.client.errors import BadFile
from rekindle.client.table import clean, cut
from rekindle.detectors.points import Point

METRIC: Final = ["timestamp", "value", "step"]  # the columns of MLflow's lines
MAX_VALUES: Final = 2_000_000  # that are kept of an event file
MAX_FILES: Final = 1_000
_METRIC: Final = re.compile(r"[0-9]{10,16} \S{1,40} [0-9]{1,18}\s*\Z")
_EVENTS: Final = "tfevents"
_SHOWN_CHARS: Final = 120


def is_metric(line: str) -> bool:
    """Whether it is a line of a metric's file in MLflow's file store."""
    return _METRIC.match(line) is not None


def is_events(path: Path) -> bool:
    """Whether it is a file of TensorBoard's, or a folder of them."""
    return _EVENTS in path.name or (path.is_dir() and any(_event_files(path)))


def in_folder(folder: Path, name: str, chosen: ChosenColumns) -> Path:
    """The file of a run's folder that holds its loss; the folder itself where it holds TensorBoard's files.

    Raises:
        BadFile: nothing there is known.
    """
    titles = [chosen.loss] if chosen.loss is not None else [title for title, _ in LOSSES]
    for under in (folder / "metrics", folder):
        for title in titles:
            if (under / title).is_file():
                return under / title
    if any(_event_files(folder)):
        return folder
    if (folder / "trainer_state.json").is_file():
        return folder / "trainer_state.json"
    raise BadFile(
        f"{name}: cannot be read: is a folder without a curve: looked for TensorBoard's event files, "
        f"trainer_state.json, and {_shown(titles)} in MLflow's metrics; "
        f"a run of Weights & Biases is read from its exported history"
    )


def _event_files(folder: Path) -> list[Path]:
    found = []
    for number, path in enumerate(folder.iterdir()):
        if number >= MAX_FILES:
            break
        if _EVENTS in path.name and path.is_file():
            found.append(path)
    return sorted(found)


def events(path: Path, name: str, chosen: ChosenColumns) -> Iterator[Point]:
    """The scalars of the loss, in the order in which they were written.

    Raises:
        BadFile: TensorBoard is not installed, or the files hold no loss.
    """
    values: dict[str, list[tuple[int, float]]] = {}
    titles = [chosen.loss] if chosen.loss is not None else [title for title, _ in LOSSES]
    others: dict[str, None] = {}
    kept = 0
    for file in _event_files(path) if path.is_dir() else [path]:
        for tag, step, value in _scalars(file, name):
            if tag not in titles:
                others[tag] = None
                continue
            kept += 1
            if kept > MAX_VALUES:
                raise BadFile(f"{name}: holds more than {MAX_VALUES:,} values of a loss")
            values.setdefault(tag, []).append((step, value))
    title = next((title for title in titles if title in values), None)
    if title is None:
        raise BadFile(f"{name}: holds no loss; its scalars: {_shown(list(others)[:20])}; choose with --loss-column")
    for step, value in values[title]:
        yield Point(step=step, loss=value)


def _scalars(file: Path, name: str) -> Iterator[tuple[str, int, float]]:
    """Tag, step and value, by TensorBoard's reader; what it cannot read on is where it ends."""
    try:
        loader = importlib.import_module("tensorboard.backend.event_processing.event_file_loader")
        tensors = importlib.import_module("tensorboard.util.tensor_util")
    except ImportError as err:
        raise BadFile(
            f"{name}: is a file of TensorBoard's own, which its own reader reads: pip install tensorboard, "
            f"or give its export (CSV or JSON, from its page)"
        ) from err
    for event in loader.EventFileLoader(str(file)).Load():
        for value in event.summary.value:
            number = _scalar(value, tensors)
            if number is not None:
                yield value.tag, int(event.step), number


def _scalar(value: Any, tensors: Any) -> float | None:
    if value.metadata.plugin_data.plugin_name != "scalars":
        return None
    try:
        return float(tensors.make_ndarray(value.tensor).item())
    except (TypeError, ValueError):
        return None


def _shown(titles: Sequence[str]) -> str:
    return cut(clean(", ".join(titles)), _SHOWN_CHARS) or "none"
