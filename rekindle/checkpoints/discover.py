"""From a listing to checkpoints: which files belong together, whose layout they have, whether they are complete.

Nothing that lies in a bucket or a folder makes it raise: what it does not understand is passed over, or reported as a
problem, and so is what no rule foresaw, as a defect (`DEFECT`) of that one checkpoint. Files are looked into only
through `read`, a few bytes at a time.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

from rekindle.checkpoints.containers import contents, problem_of
from rekindle.checkpoints.formats import contents_of, damage, format_of, judge, marked_format, one_file
from rekindle.checkpoints.found import Folder, Format, Found, Read, limited
from rekindle.checkpoints.megatron import joined_ranks
from rekindle.checkpoints.names import (
    PASSED_OVER,
    STATE_ENDS,
    is_marker,
    is_numbered,
    is_one_file,
    is_temporary,
    plain,
    read_name,
)
from rekindle.checkpoints.poison import nan_in
from rekindle.checkpoints.shapes import is_part, parts_beside
from rekindle.checkpoints.steps import inner_steps

MAX_DEPTH: Final = 6  # folders between what is listed and a checkpoint
KEPT_PARTS: Final = 32
KEPT_BYTES: Final = 256 * 1024  # of each
LATEST: Final = "latest"
MAX_LATEST_BYTES: Final = 1024
NO_LAYOUT: Final = "its files have no layout that is known here, so it cannot be verified"
DEFECT: Final = "it cannot be judged"  # the first words of the problem
_TAG: Final = re.compile(r"[\w.=-]{1,200}")


def discover(listing: Mapping[str, int], read: Read) -> tuple[Found, ...]:
    """The checkpoints in a listing (relative path -> bytes), newest first; those of unknown step last.

    A folder that two formats could claim goes to the outermost: Hugging Face's checkpoint-N with a DeepSpeed tag in it
    is one checkpoint of Hugging Face's.
    """
    files = {path: max(size, 0) for path, size in listing.items() if _is_usable(path)}
    found: list[Found] = []
    _descend("", _FolderTree.of(files), _Source(read=_exact(read)), found)
    found = [item if item.step is not None else replace(item, step=_step_above(item.root)) for item in found]
    return tuple(sorted(joined_ranks(found), key=order, reverse=True))


def _step_above(root: str) -> int | None:
    """The step that a folder above it names, the nearest first: `step-100/weights`."""
    above = (read_name(plain(part)) for part in reversed(root.split("/")[:-1]))  # `sft-steps-10k` is a run of so many
    return next((name.step for name in above if name.step is not None and name.unit == 1), None)


def judge_one(root: str, files: Mapping[str, int], read: Read) -> Found | None:
    """The checkpoint at `root`, given its files (relative to the same listing as `root`); None for what is none."""
    source = _Source(read=_exact(read))
    if list(files) == [root]:
        return _file(root, files[root], source)
    folder = Folder(name="", files=files, read=source.read)
    return _folder(root, folder.below(root) if root else folder)


def judge_declared(root: str, files: Mapping[str, int], read: Read, elsewhere: Collection[str] = ()) -> Found:
    """The checkpoint at `root`, which the script or a manifest says is one. A layout that is only likely by its names
    proves nothing against it then: the script knows what it saved. elsewhere: files below `root` that cannot be read.
    """
    folder = replace(_declared(root, files, read), elsewhere=elsewhere)
    name = root.rpartition("/")[2]
    if list(files) == [root]:
        return _judged_file(root, name, folder)
    return _judged_folder(root, folder, marked_format(plain(name), folder) or Format.UNKNOWN, plain(name))


def inner_steps_of(root: str, files: Mapping[str, int], read: Read) -> Mapping[str, tuple[int, ...]]:
    """By file, relative to the checkpoint at `root`, the numbers that it names as its step."""
    return _inner_steps(_declared(root, files, read))


def _inner_steps(folder: Folder) -> Mapping[str, tuple[int, ...]]:
    try:
        return inner_steps(folder)
    except Exception:  # whatever a file in it makes the rules raise: it names none
        return {}


def _declared(root: str, files: Mapping[str, int], read: Read) -> Folder:
    exact = _exact(read)
    if list(files) == [root]:
        name = root.rpartition("/")[2]
        return Folder(name=name, files={name: files[root]}, read=_below(exact, root[: len(root) - len(name)]))
    whole = Folder(name="", files=files, read=exact)
    return whole.below(root) if root else whole


@dataclass(frozen=True, slots=True)
class _Source:
    """How to read the files of a listing."""

    read: Read

    def folder(self, name: str, prefix: str, files: Mapping[str, int]) -> Folder:
        """The files below `prefix`, named relative to it."""
        return Folder(name=name, files=files, read=_below(self.read, prefix))


def _below(read: Read, prefix: str) -> Read:
    return lambda path, start, length: read(prefix + path, start, length)


def order(found: Found) -> tuple[bool, int, str]:
    """Sorts the newest last. Those of unknown step among themselves by the number in their names."""
    if found.step is not None:
        return True, found.step, found.root
    return False, read_name(found.root.rpartition("/")[2]).number or 0, found.root


class _FolderTree:
    """The same files, folder by folder, so that no level is walked twice."""

    __slots__ = ("files", "folders")

    def __init__(self) -> None:
        self.files: dict[str, int] = {}
        self.folders: dict[str, _FolderTree] = {}

    @classmethod
    def of(cls, files: Mapping[str, int]) -> _FolderTree:
        tree = cls()
        for path, size in files.items():
            at = tree
            *folders, name = path.split("/")
            for folder in folders:
                at = at.folders.setdefault(folder, _FolderTree())
            at.files[name] = size
        return tree

    def flat(self, below: str = "") -> dict[str, int]:
        found: dict[str, int] = {}
        waiting = [(below, self)]
        while waiting:
            prefix, tree = waiting.pop()
            found |= {f"{prefix}{name}": size for name, size in tree.files.items()}
            waiting += [(f"{prefix}{name}/", inner) for name, inner in tree.folders.items()]
        return found


def _descend(root: str, tree: _FolderTree, source: _Source, found: list[Found], depth: int = 0) -> None:
    prefix = f"{root}/" if root else ""
    name = root.rpartition("/")[2]
    began = len(found)  # what is found from here on lies below `root`
    own = _own_folder(root, name, tree, source)
    if own is not None:
        found.append(own)
        return
    beside = parts_beside(tree.files)
    for file, size in tree.files.items():
        file_found = _file(prefix + file, size, source)
        if file_found is not None and file in beside:
            parts = source.folder("", prefix, {part: tree.files[part] for part in beside[file]})
            found.append(_with_parts(file_found, prefix, parts))
        elif file_found is not None:
            found.append(file_found)
    if depth < MAX_DEPTH:
        for inner, below in tree.folders.items():
            if inner not in PASSED_OVER and not (inner.startswith(".") and not is_temporary(inner)):
                _descend(prefix + inner, below, source, found, depth + 1)
    if len(found) == began and read_name(plain(name)).step is not None:
        found += _unknown(root, source.folder(name, prefix, tree.flat()))
    if LATEST in tree.files:
        found += _stale_latest(prefix, tree, source.read, found[began:])


def _unknown(root: str, folder: Folder) -> list[Found]:
    """A step's folder with state in it that is nothing by itself: `step_20/model/rank_00.pt`."""
    if not any(path.endswith(STATE_ENDS) and not path.endswith(".json") for path in folder.files):
        return []
    return [_judged_folder(root, folder, Format.UNKNOWN, plain(folder.name))]


