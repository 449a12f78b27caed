"""From a listing to checkpoints: which files belong together, whose layout they have, whether they are complete.

Nothing that lies in a bucket or a folder makes it raise: what it does not understand is passed over, or told as a
problem. Files are looked into only through `read`, a few bytes at a time.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Final

from rekindle.checkpoints.formats import format_of, judge, one_file
from rekindle.checkpoints.found import Folder, Format, Found, Read, some
from rekindle.checkpoints.names import PASSED_OVER, is_marker, is_numbered, is_one_file, is_temporary, plain, read_name

MAX_DEPTH: Final = 6  # folders between what is listed and a checkpoint
LATEST: Final = "latest"
MAX_LATEST_BYTES: Final = 1024
_TAG: Final = re.compile(r"[\w.=-]{1,200}")


def discover(listing: Mapping[str, int], read: Read) -> tuple[Found, ...]:
    """The checkpoints in a listing (relative path -> bytes), newest first; those of unknown step last.

    A folder that two formats could claim goes to the outermost: Hugging Face's checkpoint-N with a DeepSpeed tag in it
    is one checkpoint of Hugging Face's.
    """
    files = {path: max(size, 0) for path, size in listing.items() if _is_usable(path)}
    found: list[Found] = []
    _descend("", _Tree.of(files), _exact(read), found)
    return tuple(sorted(found, key=order, reverse=True))


def judge_one(root: str, files: Mapping[str, int], read: Read) -> Found | None:
    """The checkpoint at `root`, given its files (relative to the same listing as `root`); None for what is none."""
    name = root.rpartition("/")[2]
    read = _exact(read)
    if list(files) == [root]:
        return _file(root, files[root], read)
    folder = (
        Folder(name=name, files=files, read=read) if not root else Folder(name="", files=files, read=read).below(root)
    )
    return _folder(root, folder)


def order(found: Found) -> tuple[bool, int, str]:
    """Sorts the newest last. Those of unknown step among themselves by the number in their names."""
    if found.step is not None:
        return True, found.step, found.root
    return False, read_name(found.root.rpartition("/")[2]).number or 0, found.root


class _Tree:
    """The same files, folder by folder, so that no level is walked twice."""

    __slots__ = ("files", "folders")

    def __init__(self) -> None:
        self.files: dict[str, int] = {}
        self.folders: dict[str, _Tree] = {}

    @classmethod
    def of(cls, files: Mapping[str, int]) -> _Tree:
        tree = cls()
        for path, size in files.items():
            at = tree
            *folders, name = path.split("/")
            for folder in folders:
                at = at.folders.setdefault(folder, _Tree())
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


def _descend(root: str, tree: _Tree, read: Read, found: list[Found], depth: int = 0) -> None:
    prefix = f"{root}/" if root else ""
    name = root.rpartition("/")[2]
    own = _own_folder(root, name, tree, read)
    if own is not None:
        found.append(own)
        return
    for file, size in tree.files.items():
        one = _file(prefix + file, size, read)
        if one is not None:
            found.append(one)
    if depth < MAX_DEPTH:
        for inner, below in tree.folders.items():
            if inner not in PASSED_OVER and not (inner.startswith(".") and not is_temporary(inner)):
                _descend(prefix + inner, below, read, found, depth + 1)
    found += _stale_latest(prefix, tree, read, found)


def _own_folder(root: str, name: str, tree: _Tree, read: Read) -> Found | None:
    """The folder as one checkpoint, None where it only holds others."""
    numbered = is_numbered(plain(name))
    if not numbered and any(is_numbered(inner) for inner in tree.folders):
        return None
    if not tree.files and not numbered:
        return None
    prefix = f"{root}/" if root else ""

    def inside(path: str, start: int, length: int) -> bytes | None:
        return read(prefix + path, start, length)

    return _folder(root, Folder(name=name, files=tree.flat(), read=inside))


def _folder(root: str, folder: Folder) -> Found | None:
    name = root.rpartition("/")[2]
    final = plain(name)
    prefix = f"{root}/" if root else ""
    format_ = format_of(final, folder)
    if format_ is Format.LIGHTNING and not folder.files:
        return None
    if format_ is None:
        # A numbered folder with files of nobody's layout is told; one that holds only folders is looked into.
        state = [path for path in folder.here if not is_marker(path) and not is_one_file(path)]
        if not (read_name(final).number is not None and state) or any(is_one_file(path) for path in folder.here):
            return None
        format_ = Format.UNKNOWN
    step, problems = judge(format_, final, folder)
    if (
        not is_numbered(final)
        and format_ is Format.HF_TRAINER
        and step is not None
        and "optimizer.pt" not in folder.here
    ):
        return None  # Trainer.save_state() and save_model() leave this in the output folder: a result, not a checkpoint
    if is_temporary(name):
        problems = [f"{name} has a temporary name: its save or upload did not finish", *problems]
    files = {f"{prefix}{path}": size for path, size in folder.files.items()}
    return Found(format=format_, step=step, root=root, files=files, problems=some(problems))


def _file(path: str, size: int, read: Read) -> Found | None:
    name = path.rpartition("/")[2]
    if not is_one_file(name):
        return None
    prefix = path[: len(path) - len(name)]

    def inside(file: str, start: int, length: int) -> bytes | None:
        return read(prefix + file, start, length)

    step, problems = one_file(name, Folder(name=name, files={name: size}, read=inside))
    format_ = Format.LIGHTNING if plain(name).endswith(".ckpt") else Format.ONE_FILE
    return Found(format=format_, step=step, root=path, files={path: size}, problems=some(problems))


def latest_problem(raw: bytes, there: Collection[str], *, is_beside: bool) -> tuple[str, str] | None:
    """(tag, problem) of DeepSpeed's file `latest`: the tag that it names is not there. None where nothing is wrong.

    `there` are the folders beside it, `is_beside` says that one of them is DeepSpeed's. Each tag is judged by itself:
    an older `latest` hides no newer tag, and a whole tag needs none.
    """
    tag = raw[:MAX_LATEST_BYTES].decode("utf-8", "replace").strip()
    if tag in there or not (is_beside or tag.startswith("global_step")):
        return None  # there, or somebody else's file of that name
    if not _TAG.fullmatch(tag):
        return LATEST, "the file `latest` names no tag"
    return tag, f"the file `latest` names {tag}, which is not there"


def _stale_latest(prefix: str, tree: _Tree, read: Read, found: list[Found]) -> list[Found]:
    size = tree.files.get(LATEST)
    if size is None or size > MAX_LATEST_BYTES:
        return []
    is_beside = any(item.format is Format.DEEPSPEED and item.root.startswith(prefix) for item in found)
    said = latest_problem(read(f"{prefix}{LATEST}", 0, MAX_LATEST_BYTES) or b"", tree.folders, is_beside=is_beside)
    if said is None:
        return []
    return [Found(format=Format.DEEPSPEED, step=read_name(said[0]).step, root=prefix + said[0], problems=(said[1],))]


def _exact(read: Read) -> Read:
    """Never more than was asked for."""

    def exact(path: str, start: int, length: int) -> bytes | None:
        raw = read(path, start, length)
        return None if raw is None else raw[:length]

    return exact


def _is_usable(path: str) -> bool:
    return isinstance(path, str) and bool(path) and not path.startswith("/") and ".." not in path.split("/")
