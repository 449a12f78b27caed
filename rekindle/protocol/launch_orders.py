"""What a new attempt is given: the environment variables of its container, made by the service, read by the monitor.

A job that Slurm starts again keeps the environment of its submission, so the same order also travels as a message in
the mailbox (`Plan`). Standard library only.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, ClassVar, Final, cast

from rekindle.compat import Self
from rekindle.protocol.bounds import Count, Identity, Items, PlaceUri, Via, Whole, Words
from rekindle.protocol.codec import read
from rekindle.protocol.message import Message
from rekindle.protocol.wire import MAX_STEP, MailboxError, Place, check_id, parse_json

MAX_WINDOWS: Final = 1000
MAX_ENV_CHARS: Final = 512  # Source: botocore sagemaker TrainingEnvironmentValue, max 512

ENV_JOB_ID: Final = "REKINDLE_JOB_ID"
ENV_ATTEMPT: Final = "REKINDLE_ATTEMPT"
ENV_MAILBOX: Final = "REKINDLE_MAILBOX"
ENV_BUS: Final = "REKINDLE_BUS"
ENV_RESUME_STEP: Final = "REKINDLE_RESUME_STEP"
ENV_RESUME_URI: Final = "REKINDLE_RESUME_URI"
ENV_RESUME_MANIFEST: Final = "REKINDLE_RESUME_MANIFEST"
ENV_SKIP: Final = "REKINDLE_SKIP"
ENV_INCIDENT: Final = "REKINDLE_INCIDENT"
ENV_ATTEMPT_NAME: Final = "TRAINING_JOB_NAME"  # set by SageMaker itself; Source: sagemaker-training-toolkit
# Where the container's own checkpoint folder appears (SageMaker's CheckpointConfig); optional. With both set, manifests
# name the URI, and the monitor turns a resume URI back into the local path.
ENV_CHECKPOINT_DIR: Final = "REKINDLE_CHECKPOINT_DIR"
ENV_CHECKPOINT_URI: Final = "REKINDLE_CHECKPOINT_URI"
ENV_NAMES: Final = (
    ENV_JOB_ID,
    ENV_ATTEMPT,
    ENV_MAILBOX,
    ENV_BUS,
    ENV_RESUME_STEP,
    ENV_RESUME_URI,
    ENV_RESUME_MANIFEST,
    ENV_SKIP,
    ENV_INCIDENT,
)


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class SkipWindow:
    """Batches `from_step` (in) to `to_step` (out), numbered by the step that would have used them."""

    wire_row: ClassVar[bool] = True

    from_step: Count
    to_step: Count

    def __contains__(self, step: int) -> bool:
        return self.from_step <= step < self.to_step

    def check_fields(self) -> None:
        """Raises: MailboxError for a window without a step."""
        if self.from_step >= self.to_step:
            raise MailboxError("", "must be [from_step, to_step] with from_step < to_step")


def merge_windows(windows: Sequence[SkipWindow]) -> tuple[SkipWindow, ...]:
    """The same steps in the fewest windows, in order."""
    merged: list[SkipWindow] = []
    for window in sorted(windows):
        if merged and window.from_step <= merged[-1].to_step:
            last = merged.pop()
            window = SkipWindow(from_step=last.from_step, to_step=max(last.to_step, window.to_step))
        merged.append(window)
    return tuple(merged)


_Windows = Annotated[tuple[SkipWindow, ...], Items(MAX_WINDOWS)]
SkipWindows = Annotated[tuple[SkipWindow, ...], Via(_Windows, read=merge_windows, write=merge_windows)]


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumePlan:
    """A new attempt's resume point: after `step`, from the checkpoint at `uri`, leaving out the `skip` windows.

    `step` and `uri` are None for an attempt that starts from nothing. What the manifest says of the data, which a start
    adds and no environment holds: by how many ranks the checkpoint was saved (`world_size`), and the `samples` that all
    of its steps had used, and each of them.
    """

    step: int | None = None
    uri: str | None = None
    manifest_uri: str | None = None
    skip: tuple[SkipWindow, ...] = ()
    world_size: int | None = None
    samples: int | None = None
    samples_per_step: int | None = None

    def should_skip(self, step: int) -> bool:
        return any(step in window for window in self.skip)

    def to_env(self) -> dict[str, str]:
        """Raises: MailboxError where a value is longer than a training container's environment may hold."""
        env = {
            ENV_SKIP: json.dumps([[w.from_step, w.to_step] for w in merge_windows(self.skip)], separators=(",", ":"))
        }
        if self.step is not None:
            env[ENV_RESUME_STEP] = str(self.step)
        if self.uri is not None:
            env[ENV_RESUME_URI] = self.uri
        if self.manifest_uri is not None:
            env[ENV_RESUME_MANIFEST] = self.manifest_uri
        return _fitting(env)

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> ResumePlan:
        """Raises: MailboxError naming the variable. A wrong plan is never read as "start from nothing"."""
        uri, manifest_uri = env.get(ENV_RESUME_URI) or None, env.get(ENV_RESUME_MANIFEST) or None
        for name, value in ((ENV_RESUME_URI, uri), (ENV_RESUME_MANIFEST, manifest_uri)):
            if value is not None:
                Place.parse(value, name)
        return cls(
            step=_env_whole(env, ENV_RESUME_STEP),
            uri=uri,
            manifest_uri=manifest_uri,
            skip=_env_skip(env.get(ENV_SKIP) or "[]"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptOrder:
    """All that the service tells a new attempt through its environment."""

    job_id: str
    attempt_number: int
    mailbox: str | None = None
    bus: str | None = None
    incident_id: str | None = None
    resume: ResumePlan = field(default_factory=ResumePlan)

    def to_env(self) -> dict[str, str]:
        """Raises: MailboxError for a bad id, or a value that does not fit."""
        optional = {ENV_MAILBOX: self.mailbox, ENV_BUS: self.bus, ENV_INCIDENT: self.incident_id}
        env = {name: value for name, value in optional.items() if value is not None}
        env |= {ENV_JOB_ID: check_id(self.job_id, ENV_JOB_ID), ENV_ATTEMPT: str(self.attempt_number)}
        return _fitting(env) | self.resume.to_env()

    def apply(self, env: Mapping[str, str]) -> dict[str, str]:
        """`env` with this order in it and nothing left of the order before it."""
        return {name: value for name, value in env.items() if name not in ENV_NAMES} | self.to_env()

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> AttemptOrder:
        """Raises: MailboxError naming the variable."""
        incident = env.get(ENV_INCIDENT) or None
        mailbox = env.get(ENV_MAILBOX) or None
        if mailbox is not None:
            Place.parse(mailbox, ENV_MAILBOX)
        return cls(
            job_id=check_id(env.get(ENV_JOB_ID), ENV_JOB_ID),
            attempt_number=_env_whole(env, ENV_ATTEMPT) or 1,
            mailbox=mailbox,
            bus=env.get(ENV_BUS) or None,
            incident_id=check_id(incident, ENV_INCIDENT) if incident is not None else None,
            resume=ResumePlan.from_env(env),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(Message):
    """An `AttemptOrder` in the mailbox, under the name of the attempt that it is for.

    Written before that attempt is started. It is the only way to tell a requeued Slurm job anything: such a job has
    the environment of its submission, whose resume point is that of an earlier start.
    """

    attempt: Identity
    job_id: Identity
    attempt_number: Annotated[int, Whole(1)]
    mailbox: PlaceUri | None = None
    bus: Words | None = None
    incident_id: Identity | None = None
    step: Count | None = None
    uri: PlaceUri | None = None
    manifest_uri: PlaceUri | None = None
    skip: SkipWindows
    written_at: datetime

    @classmethod
    def of(cls, *, attempt: str, order: AttemptOrder, written_at: datetime) -> Self:
        """The plan that tells `attempt` the order."""
        return cls(
            attempt=attempt,
            job_id=order.job_id,
            attempt_number=order.attempt_number,
            mailbox=order.mailbox,
            bus=order.bus,
            incident_id=order.incident_id,
            step=order.resume.step,
            uri=order.resume.uri,
            manifest_uri=order.resume.manifest_uri,
            skip=order.resume.skip,
            written_at=written_at,
        )

    @property
    def order(self) -> AttemptOrder:
        """The order that it carries."""
        return AttemptOrder(
            job_id=self.job_id,
            attempt_number=self.attempt_number,
            mailbox=self.mailbox,
            bus=self.bus,
            incident_id=self.incident_id,
            resume=ResumePlan(step=self.step, uri=self.uri, manifest_uri=self.manifest_uri, skip=self.skip),
        )


def _fitting(env: dict[str, str]) -> dict[str, str]:
    for name, value in env.items():
        if len(value) > MAX_ENV_CHARS:
            raise MailboxError(name, f"is longer than {MAX_ENV_CHARS} characters")
    return env


def _env_whole(env: Mapping[str, str], name: str) -> int | None:
    text = env.get(name) or None
    if text is None:
        return None
    if not re.fullmatch(r"[0-9]{1,12}", text, re.ASCII):
        raise MailboxError(name, f"must be a whole number from 0 to {MAX_STEP}")
    return int(text)


def _env_skip(text: str) -> tuple[SkipWindow, ...]:
    try:
        return cast("tuple[SkipWindow, ...]", read(SkipWindows, parse_json(text, 64 * 1024, "")))
    except MailboxError as err:
        raise err.within(ENV_SKIP) from err
