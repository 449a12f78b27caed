"""The one verdict on a checkpoint, from what a caller can see of it."""

from __future__ import annotations

import io
import pickle
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from rekindle.checkpoints.found import Stamp
from rekindle.checkpoints.pickles import top_level
from rekindle.checkpoints.verdict import OF_ANOTHER, Evidence, Fault, sealed_since, verdict
from rekindle.protocol.manifests import Manifest, ManifestFile, SaveKind

NOW_NS = 1_795_000_000_123_456_789
NOW = NOW_NS / 1e9
MANIFEST = Manifest(
    job_id="lm",
    attempt="lm-a1",
    attempt_number=1,
    step=40,
    kind=SaveKind.PERIODIC,
    root="/fsx/lm/ckpt",
    files=(
        ManifestFile(path="model.bin", bytes=10, mtime_ns=NOW_NS, inode=7),
        ManifestFile(path="optim.bin", bytes=20, mtime_ns=NOW_NS + 5, inode=8),
    ),
    world_size=1,
    saved_at=datetime(2026, 11, 20, tzinfo=UTC),
)
AS_SEALED = {"model.bin": Stamp(10, NOW_NS, 7), "optim.bin": Stamp(20, NOW_NS + 5, 8)}
COPIED = {"model.bin": Stamp(10, NOW_NS + 10**12, 9), "optim.bin": Stamp(20, NOW_NS + 10**12, 10)}


def faults(**what: object) -> list[Fault]:
    return [problem.fault for problem in verdict(Evidence(**what))]  # type: ignore[arg-type]


def test_nothing_that_is_known_is_nothing_against_it() -> None:
    assert faults() == []
    assert faults(step=40, manifest=MANIFEST) == []


@pytest.mark.parametrize(
    ("stamps", "steps", "expected"),
    [
        (AS_SEALED, {}, []),
        (AS_SEALED | {"left.bin": Stamp(1, 5, 5)}, {}, []),
        (AS_SEALED | {"model.bin": Stamp(10, NOW_NS, 99)}, {}, []),  # copied with its time
        (AS_SEALED | {"model.bin": Stamp(10, NOW_NS + 1, 7)}, {}, [Fault.NOT_SEALED]),
        (AS_SEALED | {"model.bin": Stamp(11, NOW_NS + 1, 7)}, {}, [Fault.INCOMPLETE, Fault.NOT_SEALED]),
        ({"model.bin": AS_SEALED["model.bin"]}, {}, [Fault.INCOMPLETE]),
        (COPIED, {}, [Fault.NOT_SEALED]),
        (COPIED, {"optim.bin": (40,)}, []),
        (COPIED, {"optim.bin": (60,)}, [Fault.NOT_SEALED, Fault.OTHER_STEP]),
        (
            AS_SEALED | {"model.bin": COPIED["model.bin"]},
            {"optim.bin": (40,)},
            [Fault.NOT_SEALED],
        ),  # half of another save
    ],
)
def test_the_files_are_those_that_were_sealed(
    stamps: dict[str, Stamp], steps: dict[str, tuple[int, ...]], expected: list[Fault]
) -> None:
    assert faults(step=40, manifest=MANIFEST, stamps=stamps, inner_steps=steps) == expected


def test_a_copy_names_what_it_named_when_it_was_sealed() -> None:
    """After a plan that skips 15 steps, a trainer's own counter says 25 in the checkpoint of step 40."""
    files = (replace(MANIFEST.files[0], step=25), MANIFEST.files[1])
    manifest = replace(MANIFEST, files=files)
    assert faults(step=40, manifest=manifest, stamps=COPIED, inner_steps={"model.bin": (25,)}) == []
    assert faults(step=40, manifest=manifest, stamps=COPIED, inner_steps={"model.bin": (40,)}) == [Fault.NOT_SEALED]
    assert faults(step=40, manifest=manifest, stamps=COPIED) == [Fault.NOT_SEALED]
    alone = replace(MANIFEST, files=(replace(files[0], path="."),))
    there = {".": COPIED["model.bin"]}
    assert faults(step=40, manifest=alone, stamps=there, inner_steps={"model.bin": (25,)}) == []


def test_an_object_is_the_one_that_was_sealed_by_its_etag() -> None:
    item = ManifestFile(path="model.bin", bytes=10, etag="0a1b-3")
    manifest = replace(MANIFEST, files=(item,))
    assert faults(manifest=manifest, stamps={"model.bin": Stamp(10, etag="0a1b-3")}) == []
    assert faults(manifest=manifest, stamps={"model.bin": Stamp(10, etag="ffff-3")}) == [Fault.NOT_SEALED]
    manifest = replace(MANIFEST, files=(replace(item, version="v1"),))
    assert faults(manifest=manifest, stamps={"model.bin": Stamp(10, etag="ffff-3", version="v1")}) == []
    assert faults(manifest=manifest, stamps={"model.bin": Stamp(10, etag="ffff-3")}) == [Fault.NOT_SEALED]