def _own_folder(root: str, name: str, tree: _FolderTree, source: _Source) -> Found | None:
    """The folder as one checkpoint, None where it only holds others."""
    numbered = is_numbered(plain(name))
    if not numbered and any(is_numbered(inner) for inner in tree.folders):
        return None
    if not tree.files and not numbered:
        return None
    return _folder(root, source.folder(name, f"{root}/" if root else "", tree.flat()))


def _folder(root: str, folder: Folder) -> Found | None:
    final = plain(root.rpartition("/")[2])
    format_ = format_of(final, folder)
    if format_ is Format.LIGHTNING and not folder.files:
        return None
    if format_ is None:
        # A numbered folder with files of no known layout is reported; one that holds only folders is looked into.
        state = [path for path in folder.here if not is_marker(path) and not is_one_file(path)]
        if not (read_name(final).number is not None and state) or any(is_one_file(path) for path in folder.here):
            return None
        format_ = Format.UNKNOWN
    found = _judged_folder(root, folder, format_, final)
    if (
        not is_numbered(final)
        and format_ is Format.HF_TRAINER
        and found.step is not None
        and "optimizer.pt" not in folder.here
    ):
        return None  # Trainer.save_state() and save_model() leave this in the output folder: a result, not a checkpoint
    return found


def _judged_folder(root: str, folder: Folder, format_: Format, final: str) -> Found:
    """A folder in that format. `final`: its name, once its save has finished.

    Whatever a file in it makes the rules raise is a problem of this one checkpoint, and not the end of a look.
    """
    name = root.rpartition("/")[2]
    prefix = f"{root}/" if root else ""
    has_weights: bool | None = None
    has_optimizer: bool | None = None
    unsure: list[str] = []
    nan: str | None = None
    try:
        step, problems = judge(format_, final, folder)
        certain, unsure = damage(folder)
        problems += certain
        has_weights, has_optimizer = contents_of(format_, folder)
        nan = None if problems else nan_in(folder)
    except Exception as err:
        step, problems = read_name(final).stated, [_defect(err)]
    inner = _inner_steps(folder)
    step = _settled(step, final, inner)
    if is_temporary(name):
        problems = [f"{name} has a temporary name: its save or upload did not finish", *problems]
    if format_ is Format.UNKNOWN:
        unsure = [NO_LAYOUT, *unsure]
    return Found(
        format=format_,
        step=step,
        root=root,
        files={f"{prefix}{path}": size for path, size in folder.files.items()},
        problems=limited([*problems, *unsure, *([nan] if nan is not None else [])]),
        unsure=limited(unsure),
        nan=nan,
        has_weights=has_weights,
        has_optimizer=has_optimizer,
        inner_steps=inner,
    )


