"""A run whose save functions do not do what they say: ranks as threads of one process, each with a monitor of its own.

Every tensor of step N is full of N, and of each rank of its own, so that a reader of a checkpoint can tell. What was
vouched for is loaded as a resume would load it, with the library that wrote it where there is one.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rekindle.checkpoints.folders import sealed_at
from rekindle.checkpoints.verdict import sealed_since
from rekindle.monitor import Monitor
from rekindle.monitor.saving import measure, seal
from rekindle.protocol.keys import manifest_key, reply_key
from rekindle.protocol.mailbox import ReplyOutcome
from rekindle.protocol.manifests import Manifest, SaveKind
from rekindle.protocol.signals import EventType
from tests.monitor.boxes import PATIENCE_S, QUICK, ObservedBox, start_monitor
from tests.monitor.exchanges import MemoryExchange, Shared

ENV = {"REKINDLE_JOB_ID": "job", "TRAINING_JOB_NAME": "run-1"}
FIRST_STEP = 20  # of the script's own save, which the monitor is not told of
WRONG_BY = 7
NEVER_S = 0.2  # how long is waited for what never comes; what is refused without a wait is refused after one
PAUSE_S = 0.3  # between two saves into the same file: more than a file system's tick


@dataclass(frozen=True)
class Part:
    """What one rank writes. step: as the files name it; value: what the tensors are full of, on rank 0."""

    root: Path
    rank: int
    world: int
    step: int
    value: float
    meet: Callable[[], object] = lambda: None  # all ranks wait for each other

    @property
    def own_value(self) -> float:
        return self.value + self.rank / 16


@dataclass(frozen=True)
class Layout:
    """One format. write: a rank's part, into the folder or file `root`. name: of the root, by step.

    load: by rank, the numbers of its weights; raises where a resume would. own: which files below the root, or `.`, a
    rank writes. tells_step: whether the files themselves say whose step they are.
    """

    name: Callable[[int], str]
    write: Callable[[Part], object]
    load: Callable[[Path, int], list[Any]]
    fixed_name: str  # under which it is saved for all steps
    own: Callable[[str, int], bool] = lambda _, rank: rank == 0
    by_rank: bool = False  # whether each rank writes something
    tells_step: bool = True

    @property
    def is_file(self) -> bool:
        return bool(os.path.splitext(self.name(1))[1])

    def parts(self, root: Path, rank: int) -> list[Path]:
        if root.is_file():
            return [root] if rank == 0 else []
        found = sorted(path for path in root.rglob("*") if path.is_file())
        return [path for path in found if self.own(path.relative_to(root).as_posix(), rank)]


# ---- lies: each is called by all ranks, with (layout, the part that would be true) -----------------------------------

Save = Callable[[Layout, Part], Path]


def true(layout: Layout, part: Part) -> Path:
    layout.write(part)
    part.meet()
    return part.root


def one_name(layout: Layout, part: Part) -> Path:
    return true(layout, _at(part, part.root.with_name(layout.fixed_name)))


def old_file(layout: Layout, part: Part) -> Path:
    """An error was swallowed before anything was written: what is there already is returned."""
    return part.root.with_name(layout.name(FIRST_STEP))


def swallowed_error(layout: Layout, part: Part) -> Path:
    """The disk was full after the first half of the last file of the last rank."""
    root = true(layout, part)
    for path in layout.parts(root, _last(layout, part))[-1:] if part.rank == 0 else ():
        os.truncate(path, path.stat().st_size // 2)
    part.meet()
    return root


def wrong_step(layout: Layout, part: Part) -> Path:
    """The state of some steps ago, written afresh under this step's name."""
    layout.write(_with(part, step=part.step - WRONG_BY, value=part.value - WRONG_BY))
    part.meet()
    return part.root


def nan(layout: Layout, part: Part) -> Path:
    layout.write(_with(part, step=part.step, value=float("nan")))
    part.meet()
    return part.root


