"""Rekindle beside the training loop.

    import rekindle.monitor as rekindle

    mon = rekindle.start(save=save)          # save(step, kind) -> path; everything else comes from the environment
    if mon.resume_path: load(mon.resume_path)
    for step in range((mon.resume.step or 0) + 1, last_step + 1):
        if mon.should_skip(step): continue
        loss = train_step(step)
        mon.step(step, loss=loss)
        if mon.should_stop: break
    mon.finish()

The names below are the whole public face; the modules beside it are private.
"""

from __future__ import annotations

import re
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial

from rekindle.detectors.kinds import LossKind
from rekindle.monitor import lifetime
from rekindle.monitor.base.aws import Clients
from rekindle.monitor.base.clock import Clock, SystemClock
from rekindle.monitor.base.guard import must_pass
from rekindle.monitor.base.identity import Identity
from rekindle.monitor.base.settings import Config, host_from_env, process_environment, rank_from_env
from rekindle.monitor.base.trouble import logger
from rekindle.monitor.live import LiveMonitor
from rekindle.monitor.mail.bounded import BoundedBox, BoundedClients, Budget, load_boto3
from rekindle.monitor.mail.boxes import Box, open_box
from rekindle.monitor.mail.exchange import Exchange, Paced, exchange_of
from rekindle.monitor.mail.slurm import LaunchInstructions, is_on_slurm, patiently, read_resume_plan
from rekindle.monitor.saving.leftovers import remove_leftovers
from rekindle.monitor.saving.resuming import LOOK_AGAIN_S, LOOK_S, settled, with_timeout
from rekindle.monitor.saving.saved import LATER, SaveFunction, SaveResult, Upload, local_path
from rekindle.monitor.sharing import Share, shared
from rekindle.monitor.silent import Monitor
from rekindle.monitor.stops.signals import hold_early, numbers_of
from rekindle.protocol.mailbox import (
    ENV_ATTEMPT,
    ENV_ATTEMPT_NAME,
    ENV_BUS,
    ENV_CHECKPOINT_DIR,
    ENV_CHECKPOINT_URI,
    ENV_JOB_ID,
    ENV_MAILBOX,
    MailboxError,
    ResumePlan,
    check_id,
)

__all__ = ["start", "Monitor", "SaveResult", "LATER", "Config", "Exchange"]

ENV_SWITCH = "REKINDLE_MONITOR"  # "off" silences the monitor
START_READS_S = 3.0  # for all that `start` reads from the mailbox: a store that is slower than that is unknown
# After a restart the plan is old, and a rank that did not learn so would go on from another step than the others.
RESTART_READS_S = 60.0
ENV_METRICS = "REKINDLE_METRICS"  # "off" keeps CloudWatch out of it

with suppress(Exception):  # an import must not fail for it
    hold_early(process_environment())  # see there: a signal may come before `start` does