def _settled(step: int | None, name: str, inner: Mapping[str, tuple[int, ...]]) -> int | None:
    """The step, where the folder's name says no exact one and all of its files that name one name the same."""
    named = read_name(name)
    if not (named.unsure is not None and step is None) and not (named.unit > 1 and step == named.step):
        return step
    inside = {number for numbers in inner.values() for number in numbers}
    return named.settled(next(iter(inside)) if len(inside) == 1 else None)


def _defect(err: Exception) -> str:
    return f"{DEFECT}: {type(err).__name__}: {err}"[:200]


def _file(path: str, size: int, source: _Source) -> Found | None:
    name = path.rpartition("/")[2]
    if not is_one_file(name):
        return None
    return _judged_file(path, name, source.folder(name, path[: len(path) - len(name)], {name: size}))


def _with_parts(found: Found, prefix: str, parts: Folder) -> Found:
    """The same with the parts of it that lie beside it."""
    try:
        problems = [problem.text for part in parts.files if (problem := problem_of(parts, part)) is not None]
        nan = nan_in(parts)
    except Exception as err:
        problems, nan = [_defect(err)], None
    nan = found.nan if nan is None else nan
    return replace(
        found,
        files={**found.files, **{prefix + part: size for part, size in parts.files.items()}},
        problems=limited([*found.problems, *problems, *([nan] if nan is not None else [])]),
        nan=nan,
        has_optimizer=found.has_optimizer or any(map(is_part, parts.files)) or None,
    )


def _judged_file(path: str, name: str, folder: Folder) -> Found:
    has_weights: bool | None = None
    has_optimizer: bool | None = None
    unsure: list[str] = []
    nan: str | None = None
    try:
        step, problems = one_file(name, folder)
        found = problem_of(folder, name)
        if found is not None:
            (unsure if found.is_unsure else problems).append(found.text)
        if not problems and found is None:
            nan = nan_in(folder)
            has_weights, has_optimizer = contents(folder, name)
    except Exception as err:
        step, problems = read_name(name).stated, [_defect(err)]
    return Found(
        format=Format.LIGHTNING if plain(name).endswith(".ckpt") else Format.ONE_FILE,
        step=step,
        root=path,
        files={path: folder.files[name]},
        problems=limited([*problems, *unsure, *([nan] if nan is not None else [])]),
        unsure=limited(unsure),
        nan=nan,
        has_weights=has_weights,
        has_optimizer=has_optimizer,
        inner_steps=_inner_steps(folder),
    )


def latest_problem(raw: bytes, there: Collection[str], *, is_beside: bool) -> tuple[str, str] | None:
    """(tag, problem) of DeepSpeed's file `latest`: the tag that it names is not there. None where nothing is wrong.

    `there` are the folders beside it, `is_beside` says that one of them is DeepSpeed's. Each tag is judged alone:
    an older `latest` hides no newer tag, and a whole tag needs none.
    """
    tag = raw[:MAX_LATEST_BYTES].decode("utf-8", "replace").strip()
    if tag in there or not (is_beside or tag.startswith("global_step")):
        return None  # there, or another program's file of that name
    if not _TAG.fullmatch(tag):
        return LATEST, "the file `latest` names no tag"
    return tag, f"the file `latest` names {tag}, which is not there"


def _stale_latest(prefix: str, tree: _FolderTree, read: Read, found: list[Found]) -> list[Found]:
    size = tree.files.get(LATEST)
    if size is None or size > MAX_LATEST_BYTES:
        return []
    is_beside = any(item.format is Format.DEEPSPEED and item.root.startswith(prefix) for item in found)
    stated = latest_problem(read(f"{prefix}{LATEST}", 0, MAX_LATEST_BYTES) or b"", tree.folders, is_beside=is_beside)
    if stated is None:
        return []
    return [
        Found(format=Format.DEEPSPEED, step=read_name(stated[0]).step, root=prefix + stated[0], problems=(stated[1],))
    ]


def _exact(read: Read) -> Read:
    """Never more than was asked for. The last small parts are kept: several rules look at the same ones."""

    def exact(path: str, start: int, length: int) -> bytes | None:
        raw = read(path, start, length)
        return None if raw is None else raw[:length]

    kept = lru_cache(maxsize=KEPT_PARTS)(exact)
    return lambda path, start, length: (kept if length <= KEPT_BYTES else exact)(path, start, length)


def _is_usable(path: str) -> bool:
    return isinstance(path, str) and bool(path) and not path.startswith("/") and ".." not in path.split("/")