def test_coarse_times_do_not_vouch_for_another_inode() -> None:
    item = ManifestFile(path="model.bin", bytes=10, mtime_ns=1_795_000_000_000_000_000, inode=7)
    manifest = replace(MANIFEST, files=(item,))
    assert faults(manifest=manifest, stamps={"model.bin": Stamp(10, item.mtime_ns, 8)}) == [Fault.NOT_SEALED]


def stamp(age_s: float, changed_s: float | None = None) -> Stamp:
    changed = None if changed_s is None else int((NOW - changed_s) * 1e9)
    return Stamp(10, int((NOW - age_s) * 1e9) | 1, 7, changed_ns=changed)


@pytest.mark.parametrize(
    ("stamps", "is_old"),
    [
        ({".": stamp(-1)}, False),
        ({".": stamp(0.05)}, False),
        ({".": stamp(3600)}, True),
        ({".": stamp(3600, changed_s=0)}, False),  # moved or copied here with its time
        ({"a.bin": stamp(-1), "b.bin": stamp(60)}, True),  # half of it
        ({"a.bin": stamp(-1), "config.json": stamp(60)}, False),  # written once, for all of its checkpoints
        ({"config.json": stamp(60)}, True),
        ({".": Stamp(10, int(NOW - 1) * 1_000_000_000, 7)}, False),  # a file system that keeps whole seconds
    ],
)
def test_what_lies_there_was_written_by_this_save(stamps: dict[str, Stamp], is_old: bool) -> None:
    assert faults(begun_at=NOW, stamps=stamps) == ([Fault.OLD] if is_old else [])


@pytest.mark.parametrize(
    ("inner", "is_other"), [(39, False), (40, False), (41, False), (38, True), (3, True), (60, True)]
)
def test_the_step_inside_is_the_one_that_is_claimed_give_or_take_how_a_script_counts(
    inner: int, is_other: bool
) -> None:
    assert faults(step=40, inner_steps={"ckpt.pt": (inner,)}) == ([Fault.OTHER_STEP] if is_other else [])


def test_nan_storage_classes_and_a_formats_problems_are_told_each_by_its_kind() -> None:
    assert faults(
        problems=["x is missing"], nan="model.pt holds NaN", classes={"a": "DEEP_ARCHIVE", "b": "GLACIER_IR"}
    ) == [
        Fault.ARCHIVED,
        Fault.INCOMPLETE,
        Fault.NAN,
    ]
    assert Fault.NAN not in OF_ANOTHER


def test_a_newer_seal_of_the_same_place_retires_the_older_ones() -> None:
    files = tuple(replace(item, mtime_ns=NOW_NS + 10**9) for item in MANIFEST.files)
    later = replace(MANIFEST, step=60, saved_at=MANIFEST.saved_at + timedelta(minutes=1), files=files)
    again = replace(MANIFEST, step=50, attempt="lm-a2", attempt_number=2, saved_at=MANIFEST.saved_at - timedelta(1))
    again = replace(again, files=tuple(replace(item, mtime_ns=None) for item in MANIFEST.files))
    elsewhere = replace(later, root="/fsx/lm/other")
    assert sealed_since(MANIFEST, [MANIFEST, elsewhere]) is None
    assert sealed_since(MANIFEST, [later, elsewhere]) == 60
    assert sealed_since(later, [MANIFEST]) is None
    beside = replace(later, files=(ManifestFile(path="step-60.bin", bytes=10), MANIFEST.files[1]))
    assert sealed_since(MANIFEST, [beside]) is None, "a folder that holds each step's own files"
    assert sealed_since(later, [again, MANIFEST]) == 50, (
        "a later attempt begins after the earlier one, whatever its clock"
    )
    assert faults(manifest=MANIFEST, sealed_since=60) == [Fault.RETIRED]


@pytest.mark.parametrize("protocol", range(1, 6))
def test_only_the_outermost_dict_of_a_pickle_names_its_step(protocol: int) -> None:
    state = {
        "optimizer": {"state": {0: {"step": 900}}, "global_step": 7},
        "history": [{"step": 4}, ({"step": 5}, None)],
        "step": 41,
        "is_last": True,
        "seen": {1, 2},
        "at": datetime(2026, 1, 1),  # noqa: DTZ001 - something that is rebuilt by a call
        "epoch": 3,
    }
    raw = pickle.dumps(state, protocol)
    assert top_level(raw) == {"step": 41, "epoch": 3}
    assert top_level(b"") == top_level(b"\x80\x04}.") == top_level(raw[:9]) == {}
    whole = io.BytesIO()
    pickle.dump({"step": 41, "w": [0.5] * 10_000}, whole, protocol)
    assert top_level(whole.getvalue()[:20_000]) == {"step": 41}, "also where the rest is not read"
