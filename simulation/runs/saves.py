"""What an attempt saves: whole or torn, poisoned or not, sealed by its monitor or left as a plain file."""

from __future__ import annotations

import io
import zipfile
from dataclasses import replace
from datetime import timedelta
from typing import Final

from localcloud.aws.clock import Clock
from rekindle.protocol.keys import manifest_key
from rekindle.protocol.manifests import Manifest, SaveKind
from rekindle.protocol.wire import Place
from simulation.cloud.store import MemoryObjects
from simulation.runs.monitor import Monitor, prefix_of, run_mailbox
from simulation.runs.truth import Attempt, Saved, TrueRun
from simulation.stories.story import Trouble


class Saves:
    """Writes checkpoints, and keeps what is true of them."""

    def __init__(self, clock: Clock, objects: MemoryObjects, monitor: Monitor) -> None:
        self._clock = clock
        self._objects = objects
        self._monitor = monitor

    def save(self, attempt: Attempt, step: int, kind: SaveKind, request_id: str | None) -> Manifest | None:
        run, now = attempt.run, self._clock.now()
        if not self._monitor.may_write(attempt):
            return None
        torn = self._next_save_is(attempt, "torn_save", step)
        flipped = self._next_save_is(attempt, "flipped_save", step)
        poisoned = attempt.is_poisoned and attempt.bad_update is not None and step >= attempt.bad_update
        saved = Saved(
            step=step,
            root=f"{run_mailbox(run)}/step-{step}.pt",
            attempt=attempt.name,
            at=now,
            is_poisoned=poisoned or flipped,
            is_whole=not torn,
            looks_poisoned=False,
            is_spiking=attempt.spikes_on and attempt.collapsed_at is None,
            life=attempt.life,
        )
        if run.spec.watch != "monitor":
            body = _SNAPSHOT[: len(_SNAPSHOT) // 2] if torn else _SNAPSHOT
            self._objects.put(f"{prefix_of(run)}/step-{step}.pt", body)
            run.saved = [*(save for save in run.saved if save.root != saved.root), saved]
            return None
        looks_poisoned = attempt.first_bad_loss is not None and step >= attempt.first_bad_loss
        manifest = self._monitor.seal(attempt, step, kind, request_id, is_poisoned=looks_poisoned, is_torn=torn)
        root = manifest.root
        run.saved.append(replace(saved, root=root, looks_poisoned=looks_poisoned))
        if run.spec.keeps is not None and kind is SaveKind.PERIODIC:
            self._remove(run, [save for save in run.saved if save.attempt == attempt.name][: -run.spec.keeps])
        return manifest

    def another_experiment_saves(self, run: TrueRun, step: int, *, is_sealed: bool, ago: timedelta) -> None:
        """Under the run's own root, whole: nothing of it is the run's."""
        if is_sealed:
            self._monitor.seal_foreign(run, step, ago)
        else:
            self._objects.put(f"{prefix_of(run)}/step-{step}.pt", _SNAPSHOT, ago=ago)
            run.foreign_files[f"{run_mailbox(run)}/step-{step}.pt"] = (step, bool(ago))

    def delete(self, run: TrueRun, most: int | None) -> None:
        """The newest `most` of them, or all, are gone: their files and what seals them, as where a rule of the bucket's
        or a person made room.
        """
        self._remove(run, run.saved if most is None else run.saved[-most:])

    @staticmethod
    def has_gained(attempt: Attempt) -> bool:
        """Its newest life has left a good checkpoint beyond all those before it."""
        own = [save for save in attempt.run.saved if (save.attempt, save.life) == (attempt.name, attempt.life)]
        before = max((save.step for save in attempt.run.saved if save.is_good and save not in own), default=0)
        return any(save.is_good and save.step > before for save in own)

    def _remove(self, run: TrueRun, gone: list[Saved]) -> None:
        for save in gone:
            place = Place.parse(save.root).path
            sealed = f"{prefix_of(run)}/{manifest_key(save.step, save.attempt, save.life)}"
            for key in (place, *self._objects.keys(f"{place}/"), sealed):
                self._objects.remove(key)
        run.saved = [save for save in run.saved if save not in gone]

    def _next_save_is(self, attempt: Attempt, kind: str, step: int) -> bool:
        for trouble in attempt.run.spec.troubles:
            if trouble.kind == kind and trouble.step <= step and may_strike(attempt, trouble):
                count_strike(attempt, trouble)
                return True
        return False


def count_strike(attempt: Attempt, trouble: Trouble) -> None:
    """Once more, and this attempt for good."""
    attempt.run.struck[trouble] = attempt.run.struck.get(trouble, 0) + 1
    attempt.struck.add(trouble)


def may_strike(attempt: Attempt, trouble: Trouble) -> bool:
    """It has not struck often enough yet, nor this attempt, and the attempt does not leave its data out."""
    if trouble in attempt.struck or attempt.run.struck.get(trouble, 0) >= trouble.hits:
        return False
    return not (trouble.in_data and attempt.plan.should_skip(trouble.step))


def _snapshot() -> bytes:
    """A small file in the form of torch.save's: what the service's verifier opens."""
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w") as archive:
        archive.writestr("archive/data.pkl", b"\x80\x02}q\x00.")
        archive.writestr("archive/version", b"3\n")
    return held.getvalue()


_SNAPSHOT: Final = _snapshot()
