"""How a monitor begins: what this attempt was told, where it goes on, and whether anything is there to watch."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rekindle.detectors.kinds import LossKind
from rekindle.monitor import lifetime
from rekindle.monitor.base.aws import Clients
from rekindle.monitor.base.guard import must_pass
from rekindle.monitor.base.run import Clock, Identity, Run, SystemClock
from rekindle.monitor.base.settings import (
    ENV_METRICS,
    ENV_SWITCH,
    Config,
    attempt_number,
    host_from_env,
    rank_from_env,
    unknown_variables,
)
from rekindle.monitor.base.trouble import NotWatched, logger
from rekindle.monitor.live import LiveMonitor
from rekindle.monitor.mail.bounded import BoundedClients, Budget, load_boto3
from rekindle.monitor.mail.boxes import Box, BoxAround, open_box
from rekindle.monitor.mail.exchange import Exchange, Paced, Ranks, exchange_of
from rekindle.monitor.mail.holding import Hold, claim_of
from rekindle.monitor.mail.slurm import LaunchInstructions, is_on_slurm, patiently, read_resume_plan
from rekindle.monitor.saving.leftovers import remove_leftovers
from rekindle.monitor.saving.resuming import LOOK_AGAIN_S, LOOK_S, settled, with_data
from rekindle.monitor.saving.saved import SaveFunction, Upload, local_path
from rekindle.monitor.silent import Monitor
from rekindle.monitor.stops.signals import numbers_of
from rekindle.protocol.launch_orders import (
    ENV_ATTEMPT_NAME,
    ENV_BUS,
    ENV_CHECKPOINT_DIR,
    ENV_CHECKPOINT_URI,
    ENV_JOB_ID,
    ENV_MAILBOX,
    ResumePlan,
)
from rekindle.protocol.wire import MailboxError, check_id

START_READS_S = 3.0  # for all that `start` reads from the mailbox: a store that is slower than that is unknown
# After a restart the plan is old, and a rank that did not learn so would go on from another step than the others.
RESTART_READS_S = 60.0
OFF = ("off", "0", "false", "no")


def start_in(
    env: Mapping[str, str],
    *,
    ranks: Ranks | None = None,
    required: bool = False,
    config: Config | None = None,
    clock: Clock | None = None,
    **given: Any,
) -> Monitor:
    """See `rekindle.monitor.start`. env: the launcher's; config: instead of what it sets; given: fields of `_Launch`.

    Raises: NotWatched where `required` and the monitor would be silent; otherwise nothing.
    """
    if ranks is not None and not isinstance(ranks, Ranks):
        logger.warning("Rekindle's monitor takes no %s for ranks=; it goes by the launcher's", type(ranks).__name__)
        ranks = None
    launch = _Launch(env=env, ranks=ranks or Ranks(), **given)
    resume: ResumePlan | None = None
    try:
        config = _config(env) if config is None else config
        budget = Budget(RESTART_READS_S if _is_restart(env) else START_READS_S)
        reported = read_resume_plan(env, lambda: launch.box(budget))
        launch = replace(launch, env=reported.env)
        lifetime.refuse_fork(launch.name)  # before the ranks share anything: a fork has its parent's connections
        hold = launch.hold(config.poll_s)
        life = _claimed(hold, launch, budget) if launch.rank == 0 else None  # rank 0's lives count
        resume = _settled(reported, launch, budget)
        if launch.ranks.share is not None:
            from rekindle.monitor.sharing import shared

            reported, resume, life = shared(reported, resume, launch.ranks.share, life)
        launch = replace(launch, env=reported.env)
        if launch.rank != 0:
            _claimed(hold, launch, budget, life)
        return _started(launch, config, hold, clock or SystemClock(), resume)
    except BaseException as err:
        if must_pass(err):
            raise
        if required:
            raise err if isinstance(err, NotWatched) else NotWatched(f"the monitor could not start: {err!r}") from err
        if not isinstance(err, NotWatched):
            logger.warning("Rekindle's monitor could not start and stays silent: %r", err)
        elif launch.is_set_up:
            logger.warning("Rekindle's monitor stays silent: %s", err)
        else:
            logger.info("Rekindle's monitor is silent: %s", err)
        return _silent(launch, resume, env)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Launch:
    """What a start was given, by its arguments and by its environment. attempt: this attempt's name."""

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


