"""The one verdict on a checkpoint: is this the checkpoint of step N of this run?

Asked by the monitor when it seals a save, by a start before the script loads it, by `rekindle checkpoints`, by the
Slurm agent and by the service. Each fills in what it can see of it; what is not known is None, and proves nothing.
Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from rekindle.checkpoints.counts import Counted, closest, fits
from rekindle.checkpoints.found import Stamp, limited
from rekindle.compat import StrEnum
from rekindle.protocol.manifests import ITSELF, Manifest, verify_listing

COARSE_S: Final = 2.0  # of a file system that keeps whole seconds; FAT keeps two
FINE_S: Final = 0.1  # kernels stamp files by their last tick, and NFS by the server's
# Files beside the state that describe it: a script may write them once, for all its checkpoints.
DESCRIPTIONS: Final = (
    *(".json", ".yaml", ".yml", ".toml", ".cfg", ".ini", ".txt", ".md", ".csv", ".jsonl", ".log", ".sh"),
    *(".py", ".model", ".jinja", ".vocab", ".tiktoken", ".gitattributes"),
)
ARCHIVED: Final = frozenset({"GLACIER", "DEEP_ARCHIVE"})  # S3 storage classes that cannot be read at once


class Fault(StrEnum):
    """What is wrong with it."""

    OLD = "old"  # not written by the save that claims it
    OTHER_STEP = "other_step"
    NOT_SEALED = "not_sealed"  # not the file that its manifest was written for
    RETIRED = "retired"  # a newer save of the same place was sealed since
    INCOMPLETE = "incomplete"
    NAN = "nan"
    ARCHIVED = "archived"


# Where one of these is wrong it is another checkpoint than the one asked for: it must not be loaded in its stead.
OF_ANOTHER: Final = frozenset({Fault.OLD, Fault.OTHER_STEP, Fault.NOT_SEALED, Fault.RETIRED})


@dataclass(frozen=True, slots=True)
class Problem:
    """`text` is for people."""

    fault: Fault
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What can be seen of a checkpoint that is said to be of `step`.

    inner_steps: by file, the numbers that it names as its step. left_out, counted: see `counts.fits`. problems, nan: by
    the rules of its format. begun_at: when its save began at the earliest, by the clock of its file system. manifest,
    stamps: what was sealed, and the same files as they lie there now; no stamps where they lie elsewhere than they were
    sealed. sealed_since: step of a newer manifest for the same place. classes: S3 storage class by file.
    """

    step: int | None = None
    inner_steps: Mapping[str, Collection[int]] = field(default_factory=dict)
    left_out: int = 0
    counted: Collection[Counted] = ()
    problems: Collection[str] = ()
    nan: str | None = None
    begun_at: float | None = None
    manifest: Manifest | None = None
    stamps: Mapping[str, Stamp] | None = None
    sealed_since: int | None = None
    classes: Mapping[str, str] = field(default_factory=dict)


def verdict(evidence: Evidence) -> tuple[Problem, ...]:
    """What keeps it from being the checkpoint of that step, the gravest first; empty where nothing does."""
    found = [
        *_retired(evidence),
        *_not_sealed(evidence),
        *_other_step(evidence),
        *_old(evidence),
        *_archived(evidence),
        *(Problem(Fault.INCOMPLETE, text) for text in evidence.problems),
    ]
    if evidence.nan is not None:
        found.append(Problem(Fault.NAN, evidence.nan))
    return tuple(found)


def texts(problems: Iterable[Problem]) -> tuple[str, ...]:
    """For people, bounded."""
    return limited([problem.text for problem in problems])


def _retired(evidence: Evidence) -> Iterable[Problem]:
    manifest, since = evidence.manifest, evidence.sealed_since
    if manifest is not None and since is not None:
        yield Problem(
            Fault.RETIRED, f"step {since} was saved into the same place since step {manifest.step} was sealed"
        )


def _not_sealed(evidence: Evidence) -> Iterable[Problem]:
    """The manifest's files by name and size; then whether they are the same files.

    A copy has other times. It is one where all files have, and its content names the step that it named when sealed.
    """
    manifest, stamps = evidence.manifest, evidence.stamps
    if manifest is None or stamps is None:
        return
    for text in verify_listing(manifest, {path: stamp.bytes for path, stamp in stamps.items()}):
        yield Problem(Fault.INCOMPLETE, text)
    sealed = [item for item in manifest.files if item.path in stamps and Stamp.sealed(item).is_known]
    others = [item.path for item in sealed if stamps[item.path].is_other_than(Stamp.sealed(item))]
    if not others:
        return
    if not (len(others) == len(sealed) and _names_what_was_sealed(evidence, manifest)):
        named = "the file" if others == ["."] else others[0]
        yield Problem(Fault.NOT_SEALED, f"{named} is not the one that was sealed at step {manifest.step}")


