"""What a discovery answers, and what it is given to read with."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from rekindle.compat import StrEnum

Read = Callable[[str, int, int], bytes | None]
"""(path, start, length) -> at most that many bytes from there; None where the file cannot be read. Must not raise."""

CLOCK_STEP_S = 2.0  # modification times this near to each other say nothing: FAT and old NFS keep two seconds

NOT_A_NUMBER = "holds weights that are not a number"  # in a problem; nothing mends such a checkpoint

MAX_NAMED = 100  # missing ranks that are worked out; more say nothing new
MAX_PROBLEMS = 10  # said of one checkpoint; the rest is counted
MAX_PROBLEM_CHARS = 300  # of each: names of files are quoted, and may be of any length


class Format(StrEnum):
    """Who wrote it. `unknown`: a folder with a step's name whose content no rule knows, so it is not trusted."""

    ONE_FILE = "one_file"
    TORCH_DCP = "torch_dcp"
    HF_TRAINER = "hf_trainer"
    LIGHTNING = "lightning"
    ACCELERATE = "accelerate"
    DEEPSPEED = "deepspeed"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """One checkpoint. `root` is its file or folder, relative to what was listed ("" is that itself).

    `step` is the last step whose update it contains; None where neither its name nor its content says so for certain.
    `files` are its files, relative to the listing, with their sizes in bytes. `problems` empty: complete by the rules
    of its format. `has_weights`, `has_optimizer`: whether it holds them; None where that is unknown.
    """

    format: Format
    step: int | None
    root: str
    files: Mapping[str, int] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    has_weights: bool | None = None
    has_optimizer: bool | None = None

    @property
    def is_complete(self) -> bool:
        return not self.problems

    @property
    def total_bytes(self) -> int:
        return sum(self.files.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Folder:
    """A checkpoint's files, named relative to its root, and how to look into them.

    times: when each file was last written, in seconds of the one file system that they lie on; empty where that says
    nothing (objects in S3, and files that were downloaded).
    """

    name: str
    files: Mapping[str, int]
    read: Read
    times: Mapping[str, float] = field(default_factory=dict)

    def below(self, prefix: str) -> Folder:
        """The folder `prefix` in it."""
        start = f"{prefix}/"
        inside = {path[len(start) :]: size for path, size in self.files.items() if path.startswith(start)}

        def read(path: str, at: int, length: int) -> bytes | None:
            return self.read(start + path, at, length)

        times = {path[len(start) :]: time for path, time in self.times.items() if path.startswith(start)}
        return Folder(name=prefix, files=inside, read=read, times=times)

    def each_below(self) -> dict[str, Folder]:
        """Every folder directly in it, by name; the files are walked once, however many folders there are."""
        files: dict[str, dict[str, int]] = {}
        times: dict[str, dict[str, float]] = {}
        for path, size in self.files.items():
            name, slash, inner = path.partition("/")
            if slash:
                files.setdefault(name, {})[inner] = size
                if path in self.times:
                    times.setdefault(name, {})[inner] = self.times[path]

        def reader(name: str) -> Read:
            return lambda path, at, length: self.read(f"{name}/{path}", at, length)

        return {
            name: Folder(name=name, files=inside, read=reader(name), times=times.get(name, {}))
            for name, inside in files.items()
        }

    def written_after(self, last: str, files: Iterable[str]) -> list[str]:
        """Those of `files` that were written after `last`, which their writer writes last.

        Then a second save into the same folder did not get as far. Empty where the times are not known.
        """
        ended = self.times.get(last)
        if ended is None:
            return []
        return [path for path in files if self.times.get(path, ended) > ended + CLOCK_STEP_S]

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