def _started(launch: _Launch, config: Config, hold: Hold, clock: Clock, resume: ResumePlan) -> Monitor:
    """Raises: NotWatched, MailboxError, RuntimeError."""
    if why := hold.refusal or launch.why_silent:
        raise NotWatched(why)
    env, ranks = launch.env, launch.ranks
    if launch.rank == 0 and (directory := env.get(ENV_CHECKPOINT_DIR)):
        threading.Thread(target=remove_leftovers, args=(directory,), name="rekindle-clean", daemon=True).start()
    identity = Identity(
        job_id=check_id(launch.job, "job_id"),
        attempt=check_id(launch.name, "attempt"),
        attempt_number=launch.number,
        rank=launch.rank,
        world_size=launch.world_size,
        host=host_from_env(env),
        holding=hold,
    )
    run = Run(identity=identity, config=config, clock=clock)
    box = open_box(launch.place, run.clients) if isinstance(launch.place, str) else launch.place

    def exchange() -> Exchange | None:
        opened = ranks.exchange() if ranks.exchange else exchange_of(box, identity)
        return Paced(opened, config.agree_s) if opened is not None and config.agree_s else opened

    monitor = LiveMonitor(
        run=run,
        hold=hold,
        resume=resume,
        save=launch.save,
        saves_alone=ranks.saves_alone,
        exchange=exchange,
        end_collectives=ranks.end_collectives,
        box=box,
        upload=launch.upload,
        bus=launch.bus,
        sends_metrics=launch.sends_metrics,
        loss_kind=_loss_kind(launch.loss_kind),
        on_event=launch.on_event,
    )
    lifetime.admit(monitor)
    takes_slurms = is_on_slurm(env) and (launch.signals is None or len(launch.signals) > 0)
    monitor.begin(signals=numbers_of(launch.signals or ()), env=env, takes_slurms=takes_slurms)
    return monitor


def _config(env: Mapping[str, str]) -> Config:
    config = Config.from_env(env)
    if config.problems:
        logger.warning("Rekindle's monitor ignores settings that it cannot read: %s", ", ".join(config.problems))
    return config


def _claimed(hold: Hold, launch: _Launch, budget: Budget, life: int | None = None) -> int | None:
    """The life that is claimed now; None where it is not known yet, or the hold is refused.

    What cannot be claimed now is claimed by the mailbox's thread.
    """
    try:
        opened = launch.box(budget)
        if opened is not None:
            hold.claim(opened, life=life)
    except NotWatched as err:
        hold.refusal = str(err)
    except Exception as err:  # the mailbox's: a start does not wait for it
        logger.info("Rekindle's monitor could not claim this run yet: %r", err)
    return hold.claimed_life


def _loss_kind(given: str) -> LossKind:
    is_text = type(given) in (str, LossKind)  # of anything else a comparison or its repr may raise
    if is_text and given in {*LossKind}:
        return LossKind(given)
    said = repr(given) if is_text else f"of {type(given).__name__}"
    logger.warning("Rekindle's monitor knows no loss kind %s; it goes by the rows: %s", said, ", ".join(LossKind))
    return LossKind.AUTO


def _silent(launch: _Launch, resume: ResumePlan | None, env: Mapping[str, str]) -> Monitor:
    """A run that is not watched still learns where to go on: by its environment, where nothing newer is known."""
    try:
        resume = _resume_plan(env) if resume is None else resume
        return Monitor(resume, local_path(resume.uri, launch.upload))
    except BaseException as err:
        if must_pass(err):
            raise
        logger.warning("Rekindle's monitor cannot tell where the checkpoint lies on this machine: %r", err)
        return Monitor(resume or ResumePlan())


def _resume_plan(env: Mapping[str, str]) -> ResumePlan:
    try:
        return ResumePlan.from_env(env)
    except MailboxError as err:
        logger.warning("Rekindle's resume plan cannot be read, so the run starts as the script alone would: %s", err)
        return ResumePlan()


def _settled(reported: LaunchInstructions, launch: _Launch, budget: Budget) -> ResumePlan:
    """The plan, checked against this machine's disk; as it was where that cannot be done."""
    env = reported.env
    plan = _resume_plan(env) if reported.resume is None else reported.resume

    def look() -> ResumePlan:
        box = launch.box(budget)
        found = settled(
            plan,
            directory=env.get(ENV_CHECKPOINT_DIR) or None,
            upload=launch.upload,
            box=box,
            clients=BoundedClients(budget),
            is_repeat=launch.number > 1,
            attempt=launch.name,
            unplanned=reported.unplanned,
            job_id=env.get(ENV_JOB_ID, ""),
        )
        found, why = with_data(found, box, launch.world_size)
        if why and launch.rank == 0:
            logger.warning("Resumed with another world size: %s", why)
        return found

    is_again = reported.unplanned is not None or _is_restart(env)
    try:
        return Budget(LOOK_AGAIN_S).call(lambda: patiently(look)) if is_again else Budget(LOOK_S).call(look)
    except Exception as err:
        # On a first start there is hardly anything newer than the plan; that storage is away is told when it is used.
        report = logger.warning if is_again or plan.uri is not None else logger.info
        report("Rekindle's resume plan could not be checked against the disk: %r", err)
        return _resume_plan(reported.submitted) if reported.unplanned is not None else plan


def _is_restart(env: Mapping[str, str]) -> bool:
    """Whether a launcher says that it has started these processes before. Source: torchrun and sbatch manuals."""
    return any(env.get(name, "0") != "0" for name in ("TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT"))
