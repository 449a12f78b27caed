"""The answers that `rekindle init` collects, by flags or by questions: closed vocabularies, and each value's valid
form.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from rekindle.protocol.cluster.names import check_cluster
from rekindle.protocol.wire import MailboxError, Place, check_id

_ROLE: Final = re.compile(r"arn:aws[a-z-]*:iam::[0-9]{12}:role/[A-Za-z0-9+=,.@_/-]{1,576}")
_POLICY: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_EMAIL: Final = re.compile(r"[^@\s,]{1,64}@[^@\s,]{1,255}")
_S3_KEY: Final = re.compile(r"[A-Za-z0-9._-]+(/[A-Za-z0-9._-]+)*")
_PATH: Final = re.compile(r"(/[A-Za-z0-9._@+=:-]+)+/?")  # it goes into a comment of Slurm's and a shell script
_STACK: Final = re.compile(r"rekindle(-(?P<stage>[a-z][a-z0-9-]{0,19}))?")


class Runs(StrEnum):
    """Where the job runs."""

    TRAINING_JOB = "training-job"
    HYPERPOD = "hyperpod-slurm"
    SLURM = "slurm"

    @property
    def is_slurm(self) -> bool:
        """True where a cluster's agent watches the job."""
        return self is not Runs.TRAINING_JOB


class Integration(StrEnum):
    """What the training script is written with; docs/integrations.md."""

    PLAIN = "plain"
    DDP = "ddp"
    FSDP2 = "fsdp2"
    HUGGING_FACE = "huggingface"
    LIGHTNING = "lightning"
    ACCELERATE = "accelerate"
    DEEPSPEED = "deepspeed"


class WrongAnswer(Exception):
    """An answer that cannot be used; the message says what it must be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """Everything that the files are made from.

    role: the ARN of a training job's execution role, "" on Slurm. cluster: "" for training jobs. mailbox: an s3://
    prefix or, on Slurm, a path that all nodes see. checkpoints: "" where they lie below the mailbox. email: "" for no
    e-mail.
    """

    runs: Runs
    integration: Integration
    job: str
    mailbox: str
    role: str = ""
    cluster: str = ""
    checkpoints: str = ""
    policy: str = "default"
    is_shadow: bool = True
    email: str = ""
    wants_slack: bool = False


def stage_of(stack: str) -> str:
    """The stage that `rekindle stack deploy` knows a stack by. Raises: WrongAnswer."""
    found = _STACK.fullmatch(stack)
    if found is None or found["stage"] == "prod":
        raise WrongAnswer("must be rekindle, or rekindle-STAGE with a stage of lower-case letters, digits and dashes")
    return found["stage"] or "prod"


def job(text: str) -> str:
    """A Job's id. Raises: WrongAnswer."""
    return _held(lambda: check_id(text, "job"), "must be 1 to 128 characters of A-Z a-z 0-9 . _ -")


def role(text: str) -> str:
    """A role's ARN. Raises: WrongAnswer."""
    if not _ROLE.fullmatch(text):
        raise WrongAnswer("must be a role's ARN, as in arn:aws:iam::111122223333:role/train")
    return text


def cluster(text: str) -> str:
    """A cluster's name. Raises: WrongAnswer."""
    return _held(lambda: check_cluster(text), "must be 1 to 63 characters of A-Z a-z 0-9 _ -")


def policy(text: str) -> str:
    """A policy's name. Raises: WrongAnswer."""
    if not _POLICY.fullmatch(text):
        raise WrongAnswer("must be 1 to 64 characters of A-Z a-z 0-9 . _ -, the first a letter or a digit")
    return text


def email(text: str) -> str:
    """An address, or nothing. Raises: WrongAnswer."""
    if text and not _EMAIL.fullmatch(text):
        raise WrongAnswer("must be an e-mail address")
    return text


def mailbox(text: str, runs: Runs) -> str:
    """Where monitor and service meet. Raises: WrongAnswer."""
    if runs is Runs.TRAINING_JOB:
        expected = "must be s3://BUCKET/PREFIX/JOB: the role's tag names the PREFIX below which its mailboxes lie"
        if text.startswith("s3://") and len(parts(text)) < 2:
            raise WrongAnswer(expected)
    else:
        expected = "must be s3://BUCKET/PREFIX/JOB, or an absolute path that all nodes and the head node see"
    return _place(text, expected, only_s3=runs is Runs.TRAINING_JOB)


def checkpoints(text: str, runs: Runs) -> str:
    """Where the run's own checkpoints appear, or nothing. Raises: WrongAnswer."""
    if not text:
        return ""
    expected = "must be an s3:// prefix" if runs is Runs.TRAINING_JOB else "must be an s3:// prefix or an absolute path"
    return _place(text, expected, only_s3=runs is Runs.TRAINING_JOB)


def bucket(uri: str) -> str:
    """Of an s3:// URI; "" for a path."""
    return uri.removeprefix("s3://").partition("/")[0] if uri.startswith("s3://") else ""


def parts(uri: str) -> list[str]:
    """The parts of an s3:// URI's key."""
    return [part for part in uri.removeprefix("s3://").partition("/")[2].split("/") if part]


def prefix(uri: str) -> str:
    """What the role's tag `rekindle-mailbox` must say for this mailbox: all of the key but its last part."""
    return "/".join(parts(uri)[:-1])


def _place(text: str, expected: str, *, only_s3: bool) -> str:
    place = _held_place(text, expected)
    if place.bucket is None:
        if only_s3 or not _PATH.fullmatch(text):
            raise WrongAnswer(expected)
    elif not _S3_KEY.fullmatch("/".join(parts(text))):
        raise WrongAnswer(expected)
    return text.rstrip("/")


def _held_place(text: str, expected: str) -> Place:
    try:
        return Place.parse(text)
    except MailboxError as err:
        raise WrongAnswer(expected) from err


def _held(check: Callable[[], str], expected: str) -> str:
    try:
        return check()
    except MailboxError as err:
        raise WrongAnswer(expected) from err