def start(
    *,
    save: SaveFunction | None = None,
    mailbox: str | Box | None = None,
    job_id: str | None = None,
    attempt: str | None = None,
    rank: int | None = None,
    world_size: int | None = None,
    exchange: Callable[[], Exchange | None] | None = None,
    end_collectives: Callable[[], None] | None = None,
    saves_alone: bool = False,
    config: Config | None = None,
    handle_sigterm: bool = False,
    handle_signals: bool = False,
    signals: Sequence[str] | None = None,
    share: Share | None = None,
    loss_kind: str = LossKind.AUTO,
    env: Mapping[str, str] | None = None,
    clock: Clock | None = None,
) -> Monitor:
    """A monitor for this process; a silent one where it is switched off or has nothing to watch. Never raises.

    save: see `SaveFunction`; without one, emergency checkpoints are answered with "cannot".
    mailbox: `s3://bucket/prefix`, a directory, or a `Box`; default REKINDLE_MAILBOX.
    exchange: opens what the ranks agree through, on a separate thread (see `Exchange`); default the mailbox, which
    suits a shared directory, or S3 for up to 64 ranks.
    end_collectives: makes the collectives of this process end with an error, as far as that is possible; called when a
    save in which ranks wait for each other was abandoned. Then `should_stop` is set, too.
    saves_alone: rank 0's save needs no other rank (each rank holds the whole model): where the ranks cannot agree,
    rank 0 saves alone. Without it such a save is refused.
    share: gives every rank the text that rank 0 was called with, such as a broadcast: all ranks then resume from the
    step of rank 0. Without it, ranks that resumed from different steps are detected at their first agreement, and
    saving is disabled.
    loss_kind: what the loss is (`rekindle.detectors.LossKind`): "td", "reward", "surrogate", "adversarial" and
    "unknown" are reported and never acted on, as a rise means little in them; "supervised" is judged; "auto" decides
    by the values.
    handle_signals: SIGTERM asks all ranks for a save and then sets `should_stop`, SIGUSR1 asks for a save.
    handle_sigterm: only the former. Both then call the previously installed handler.
    signals: further signals that ask for a save, such as ("USR1",); default ("USR1",) on Slurm, whose agent may send
    it; USR2 then asks for the ranks' stacks. A signal for which the script has installed a handler is left alone.
    """
    resume, given = ResumePlan(), dict[str, str]()
    try:
        around = process_environment() if env is None else env
        resume, given = _resume_plan(around), dict(around)
        budget = Budget(RESTART_READS_S if _is_restart(around) else START_READS_S)
        reported = read_resume_plan(around, lambda: _box_of(mailbox, around, budget))
        reported, resume = shared(
            reported, _settled(reported, mailbox, budget, _attempt_name(attempt, job_id, reported.env)), share
        )
        given = dict(reported.env)
        return _start(
            save=save,
            mailbox=mailbox if mailbox is not None else given.get(ENV_MAILBOX) or None,
            job_id=job_id or given.get(ENV_JOB_ID) or given.get(ENV_ATTEMPT_NAME) or None,
            attempt=attempt or given.get(ENV_ATTEMPT_NAME) or None,
            ranks=(rank, world_size),
            exchange=exchange,
            end_collectives=end_collectives,
            saves_alone=saves_alone,
            config=config,
            signals=_signals(handle_sigterm, handle_signals),
            wishes=numbers_of(("USR1",) if signals is None and is_on_slurm(given) else signals or ()),
            env=given,
            clock=clock or SystemClock(),
            resume=resume,
            may_be_asked=signals is None,
            loss_kind=_loss_kind(loss_kind),
        )
    except BaseException as err:
        if must_pass(err):
            raise
        logger.warning("Rekindle's monitor could not start and stays silent: %r", err)
        return _silent(resume, given)


def _start(
    *,
    save: SaveFunction | None,
    mailbox: str | Box | None,
    job_id: str | None,
    attempt: str | None,
    ranks: tuple[int | None, int | None],
    exchange: Callable[[], Exchange | None] | None,
    end_collectives: Callable[[], None] | None,
    saves_alone: bool,
    config: Config | None,
    signals: tuple[signal.Signals, ...],
    wishes: tuple[signal.Signals, ...],
    env: Mapping[str, str],
    clock: Clock,
    resume: ResumePlan,
    may_be_asked: bool,
    loss_kind: LossKind,
) -> Monitor:
    bus = env.get(ENV_BUS) or None
    if env.get(ENV_SWITCH, "").lower() in ("off", "0", "false", "no") or job_id is None or not (mailbox or bus):
        logger.info("Rekindle's monitor is silent: it is off, or was given no job, or neither mailbox nor bus")
        return _silent(resume, env)
    if config is None:
        config = Config.from_env(env)
        if config.problems:
            logger.warning("Rekindle's monitor ignores settings that it cannot read: %s", ", ".join(config.problems))
    number = _attempt_number(env)
    env_rank, env_world = rank_from_env(env)
    rank = env_rank if ranks[0] is None else ranks[0]
    world_size = max(env_world if ranks[1] is None else ranks[1], rank + 1)
    if rank == 0 and (directory := env.get(ENV_CHECKPOINT_DIR)):
        threading.Thread(target=remove_leftovers, args=(directory,), name="rekindle-clean", daemon=True).start()
    clients = Clients()
    box = open_box(mailbox, clients) if isinstance(mailbox, str) else mailbox
    attempt = check_id(_attempt_name(attempt, job_id, env), "attempt")
    if exchange is None:
        exchange = partial(exchange_of, box, attempt=attempt, world_size=world_size)
    if config.agree_s:
        exchange = partial(_paced, exchange, config.agree_s)
    monitor = LiveMonitor(
        identity=Identity(
            job_id=check_id(job_id, "job_id"),
            attempt=attempt,
            attempt_number=number,
            rank=rank,
            world_size=world_size,
            host=host_from_env(env),
        ),
        resume=resume,
        config=config,
        save=save,
        saves_alone=saves_alone,
        exchange=exchange,
        end_collectives=end_collectives,
        box=box,
        upload=_upload(env),
        bus=bus,
        sends_metrics=_sends_metrics(env, mailbox, bus),
        clients=clients,
        clock=clock,
        loss_kind=loss_kind,
    )
    if not lifetime.admit(monitor):
        return _silent(resume, env)
    monitor.begin(signals=signals, wishes=wishes, env=env, may_be_asked=may_be_asked)
    return monitor