def _names_what_was_sealed(evidence: Evidence, manifest: Manifest) -> bool:
    found = evidence.inner_steps.items()
    if all(item.step is None for item in manifest.files):  # written before it said so
        return bool(found) and all(manifest.step in numbers for _, numbers in found)
    sealed = [(path, _sealed_step(manifest, path), numbers) for path, numbers in found]
    return bool(sealed) and all(step is None or step in numbers for _, step, numbers in sealed)


def _sealed_step(manifest: Manifest, path: str) -> int | None:
    """The number that the file named as its step when it was sealed; None where the manifest does not say it."""
    return next((item.step for item in manifest.files if item.path in (path, ITSELF)), None)


def _other_step(evidence: Evidence) -> Iterable[Problem]:
    """Of the very files that were sealed, and of those that name what they named then, the step was weighed then."""
    manifest = evidence.manifest
    if evidence.step is None or _is_as_sealed(evidence):
        return
    for path, numbers in sorted(evidence.inner_steps.items()):
        if manifest is not None and _sealed_step(manifest, path) in numbers:
            continue
        if not any(fits(evidence.step, number, evidence.counted, evidence.left_out) for number in numbers):
            yield Problem(Fault.OTHER_STEP, f"{path} holds step {closest(evidence.step, numbers)}, not {evidence.step}")


def _is_as_sealed(evidence: Evidence) -> bool:
    manifest, stamps = evidence.manifest, evidence.stamps
    if manifest is None or stamps is None:
        return False
    sealed = {item.path: Stamp.sealed(item) for item in manifest.files}
    return all(
        stamp.is_known and path in stamps and not stamps[path].is_other_than(stamp) for path, stamp in sealed.items()
    )


def _old(evidence: Evidence) -> Iterable[Problem]:
    begun_at, stamps = evidence.begun_at, evidence.stamps
    if begun_at is None or stamps is None:
        return
    is_coarse = all(stamp.written_ns is None or stamp.written_ns % 1_000_000_000 == 0 for stamp in stamps.values())
    before_ns = int((begun_at - (COARSE_S if is_coarse else FINE_S)) * 1e9)
    for path, stamp in sorted(stamps.items()):
        is_description = path.endswith(DESCRIPTIONS) and len(stamps) > 1
        if stamp.written_ns is not None and stamp.written_ns < before_ns and not is_description:
            age_s = begun_at - stamp.written_ns / 1e9
            named = "the file" if path == "." else path
            yield Problem(Fault.OLD, f"{named} was written {age_s:.1f} s before its save began")


def _archived(evidence: Evidence) -> Iterable[Problem]:
    for path, storage in sorted(evidence.classes.items()):
        if storage in ARCHIVED:
            yield Problem(Fault.ARCHIVED, f"{path} is in S3's {storage}, from which it must be restored first")


def sealed_since(manifest: Manifest, others: Iterable[Manifest]) -> int | None:
    """The step of the newest of `others` that was sealed for the same place after `manifest`; None for none.

    A place holds what was written into it last, whatever an older manifest says.
    """
    newer = [
        other
        for other in others
        if other.root == manifest.root
        and other.step != manifest.step
        and _order(other) > _order(manifest)
        and _writes_over(other, manifest)
    ]
    return max(newer, key=_order).step if newer else None


def _writes_over(newer: Manifest, older: Manifest) -> bool:
    """Whether the files that both have are others now, as far as is known; a folder may also hold each step's own."""
    before = {item.path: Stamp.sealed(item) for item in older.files}
    both = [(before[item.path], Stamp.sealed(item)) for item in newer.files if item.path in before]
    return any(not (was.is_known and now.is_known) or now.is_other_than(was) for was, now in both)


def _order(manifest: Manifest) -> tuple[int, int, float]:
    """A later life begins after an earlier one has ended; within one, the host's clock is good enough."""
    return manifest.attempt_number, manifest.life, manifest.saved_at.timestamp()
