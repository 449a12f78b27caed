"""How a monitor begins: what this attempt was told, where it goes on, and whether anything is there to watch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from rekindle.monitor import lifetime
from rekindle.monitor.base.guard import must_pass
from rekindle.monitor.base.run import Clock, Identity, Run, SystemClock
from rekindle.monitor.base.settings import Config, host_from_env
from rekindle.monitor.base.trouble import NotWatched, logger
from rekindle.monitor.base.worker import begin
from rekindle.monitor.launch import Launch
from rekindle.monitor.live import LiveMonitor
from rekindle.monitor.mail.bounded import BoundedClients, Budget
from rekindle.monitor.mail.boxes import open_box
from rekindle.monitor.mail.exchange import Exchange, Paced, Ranks, exchange_of
from rekindle.monitor.mail.holding import Hold
from rekindle.monitor.mail.slurm import LaunchInstructions, is_on_slurm, patiently, read_resume_plan
from rekindle.monitor.saving.leftovers import remove_leftovers
from rekindle.monitor.saving.resuming import LOOK_AGAIN_S, LOOK_S, settled, with_data
from rekindle.monitor.saving.saved import local_path
from rekindle.monitor.silent import Monitor
from rekindle.monitor.stops.signals import numbers_of
from rekindle.protocol.launch_orders import ENV_CHECKPOINT_DIR, ENV_JOB_ID, ResumePlan
from rekindle.protocol.wire import MailboxError, check_id

START_READS_S = 3.0  # for all that `start` reads from the mailbox: a store that is slower than that is unknown
# After a restart the plan is old, and a rank that did not learn so would go on from another step than the others.
RESTART_READS_S = 60.0


def start_in(
    env: Mapping[str, str],
    *,
    ranks: Ranks | None = None,
    required: bool = False,
    config: Config | None = None,
    clock: Clock | None = None,
    **given: Any,
) -> Monitor:
    """See `rekindle.monitor.start`. env: the launcher's; config: instead of what it sets; given: fields of `Launch`.

    Raises: NotWatched where `required` and the monitor would be silent; otherwise nothing.
    """
    if ranks is not None and not isinstance(ranks, Ranks):
        logger.warning("Rekindle's monitor takes no %s for ranks=; it goes by the launcher's", type(ranks).__name__)
        ranks = None
    launch = Launch(env=env, ranks=ranks or Ranks(), **given)
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


def _started(launch: Launch, config: Config, hold: Hold, clock: Clock, resume: ResumePlan) -> Monitor:
    """Raises: NotWatched, MailboxError, RuntimeError."""
    if why := hold.refusal or launch.why_silent:
        raise NotWatched(why)
    env, ranks = launch.env, launch.ranks
    if launch.rank == 0 and (directory := env.get(ENV_CHECKPOINT_DIR)):
        begin("clean", partial(remove_leftovers, directory))
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

    monitor = LiveMonitor(run=run, hold=hold, resume=resume, launch=launch, box=box, exchange=exchange)
    lifetime.admit(monitor)
    takes_slurms = is_on_slurm(env) and (launch.signals is None or len(launch.signals) > 0)
    monitor.begin(signals=numbers_of(launch.signals or ()), env=env, takes_slurms=takes_slurms)
    return monitor


def _config(env: Mapping[str, str]) -> Config:
    config = Config.from_env(env)
    if config.problems:
        logger.warning("Rekindle's monitor ignores settings that it cannot read: %s", ", ".join(config.problems))
    return config


def _claimed(hold: Hold, launch: Launch, budget: Budget, life: int | None = None) -> int | None:
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


def _silent(launch: Launch, resume: ResumePlan | None, env: Mapping[str, str]) -> Monitor:
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


def _settled(reported: LaunchInstructions, launch: Launch, budget: Budget) -> ResumePlan:
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