def _paced(exchange: Callable[[], Exchange | None], poll_s: float) -> Exchange | None:
    opened = exchange()
    return None if opened is None else Paced(opened, poll_s)


def _loss_kind(given: str) -> LossKind:
    try:
        return LossKind(given)
    except ValueError:
        logger.warning("Rekindle's monitor knows no loss kind %r; it goes by the rows: %s", given, ", ".join(LossKind))
        return LossKind.AUTO


def _signals(handle_sigterm: bool, handle_signals: bool) -> tuple[signal.Signals, ...]:
    """SIGUSR1 does not exist on every platform."""
    if not handle_signals:
        return (signal.SIGTERM,) if handle_sigterm else ()
    usr1 = getattr(signal, "SIGUSR1", None)
    return (signal.SIGTERM,) if usr1 is None else (signal.SIGTERM, usr1)


def _silent(resume: ResumePlan, env: Mapping[str, str]) -> Monitor:
    """A run that is not watched still learns where to go on."""
    try:
        return Monitor(resume, local_path(resume.uri, _upload(env)))
    except Exception as err:
        logger.warning("Rekindle's monitor cannot tell where the checkpoint lies on this machine: %r", err)
        return Monitor(resume)


def _resume_plan(env: Mapping[str, str]) -> ResumePlan:
    try:
        return ResumePlan.from_env(env)
    except MailboxError as err:
        logger.warning("Rekindle's resume plan cannot be read, so the run starts as the script alone would: %s", err)
        return ResumePlan()


def _settled(reported: LaunchInstructions, mailbox: str | Box | None, budget: Budget, attempt: str) -> ResumePlan:
    """The plan, checked against this machine's disk; as it was where that cannot be done."""
    env = reported.env
    plan = _resume_plan(env) if reported.resume is None else reported.resume

    def look() -> ResumePlan:
        return settled(
            plan,
            directory=env.get(ENV_CHECKPOINT_DIR) or None,
            upload=_upload(env),
            box=_box_of(mailbox, env, budget),
            clients=BoundedClients(budget),
            is_repeat=_attempt_number(env) > 1,
            attempt=attempt,
            unplanned=reported.unplanned,
            job_id=env.get(ENV_JOB_ID, ""),
        )

    is_again = reported.unplanned is not None or _is_restart(env)
    try:
        return with_timeout(lambda: patiently(look), LOOK_AGAIN_S) if is_again else with_timeout(look, LOOK_S)
    except Exception as err:
        # On a first start there is hardly anything newer than the plan; that storage is away is told when it is used.
        report = logger.warning if is_again or plan.uri is not None else logger.info
        report("Rekindle's resume plan could not be checked against the disk: %r", err)
        return _resume_plan(reported.submitted) if reported.unplanned is not None else plan


def _box_of(mailbox: str | Box | None, env: Mapping[str, str], budget: Budget) -> Box | None:
    """The mailbox as a start reads it. Raises: MailboxError for what is no mailbox's place."""
    there = mailbox if mailbox is not None else env.get(ENV_MAILBOX) or None
    if there is None:
        return None
    if isinstance(there, str) and there.startswith("s3://"):
        load_boto3()
    return BoundedBox(open_box(there, Clients()) if isinstance(there, str) else there, budget)


def _is_restart(env: Mapping[str, str]) -> bool:
    """Whether a launcher says that it has started these processes before. Source: torchrun and sbatch manuals."""
    return any(env.get(name, "0") != "0" for name in ("TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT"))


def _attempt_name(attempt: str | None, job_id: str | None, env: Mapping[str, str]) -> str:
    """Under which this attempt writes its manifests; empty where it has no Job."""
    job_id = job_id or env.get(ENV_JOB_ID)
    own = f"{job_id[:118]}-a{_attempt_number(env)}" if job_id else ""
    return attempt or env.get(ENV_ATTEMPT_NAME) or own


def _attempt_number(env: Mapping[str, str]) -> int:
    text = env.get(ENV_ATTEMPT, "")
    return int(text) if re.fullmatch(r"[0-9]{1,9}", text, re.ASCII) else 1


def _upload(env: Mapping[str, str]) -> Upload | None:
    directory, uri = env.get(ENV_CHECKPOINT_DIR), env.get(ENV_CHECKPOINT_URI)
    return Upload(directory=directory, uri=uri) if directory and uri else None


def _sends_metrics(env: Mapping[str, str], mailbox: str | Box | None, bus: str | None) -> bool:
    """CloudWatch is used where AWS is in use anyway: a directory mailbox alone needs no AWS account."""
    switch = env.get(ENV_METRICS, "").lower()
    if switch:
        return switch not in ("off", "0", "false", "no")
    return bus is not None or (isinstance(mailbox, str) and mailbox.startswith("s3://"))