def half_old(layout: Layout, part: Part) -> Path:
    """One folder for all steps; of this one only the first rank's part, or half of its files, were written."""
    root = part.root.with_name(layout.fixed_name)
    aside = true(layout, part)
    if part.rank == 0:
        new = layout.parts(aside, 0)
        for path in new if part.world > 1 and layout.parts(aside, 1) else new[len(new) - len(new) // 2 :]:
            shutil.copyfile(path, root / path.relative_to(aside))
    part.meet()
    return root


def first_lost(layout: Layout, part: Part) -> Path:
    """Of the files of a folder the first is not there."""
    root = true(layout, part)
    for path in layout.parts(root, 0)[:1] if part.rank == 0 else ():
        path.unlink()
    part.meet()
    return root


def another_missing(layout: Layout, part: Part) -> Path:
    """The last rank's part is never there."""
    root = true(layout, part)
    for path in layout.parts(root, part.world - 1) if part.rank == part.world - 1 else ():
        path.unlink()
    part.meet()
    return root


def nothing(layout: Layout, part: Part) -> Path:
    return part.root


def late(layout: Layout, part: Part) -> Path:
    """The last rank's files appear after the function has returned."""
    return _in_a_thread(layout, part, pieces=1)


def still_writing(layout: Layout, part: Part) -> Path:
    """A thread goes on writing them, piece by piece."""
    return _in_a_thread(layout, part, pieces=3)


def _in_a_thread(layout: Layout, part: Part, pieces: int) -> Path:
    root = true(layout, part)
    aside = root.with_name(f"{root.name}-aside")
    if part.rank != _last(layout, part):
        part.meet()
        return root
    moved = []
    for path in layout.parts(root, part.rank):
        hidden = aside / path.relative_to(root) if path != root else aside
        hidden.parent.mkdir(parents=True, exist_ok=True)
        moved.append((path.rename(hidden), path))

    def bring() -> None:
        for hidden, path in moved:
            body = hidden.read_bytes()
            with path.open("wb") as file:
                for number in range(pieces):
                    threading.Event().wait(0.15)
                    file.write(body[len(body) * number // pieces : len(body) * (number + 1) // pieces])
                    file.flush()

    threading.Thread(target=bring).start()
    part.meet()
    return root


def _last(layout: Layout, part: Part) -> int:
    """The last rank that writes anything."""
    root = part.root
    return max((rank for rank in range(part.world) if layout.parts(root, rank)), default=0)


def _at(part: Part, root: Path) -> Part:
    return Part(root, part.rank, part.world, part.step, part.value, part.meet)


def _with(part: Part, *, step: int, value: float) -> Part:
    return Part(part.root, part.rank, part.world, step, value, part.meet)


LIES: Mapping[str, Save] = {
    "an old file": old_file,
    "a swallowed error": swallowed_error,
    "a wrong step": wrong_step,
    "NaN": nan,
    "half old": half_old,
    "the first file lost": first_lost,
    "another rank's missing": another_missing,
    "nothing": nothing,
}
TRUTHS: Mapping[str, Save] = {
    "true": true,
    "one name for all steps": one_name,
    "late": late,
    "still writing in a thread": still_writing,
}
SAVES = LIES | TRUTHS


def saves_of(layout: Layout, world: int) -> list[str]:
    """Those that can be told from what is true, in this layout."""
    left_out = set()
    if not layout.tells_step:
        left_out.add("a wrong step")
    if layout.is_file:
        left_out.add("half old")
    if world == 1 or not layout.by_rank:
        left_out.add("another rank's missing")
    return [name for name in SAVES if name not in left_out]


# ---- the run ---------------------------------------------------------------------------------------------------------


@dataclass
class Gang:
    """A run of `world` ranks; each steps when all have. `order` is done by all ranks after the next step."""

    home: Path
    layout: Layout
    world: int
    lie: Save = true
    place: Path = Path()
    step: int = FIRST_STEP
    failed: set[int] = field(default_factory=set)  # steps whose saves were reported
    broken: list[BaseException] = field(default_factory=list)
    _order: Callable[[int], object] | None = None
    _current: Callable[[int], object] | None = None
    _is_done: threading.Event = field(default_factory=threading.Event)
    _is_begun: threading.Event = field(default_factory=threading.Event)
    _is_over: bool = False

    def __post_init__(self) -> None:
        self.box = ObservedBox(self.home / "mailbox")
        shared = Shared()
        self._each_step = threading.Barrier(self.world, action=self._next)
        self._in_save = threading.Barrier(self.world)
        # Before the monitors, as the thread of a script: one that begins later might be a save's.
        self._threads = [threading.Thread(target=self._train, args=(rank,), daemon=True) for rank in range(self.world)]
        for thread in self._threads:
            thread.start()
        self.monitors: list[Monitor] = [
            start_monitor(
                save=partial(self._save, rank),
                mailbox=self.box,
                config=QUICK,
                env=ENV,
                rank=rank,
                world_size=self.world,
                exchange=lambda: MemoryExchange(shared),
                signals=("TERM",) if rank == 0 else (),
                on_event=self._heard,
                required=True,
            )
            for rank in range(self.world)
        ]
        self._is_begun.set()

    def end(self) -> None:
        self._is_over = True
        for thread in self._threads:
            thread.join(PATIENCE_S)
        for monitor in reversed(self.monitors):
            monitor.finish(timeout_s=PATIENCE_S)
        assert not any(thread.is_alive() for thread in self._threads)
        assert not self.broken, self.broken

    def _heard(self, what: str, detail: Mapping[str, Any]) -> None:
        if what == EventType.SAVE_FAILED:
            self.failed.add(detail["step"])

    def _next(self) -> None:
        """Between two steps of all ranks."""
        if self._current is not None:
            self._is_done.set()
        self._current, self._order = self._order, None
        self.step += 1

    def _train(self, rank: int) -> None:
        self._is_begun.wait(PATIENCE_S)
        pause, monitor = threading.Event(), self.monitors[rank]
        try:
            while True:
                self._each_step.wait(PATIENCE_S)
                if rank == 0 and (self._is_over or monitor.should_stop):
                    self._each_step.abort()
                    return
                monitor.step(self.step, loss=1.0)
                if self._current is not None:
                    self._current(rank)
                pause.wait(0.002)
        except threading.BrokenBarrierError:
            return
        except BaseException as err:
            self.broken.append(err)
            self._each_step.abort()

    def do(self, order: Callable[[int], object]) -> None:
        """Have all ranks do it after the same step, and wait until they have."""
        self._is_done.clear()
        self._order = order
        assert self._is_done.wait(PATIENCE_S), self.broken

    def part(self, rank: int, step: int) -> Part:
        meet = partial(self._in_save.wait, PATIENCE_S)
        return Part(self.place / self.layout.name(step), rank, self.world, step, float(step), meet)

    def _save(self, rank: int, step: int, _: str) -> Path:
        return self.lie(self.layout, self.part(rank, step))

    # ---- what a test does with it ------------------------------------------------------------------------------------

    def prepare(self, places: list[Path]) -> None:
        """The script has saved there before, as is true, each under its step's name and under the one for all."""

        def save(rank: int) -> None:
            for place in places:
                self._in_save.wait(PATIENCE_S)
                self.place = place
                self._in_save.wait(PATIENCE_S)
                for save in (true, one_name):
                    save(self.layout, self.part(rank, FIRST_STEP))

        self.do(save)
        threading.Event().wait(PAUSE_S)

    def periodic(self) -> int:
        """The script saves by itself. Returns the step, once it is sealed or reported."""
        saved: list[int] = []

        def save(rank: int) -> None:
            step = self.step
            path = self.lie(self.layout, self.part(rank, step))
            saved.append(step)
            self.monitors[rank].saved(path, step, by_all_ranks=True)

        self.do(save)
        self.until(lambda: self.manifest(saved[0]) is not None or saved[0] in self.failed)
        return saved[0]

    def emergency(self, name: str) -> tuple[int | None, ReplyOutcome]:
        """The service asks."""
        self.box.ask(name, "run-1", within_s=PATIENCE_S)
        self.until(lambda: self.box.get(reply_key(name)) is not None)
        reply = self.box.reply(name)
        return reply.step, reply.outcome

    def sigterm(self) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        for thread in self._threads:
            thread.join(PATIENCE_S)
        assert not any(thread.is_alive() for thread in self._threads), "the run does not stop"
        self.end()

    def until(self, is_so: Callable[[], bool]) -> None:
        pause = threading.Event()
        for _ in range(int(PATIENCE_S / 0.005)):
            if is_so():
                return
            assert not self.broken, self.broken
            pause.wait(0.005)
        pytest.fail(f"it never came to be so: {self.lie.__name__} at step {self.step}, sealed {self.box.manifests}")

    def manifest(self, step: int) -> Manifest | None:
        raw = self.box.get(manifest_key(step, "run-1"))
        return None if raw is None else Manifest.from_json(raw)

    @property
    def manifests(self) -> list[Manifest]:
        return [self.box.manifest(key) for key in dict.fromkeys(self.box.manifests)]

    def wrong_with(self, manifest: Manifest) -> str:
        """What a resume finds that was told that this is the checkpoint of its step; empty where it is."""
        root = Path(manifest.root)
        refused = sealed_at(manifest, root, since=sealed_since(manifest, self.manifests), looks_inside=True)
        if refused:
            return f"a start refuses it: {refused}"
        try:
            loaded = self.layout.load(root, self.world)
        except Exception as err:
            return f"it cannot be loaded: {err!r}"
        for rank, numbers in enumerate(loaded):
            found = {round(float(number), 3) for number in numbers}
            if found != {round(manifest.step + rank / 16, 3)}:
                return f"it holds {found} of rank {rank}"
        return ""


@contextlib.contextmanager
def gang(home: Path, layout: Layout, world: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gang]:
    monkeypatch.setattr(seal, "SETTLING_S", 0.05)
    monkeypatch.setattr(measure, "SETTLE_S", 0.03)
    home.mkdir(parents=True, exist_ok=True)
    run = Gang(home, layout, world)
    try:
        yield run
    finally:
        run.end()


def wait_for(save: Save, monkeypatch: pytest.MonkeyPatch) -> None:
    """How long the seal waits for files that are not there: for ever, where they come in the end."""
    wait_s = NEVER_S if save in LIES.values() else PATIENCE_S
    monkeypatch.setattr(seal.Sealer, "_wait_s", lambda *_: wait_s)  # whatever a request's own deadline is


def played(home: Path, layout: Layout, world: int, kind: SaveKind, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """All saves of a layout in one run. Returns what is wrong."""
    names = saves_of(layout, world)
    places = [home / "checkpoints" / name.replace(" ", "-") for name in names]
    wrong = []
    with gang(home, layout, world, monkeypatch) as run:
        run.prepare(places)
        for number, (name, run.place) in enumerate(zip(names, places, strict=True)):
            run.lie = SAVES[name]
            wait_for(run.lie, monkeypatch)
            first = _saved(run, kind, f"r{number}")
            wrong += [f"{name}: {what}" for what in _judged(run, name, first)]
            if run.lie is one_name and first is not None:
                threading.Event().wait(PAUSE_S)
                wrong += [
                    f"{name}, again: {what}" for what in _judged(run, name, _saved(run, kind, f"r{number}-again"))
                ]
                if not run.wrong_with(first):
                    wrong.append(f"{name}: step {first.step} is still vouched for, whose file was written over")
    return wrong


def _saved(run: Gang, kind: SaveKind, request: str) -> Manifest | None:
    if kind is SaveKind.PERIODIC:
        return run.manifest(run.periodic())
    step, outcome = run.emergency(request)
    manifest = None if step is None else run.manifest(step)
    assert (outcome is ReplyOutcome.SAVED) is (manifest is not None), "the answer says what was sealed"
    return manifest


def stopped(home: Path, layout: Layout, world: int, name: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """One save of a run that ends by SIGTERM. Returns what is wrong."""
    taken: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: taken.append(number))  # the test outlives it
    try:
        with gang(home, layout, world, monkeypatch) as run:
            place = home / "checkpoints"
            run.prepare([place])
            run.lie, run.place = SAVES[name], place
            wait_for(run.lie, monkeypatch)
            run.sigterm()
            assert taken == [signal.SIGTERM]
            assert len(run.manifests) <= 1
            return _judged(run, name, next(iter(run.manifests), None))
    finally:
        signal.signal(signal.SIGTERM, before)


def wrongly_stopped(home: Path, layout: Layout, world: int, monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """What is wrong with the save of a SIGTERM, by each kind of save of the layout where anything is."""
    found = {
        save: stopped(home / str(number), layout, world, save, monkeypatch)
        for number, save in enumerate(saves_of(layout, world))
    }
    return {save: what for save, what in found.items() if what}


def _judged(run: Gang, name: str, manifest: Manifest | None) -> list[str]:
    if manifest is None:
        return ["refused"] if name in TRUTHS else []
    found = run.wrong_with(manifest)
    if name in LIES:
        return [f"vouched for ({found or 'and found right, so that it is no lie'})"]
    return [f"vouched for, and {found}"] if found else []
