"""What a start was given, by its arguments and by its environment."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rekindle.detectors.kinds import LossKind
from rekindle.monitor.base.aws import Clients
from rekindle.monitor.base.settings import ENV_METRICS, ENV_SWITCH, attempt_number, rank_from_env, unknown_variables
from rekindle.monitor.base.trouble import logger
from rekindle.monitor.mail.bounded import Budget, load_boto3
from rekindle.monitor.mail.boxes import Box, BoxAround, open_box
from rekindle.monitor.mail.exchange import Ranks
from rekindle.monitor.mail.holding import Hold, claim_of
from rekindle.monitor.saving.saved import SaveFunction, Upload
from rekindle.protocol.launch_orders import (
    ENV_ATTEMPT_NAME,
    ENV_BUS,
    ENV_CHECKPOINT_DIR,
    ENV_CHECKPOINT_URI,
    ENV_JOB_ID,
    ENV_MAILBOX,
)

OFF: Final = ("off", "0", "false", "no")


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """attempt: this attempt's name."""

    env: Mapping[str, str]
    ranks: Ranks
    save: SaveFunction | None = None
    mailbox: str | Box | None = None
    job_id: str | None = None
    attempt: str | None = None
    signals: Sequence[str] | None = None
    loss_kind: str = LossKind.AUTO
    on_event: Callable[[str, dict[str, Any]], object] | None = None

    @property
    def place(self) -> str | Box | None:
        """The mailbox."""
        return self.mailbox if self.mailbox is not None else self.env.get(ENV_MAILBOX) or None

    @property
    def bus(self) -> str | None:
        return self.env.get(ENV_BUS) or None

    @property
    def job(self) -> str | None:
        return self.job_id or self.env.get(ENV_JOB_ID) or self.env.get(ENV_ATTEMPT_NAME) or None

    @property
    def number(self) -> int:
        """Of the attempt."""
        return attempt_number(self.env)

    @property
    def name(self) -> str:
        """Under which this attempt writes its manifests; empty where it has no Job."""
        own = f"{self.job[:118]}-a{self.number}" if self.job else ""
        return self.attempt or self.env.get(ENV_ATTEMPT_NAME) or own

    @property
    def rank(self) -> int:
        return rank_from_env(self.env)[0] if self.ranks.rank is None else self.ranks.rank

    @property
    def world_size(self) -> int:
        size = self.ranks.world_size
        return max(rank_from_env(self.env)[1] if size is None else size, self.rank + 1)

    @property
    def upload(self) -> Upload | None:
        directory, uri = self.env.get(ENV_CHECKPOINT_DIR), self.env.get(ENV_CHECKPOINT_URI)
        return Upload(directory=directory, uri=uri) if directory and uri else None

    @property
    def is_off(self) -> bool:
        return self.env.get(ENV_SWITCH, "").lower() in OFF

    @property
    def is_set_up(self) -> bool:
        """Whether any REKINDLE_ variable is set and the monitor is not off: then its silence is a warning."""
        return not self.is_off and any(name.startswith("REKINDLE_") for name in self.env)

    @property
    def why_silent(self) -> str:
        """Why nothing would be watched; empty where something is."""
        if self.is_off:
            return f"{ENV_SWITCH} is {self.env[ENV_SWITCH]}"
        missing = [ENV_JOB_ID] * (self.job is None) + [f"{ENV_MAILBOX} or {ENV_BUS}"] * (not (self.place or self.bus))
        unknown = unknown_variables(self.env)
        more = f"; unknown: {', '.join(unknown)}" if unknown else ""
        return f"not set: {', '.join(missing)}{more}" if missing else ""

    @property
    def sends_metrics(self) -> bool:
        """CloudWatch is used where AWS is in use anyway: a directory mailbox alone needs no AWS account."""
        switch = self.env.get(ENV_METRICS, "").lower()
        if switch:
            return switch not in OFF
        return self.bus is not None or (isinstance(self.place, str) and self.place.startswith("s3://"))

    @property
    def judged_as(self) -> LossKind:
        """The kind of loss; as its rows say where it was given none that is known."""
        given = self.loss_kind
        is_text = type(given) in (str, LossKind)  # of anything else a comparison or its repr may raise
        if is_text and given in {*LossKind}:
            return LossKind(given)
        said = repr(given) if is_text else f"of {type(given).__name__}"
        logger.warning("Rekindle's monitor knows no loss kind %s; it goes by the rows: %s", said, ", ".join(LossKind))
        return LossKind.AUTO

    def hold(self, poll_s: float) -> Hold:
        """What this process has yet to claim; nothing where it has no mailbox, or would be silent."""
        if not self.place or self.job is None or self.why_silent:
            return Hold(None)
        return Hold(claim_of(self.env, job_id=self.job, attempt=self.name, rank=self.rank), poll_s=poll_s)

    def box(self, budget: Budget) -> Box | None:
        """The mailbox as a start reads it. Raises: MailboxError for what is no mailbox's place."""
        there = self.place
        if there is None:
            return None
        if isinstance(there, str) and there.startswith("s3://"):
            load_boto3()
        return BoxAround(open_box(there, Clients()) if isinstance(there, str) else there, budget.call)
