"""What a discovery answers, and what it is given to read with."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from rekindle.compat import StrEnum
from rekindle.protocol.manifests import ManifestFile

Read = Callable[[str, int, int], bytes | None]
"""(path, start, length) -> at most that many bytes from there; None where the file cannot be read. Must not raise."""

MAX_NAMED = 100  # missing ranks that are worked out; more say nothing new
MAX_PROBLEMS = 10  # said of one checkpoint; the rest is counted
MAX_PROBLEM_CHARS = 300  # of each: names of files are quoted, and may be of any length


@dataclass(frozen=True, slots=True)
class Stamp:
    """What changes when a file is written again: its size, and its times and inode, or its ETag and version in S3.

    changed_ns: when its inode was last changed, which also tells of a file that was moved or copied with its time.
    """

    bytes: int
    mtime_ns: int | None = None
    inode: int | None = None
    etag: str | None = None
    version: str | None = None
    changed_ns: int | None = field(default=None, compare=False)

    @classmethod
    def of(cls, path: str | os.PathLike[str]) -> Stamp:
        """Raises: OSError; ValueError: no file can have such a path."""
        seen = os.stat(path)
        return cls(seen.st_size, seen.st_mtime_ns, seen.st_ino, changed_ns=seen.st_ctime_ns)

    @classmethod
    def sealed(cls, item: ManifestFile) -> Stamp:
        """As the manifest has it."""
        return cls(item.bytes, item.mtime_ns, item.inode, item.etag, item.version)

    @property
    def is_known(self) -> bool:
        return self.mtime_ns is not None or self.etag is not None

    @property
    def written_ns(self) -> int | None:
        """When it came to be what it is at the place where it lies; None where that is not known."""
        return None if self.mtime_ns is None else max(self.mtime_ns, self.changed_ns or 0)

    def is_other_than(self, sealed: Stamp) -> bool:
        """Whether it was written since. Copies keep times to the fraction of a second, and have other inodes."""
        if sealed.version is not None and self.version is not None and sealed.version == self.version:
            return False
        if sealed.etag is not None and self.etag is not None:
            return sealed.etag != self.etag
        if sealed.mtime_ns is None or self.mtime_ns is None:
            return False
        is_coarse = sealed.mtime_ns % 1_000_000_000 == 0
        return self.mtime_ns != sealed.mtime_ns or (is_coarse and self.inode != sealed.inode)


class Format(StrEnum):
    """Who wrote it. `folder`: a script's own, whole because another step's is like it (see `twins`). `unknown`: a
    folder with a step's name whose content no rule knows, so it is not trusted.
    """

    ONE_FILE = "one_file"
    TORCH_DCP = "torch_dcp"
    HF_TRAINER = "hf_trainer"
    LIGHTNING = "lightning"
    ACCELERATE = "accelerate"
    DEEPSPEED = "deepspeed"
    MEGATRON = "megatron"
    NEMO = "nemo"
    FOLDER = "folder"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """One checkpoint. `root` is its file or folder, relative to what was listed ("" is that itself).

    `step` is the last step whose update it contains; None where neither its name nor its content says so for certain.
    `files` are its files, relative to the listing, with their sizes in bytes. `problems` empty: complete by the rules
    of its format. `unsure`: those of the problems that are only something which its format does not show; where the
    script or a manifest says that it is a checkpoint, they count for nothing. `nan`: the one that says where NaN is.
    `has_weights`, `has_optimizer`: whether it holds them; None where that is unknown. `inner_steps`: by file, below its
    root, the numbers that it names as its step.
    """

    format: Format
    step: int | None
    root: str
    files: Mapping[str, int] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    unsure: tuple[str, ...] = ()
    nan: str | None = None
    has_weights: bool | None = None
    has_optimizer: bool | None = None
    inner_steps: Mapping[str, Collection[int]] = field(default_factory=dict)

    @property
    def is_complete(self) -> bool:
        return not self.problems

    @property
    def certain(self) -> tuple[str, ...]:
        """Its problems without those that are unsure, and without NaN."""
        return tuple(problem for problem in self.problems if problem not in self.unsure and problem != self.nan)

    @property
    def total_bytes(self) -> int:
        return sum(self.files.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Folder:
    """A checkpoint's files, named relative to its root, and how to look into them. elsewhere: those that cannot be."""

    name: str
    files: Mapping[str, int]
    read: Read
    elsewhere: Collection[str] = ()

    def below(self, prefix: str) -> Folder:
        """The folder `prefix` in it."""
        start = f"{prefix}/"
        inside = {path[len(start) :]: size for path, size in self.files.items() if path.startswith(start)}

        def read(path: str, at: int, length: int) -> bytes | None:
            return self.read(start + path, at, length)

        return Folder(name=prefix, files=inside, read=read)

    def each_below(self) -> dict[str, Folder]:
        """Every folder directly in it, by name; the files are walked once, however many folders there are."""
        files: dict[str, dict[str, int]] = {}
        for path, size in self.files.items():
            name, slash, inner = path.partition("/")
            if slash:
                files.setdefault(name, {})[inner] = size

        def reader(name: str) -> Read:
            return lambda path, at, length: self.read(f"{name}/{path}", at, length)

        return {name: Folder(name=name, files=inside, read=reader(name)) for name, inside in files.items()}

    def each_folder(self) -> dict[str, Folder]:
        """Every folder at any depth that has files directly in it, with only those; "" is this one. Walked once."""
        files: dict[str, dict[str, int]] = {}
        for path, size in self.files.items():
            prefix, _, name = path.rpartition("/")
            files.setdefault(prefix, {})[name] = size

        def reader(prefix: str) -> Read:
            return lambda path, at, length: self.read(f"{prefix}/{path}" if prefix else path, at, length)

        return {prefix: Folder(name=prefix, files=own, read=reader(prefix)) for prefix, own in files.items()}

    @property
    def here(self) -> dict[str, int]:
        """Files that lie directly in it."""
        return {path: size for path, size in self.files.items() if "/" not in path}

    @property
    def folders(self) -> tuple[str, ...]:
        """Names of the folders directly in it."""
        return tuple(dict.fromkeys(path.partition("/")[0] for path in self.files if "/" in path))

    def whole(self, path: str, limit: int) -> bytes | None:
        """The file's content; None where it is larger than `limit`, or cannot be read."""
        size = self.files.get(path)
        return None if size is None or size > limit else self.read(path, 0, size)


def limited(problems: list[str]) -> tuple[str, ...]:
    """At most MAX_PROBLEMS of them, each once and cut to MAX_PROBLEM_CHARS."""
    each = list(dict.fromkeys(problem[:MAX_PROBLEM_CHARS] for problem in problems))
    if len(each) <= MAX_PROBLEMS:
        return tuple(each)
    return (*each[:MAX_PROBLEMS], f"and {len(each) - MAX_PROBLEMS} more")
