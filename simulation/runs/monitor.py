"""An attempt's monitor, as far as others see it: heartbeat, reports, replies, manifests, events.

It writes with the one definition of the mailbox's format, and by the rules of `rekindle.monitor`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Final

from localcloud.aws.clock import Clock
from localcloud.platforms.simulated_trouble import Fault, ranks_reports, reply_to
from rekindle.protocol.keys import fence_key, heartbeat_key, reply_key
from rekindle.protocol.launch_orders import ENV_JOB_ID
from rekindle.protocol.lives import Claim, Standing, named
from rekindle.protocol.mailbox import CheckpointRequest, Fence, Heartbeat, LossState, ReplyOutcome
from rekindle.protocol.manifests import Manifest, ManifestFile, SaveKind
from rekindle.protocol.reports import ReportKind
from rekindle.protocol.wire import Place
from simulation.cloud.store import MemoryObjects
from simulation.runs.truth import Attempt, TrueRun

SAVING: Final = timedelta(seconds=8)
HEARTBEAT_S: Final = 15.0
ANOTHER: Final = "another-experiment"
_WEIGHTS: Final = b"weights!"

Push = Callable[[str, dict[str, Any]], None]
"""Called with a detail-type and a detail: what a monitor sends to the bus."""


class Monitor:
    """All attempts' monitors. `seen_at` says as of when a run's heartbeat is shown, None where it cannot be found;
    `lost` whether the report of a run's attempt and rank never appears; `torn` whether only half of a run's heartbeat
    can be read.
    """

    def __init__(
        self,
        *,
        clock: Clock,
        objects: MemoryObjects,
        push: Push,
        seen_at: Callable[[str, datetime], datetime | None],
        lost: Callable[[str, str, int], bool],
        torn: Callable[[str], bool],
    ) -> None:
        self._clock = clock
        self._objects = objects
        self._push_out = push
        self._seen_at = seen_at
        self._lost = lost
        self._torn = torn

    def claim(self, attempt: Attempt) -> None:
        """Rank 0 of the attempt's newest life holds the run."""
        claim = Claim(
            job_id=job_id_of(attempt),
            attempt=attempt.name,
            life=attempt.life,
            rank=0,
            standing=Standing.HELD,
            process=f"{attempt.name} {attempt.life}",
            at=self._host_time(attempt.run),
        )
        self._objects.put(f"{prefix_of(attempt.run)}/{claim.key}", claim.to_json())

    def begin(self, attempt: Attempt) -> None:
        """Its heartbeat can be read from the first step on."""
        self._objects.living[f"{prefix_of(attempt.run)}/{heartbeat_key(attempt.name)}"] = lambda: self.heartbeat(
            attempt
        )

    def seal(
        self, attempt: Attempt, step: int, kind: SaveKind, request_id: str | None, *, is_poisoned: bool, is_torn: bool
    ) -> Manifest:
        """Write a checkpoint and the manifest that seals it. A torn one lacks bytes that the manifest names."""
        root = f"{run_mailbox(attempt.run)}/checkpoints/step-{step}-{named(attempt.name, attempt.life)}"
        if attempt.run.spec.own_folder:
            root = f"s3://mail/outputs/{attempt.run.name}/{attempt.name}/step-{step}"
        manifest = Manifest(
            job_id=job_id_of(attempt),
            attempt=attempt.name,
            attempt_number=attempt.number,
            life=attempt.life,
            step=step,
            kind=kind,
            root=root,
            files=(ManifestFile(path="model.bin", bytes=len(_WEIGHTS)),),
            world_size=attempt.world_size,
            saved_at=self._host_time(attempt.run),
            request_id=request_id,
            loss=None if is_poisoned else 2.0,
            poisoned=is_poisoned,
        )
        self._objects.put(f"{Place.parse(root).path}/model.bin", _WEIGHTS[:-3] if is_torn else _WEIGHTS)
        self._objects.put(f"{prefix_of(attempt.run)}/{manifest.key}", manifest.to_json())
        return manifest

    def seal_foreign(self, run: TrueRun, step: int, ago: timedelta) -> None:
        """Another experiment's monitor, which was given the run's mailbox, seals a checkpoint."""
        root = f"{run_mailbox(run)}/checkpoints/step-{step}-{ANOTHER}"
        manifest = Manifest(
            job_id=ANOTHER,
            attempt=ANOTHER,
            attempt_number=1,
            step=step,
            kind=SaveKind.PERIODIC,
            root=root,
            files=(ManifestFile(path="model.bin", bytes=len(_WEIGHTS)),),
            world_size=8,
            saved_at=self._host_time(run) - ago,
            loss=2.0,
        )
        self._objects.put(f"{Place.parse(root).path}/model.bin", _WEIGHTS, ago=ago)
        self._objects.put(f"{prefix_of(run)}/{manifest.key}", manifest.to_json(), ago=ago)

    def heartbeat(self, attempt: Attempt) -> tuple[bytes, datetime] | None:
        """As it is shown now, and when it was written; None while there is none."""
        began_at = attempt.trains_since
        seen_at = self._seen_at(attempt.run.name, self._clock.now())
        if began_at is None or seen_at is None or seen_at < began_at:
            return None
        seen_at = seen_at if attempt.job.ended_at is None else min(seen_at, attempt.job.ended_at)
        stretch = attempt.at(seen_at)
        seen_at = stretch.at if stretch is not None and stretch.is_mute else seen_at  # nothing is written meanwhile
        written_at = began_at + timedelta(seconds=(seen_at - began_at).total_seconds() // HEARTBEAT_S * HEARTBEAT_S)
        written_at = max((written_at, *(at for at in attempt.reported_at if at <= seen_at)))  # with each event, at once
        stretch = attempt.at(written_at)
        if stretch is None:
            return None
        step = attempt.step_at(written_at)
        has_step = step >= stretch.first_step
        heartbeat = Heartbeat(
            job_id=job_id_of(attempt),
            attempt=attempt.name,
            attempt_number=attempt.number,
            life=stretch.life,
            step=step if has_step else None,
            first_step=stretch.first_step if has_step else None,
            loss=2.0 if stretch.loss is LossState.FINITE and has_step else None,
            loss_state=stretch.loss if has_step else LossState.NONE,
            phase=stretch.phase,
            step_s_median=attempt.run.spec.step_s * stretch.pace,
            rank=0,
            world_size=attempt.world_size,
            at=written_at + timedelta(seconds=attempt.run.spec.skew_s),
            loss_health=stretch.health,
            onset_step=stretch.onset,
            healed_step=stretch.healed,
            judged_step=step if has_step else None,
        )
        body = heartbeat.to_json()
        return body[: len(body) // 2] if self._torn(attempt.run.name) else body, written_at

    def report(self, attempt: Attempt, kind: ReportKind, step: int, *, silent_s: float | None = None) -> None:
        """Each rank's own report."""
        if attempt.run.spec.watch != "monitor":
            return
        hosts = tuple(host for host in _hosts(attempt) for _ in range(attempt.run.spec.ranks))
        fault = Fault(kind="freeze", step=step, rank=None)
        job_id = job_id_of(attempt)
        at = self._host_time(attempt.run)
        for report in ranks_reports(
            kind, fault, job_id=job_id, attempt=attempt.name, hosts=hosts, step=step, at=at, silent_s=silent_s
        ):
            is_mute = report.rank // attempt.run.spec.ranks in attempt.mute
            if not (is_mute or self._lost(attempt.run.name, attempt.name, report.rank)):
                report = replace(report, life=attempt.life)
                self._objects.put(f"{prefix_of(attempt.run)}/{report.key}", report.to_json())

    def push_loss(self, attempt: Attempt, name: str, detail: dict[str, Any], *, rule: bool) -> None:
        """News of the loss; `rule`: with the figures of a detector that has a rule for it."""
        figures = {"loss": 9.0, "baseline": 2.0, "rule": "as the story has it"} if rule else {"loss": 2.0}
        self.push(attempt, name, detail | figures)

    def push(self, attempt: Attempt, detail_type: str, more: dict[str, Any]) -> None:
        """Send an event with the fields that every event has, and `more`."""
        if attempt.run.spec.watch != "monitor":
            return
        attempt.reported_at.append(self._clock.now())
        step = attempt.step_at(self._clock.now())
        detail = {
            "v": 1,
            "job_id": job_id_of(attempt),
            "attempt": attempt.name,
            "attempt_number": attempt.number,
            "rank": 0,
            "world_size": attempt.world_size,
            "life": attempt.life,
            "step": step if step >= attempt.first_step else None,
            "at": self._host_time(attempt.run).isoformat(),
        }
        self._push_out(detail_type, detail | more)

    def reply(
        self, attempt: Attempt, request: CheckpointRequest, outcome: ReplyOutcome, why: str, manifest: Manifest | None
    ) -> None:
        """Answer a request, in the mailbox and on the bus."""
        reply = reply_to(
            request,
            outcome,
            why,
            manifest,
            job_id=job_id_of(attempt),
            attempt=attempt.name,
            at=self._host_time(attempt.run),
            save=SAVING,
        )
        self._objects.put(f"{prefix_of(attempt.run)}/{reply_key(request.request_id)}", reply.to_json())
        self.push(attempt, "Rekindle Checkpoint Reply", {"reply": json.loads(reply.to_json())})

    def may_write(self, attempt: Attempt) -> bool:
        """The fence admits it."""
        found = self._objects.get(f"{prefix_of(attempt.run)}/{fence_key()}")
        fence = None if found is None else Fence.from_json(found.body)
        is_its = fence is not None and fence.job_id == job_id_of(attempt)  # as rekindle.monitor.mail.requests has it
        return fence is None or not is_its or fence.admits(attempt.name, attempt.number)

    def _host_time(self, run: TrueRun) -> datetime:
        return self._clock.now() + timedelta(seconds=run.spec.skew_s)

    def push_collapse(self, attempt: Attempt, first: int) -> None:
        """The gradient scale has collapsed, as rekindle.monitor.loss.scaler has it."""
        detail = {"loss_state": "inf", "metric": "gradient scale", "own": False, "alone": None, "step": first}
        self.push(attempt, "Rekindle Non-Finite Loss", detail)

    def push_bad(self, attempt: Attempt, first_bad: int) -> None:
        """Losses stay not finite since that step: reported once."""
        if attempt.has_pushed_bad:
            return
        attempt.has_pushed_bad = True
        detail = {"loss_state": "nan", "metric": "loss", "own": False, "alone": None, "step": first_bad}
        self.push(attempt, "Rekindle Non-Finite Loss", detail)
        self.report(attempt, ReportKind.NON_FINITE, first_bad)


def _hosts(attempt: Attempt) -> tuple[str, ...]:
    """As its ranks call their machines."""
    if attempt.nodes:
        return tuple(node.name for node in attempt.nodes)
    return tuple(f"{attempt.name}-algo-{number + 1}" for number in range(attempt.job.instance_count))


def job_id_of(attempt: Attempt) -> str:
    """The Job's id as the training process knows it."""
    return attempt.job.environment.get(ENV_JOB_ID) or attempt.name


def run_mailbox(run: TrueRun) -> str:
    """Where the run's mailbox is."""
    return f"s3://mail/{prefix_of(run)}"


def prefix_of(run: TrueRun) -> str:
    """The keys of its mailbox begin with it; other runs may have the same."""
    return f"jobs/{run.spec.place or run.name}"
