"""How a monitor begins: what this attempt was told, where it goes on, and whether anything is there to watch."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from rekindle.detectors.kinds import LossKind
from rekindle.monitor import lifetime
from rekindle.monitor.base.aws import Clients
from rekindle.monitor.base.clock import Clock, SystemClock
from rekindle.monitor.base.guard import must_pass
from rekindle.monitor.base.identity import Identity
from rekindle.monitor.base.settings import (
    ENV_METRICS,
    ENV_SWITCH,
    Config,
    host_from_env,
    rank_from_env,
    unknown_variables,
)
from rekindle.monitor.base.trouble import NotWatched, logger
from rekindle.monitor.live import LiveMonitor
from rekindle.monitor.mail.bounded import BoundedClients, Budget, load_boto3
from rekindle.monitor.mail.boxes import Box, BoxAround, open_box
from rekindle.monitor.mail.exchange import Exchange, Paced, exchange_of
from rekindle.monitor.mail.holding import Claimant, Hold
from rekindle.monitor.mail.slurm import LaunchInstructions, is_on_slurm, patiently, read_resume_plan
from rekindle.monitor.ranks import Ranks
from rekindle.monitor.saving.leftovers import remove_leftovers
from rekindle.monitor.saving.resuming import LOOK_AGAIN_S, LOOK_S, other_world, settled
from rekindle.monitor.saving.saved import SaveFunction, Upload, local_path
from rekindle.monitor.sharing import shared
from rekindle.monitor.silent import Monitor
from rekindle.monitor.stops.signals import numbers_of
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

START_READS_S = 3.0  # for all that `start` reads from the mailbox: a store that is slower than that is unknown
# After a restart the plan is old, and a rank that did not learn so would go on from another step than the others.
RESTART_READS_S = 60.0
OFF = ("off", "0", "false", "no")
SLURM_SIGNALS = ("USR1",)  # taken there where the script has no handler: `scancel --signal`, `sbatch --signal`


def start_in(
    env: Mapping[str, str],
    *,
    save: SaveFunction | None = None,
    mailbox: str | Box | None = None,
    job_id: str | None = None,
    attempt: str | None = None,
    ranks: Ranks | None = None,
    signals: Sequence[str] | None = None,
    loss_kind: str = LossKind.AUTO,
    on_event: Callable[[str, dict[str, Any]], object] | None = None,
    required: bool = False,
    config: Config | None = None,
    clock: Clock | None = None,
) -> Monitor:
    """See `rekindle.monitor.start`. env: the launcher's; config: instead of what it sets; attempt: this attempt's name.

    Raises: NotWatched where `required` and the monitor would be silent; otherwise nothing.
    """
    ranks = Ranks() if ranks is None else ranks
    resume, given = ResumePlan(), dict[str, str]()
    try:
        resume, given = _resume_plan(env), dict(env)
        config = _config(env) if config is None else config
        budget = Budget(RESTART_READS_S if _is_restart(env) else START_READS_S)
        reported = read_resume_plan(env, lambda: _box_of(mailbox, env, budget))
        name = _attempt_name(attempt, job_id, reported.env)
        _must_be_no_fork(name)  # before the ranks share anything: a fork has its parent's connections
        hold = _hold(reported.env, mailbox, job_id=job_id, attempt=name, ranks=ranks, poll_s=config.poll_s)
        box = partial(_box_of, mailbox, reported.env, budget)
        is_first = hold.rank == 0  # the others' lives are rank 0's
        life, not_held = _claimed(hold, box) if is_first else (None, None)
        reported, resume, life = shared(reported, _settled(reported, mailbox, budget, name, ranks), ranks.share, life)
        given = dict(reported.env)
        if not is_first:
            _, not_held = _claimed(hold, box, life)
        return _start(
            save=save,
            mailbox=mailbox if mailbox is not None else given.get(ENV_MAILBOX) or None,
            job_id=job_id or given.get(ENV_JOB_ID) or given.get(ENV_ATTEMPT_NAME) or None,
            attempt=attempt or given.get(ENV_ATTEMPT_NAME) or None,
            ranks=ranks,
            config=config,
            hold=hold,
            not_held=not_held,
            signals=signals,
            env=given,
            clock=clock or SystemClock(),
            resume=resume,
            loss_kind=_loss_kind(loss_kind),
            on_event=on_event,
        )
    except BaseException as err:
        if must_pass(err):
            raise
        if required:
            raise err if isinstance(err, NotWatched) else NotWatched(f"the monitor could not start: {err!r}") from err
        if not isinstance(err, NotWatched):
            logger.warning("Rekindle's monitor could not start and stays silent: %r", err)
        elif _is_set_up(given):
            logger.warning("Rekindle's monitor stays silent: %s", err)
        else:
            logger.info("Rekindle's monitor is silent: %s", err)
        return _silent(resume, given)


def _start(
    *,
    save: SaveFunction | None,
    mailbox: str | Box | None,
    job_id: str | None,
    attempt: str | None,
    ranks: Ranks,
    config: Config,
    hold: Hold,
    not_held: NotWatched | None,
    signals: Sequence[str] | None,
    env: Mapping[str, str],
    clock: Clock,
    resume: ResumePlan,
    loss_kind: LossKind,
    on_event: Callable[[str, dict[str, Any]], object] | None,
) -> Monitor:
    """not_held: why the run is another process's. Raises: NotWatched."""
    if not_held is not None:
        raise not_held
    bus = env.get(ENV_BUS) or None
    if why := _why_silent(env, job_id=job_id, has_place=bool(mailbox or bus)):
        raise NotWatched(why)
    rank, world_size = _rank(ranks, env), _world_size(ranks, env)
    if rank == 0 and (directory := env.get(ENV_CHECKPOINT_DIR)):
        threading.Thread(target=remove_leftovers, args=(directory,), name="rekindle-clean", daemon=True).start()
    clients = Clients()
    box = open_box(mailbox, clients) if isinstance(mailbox, str) else mailbox
    attempt = check_id(_attempt_name(attempt, job_id, env), "attempt")
    exchange = ranks.exchange or partial(
        exchange_of, box, attempt=attempt, world_size=world_size, life=lambda: hold.life
    )
    if config.agree_s:
        exchange = partial(_paced, exchange, config.agree_s)
    monitor = LiveMonitor(
        identity=Identity(
            job_id=check_id(job_id, "job_id"),
            attempt=attempt,
            attempt_number=_attempt_number(env),
            rank=rank,
            world_size=world_size,
            host=host_from_env(env),
            holding=hold,
        ),
        hold=hold,
        resume=resume,
        config=config,
        save=save,
        saves_alone=ranks.saves_alone,
        exchange=exchange,
        end_collectives=ranks.end_collectives,
        box=box,
        upload=_upload(env),
        bus=bus,
        sends_metrics=_sends_metrics(env, mailbox, bus),
        clients=clients,
        clock=clock,
        loss_kind=loss_kind,
        on_event=on_event,
    )
    lifetime.admit(monitor)
    takes_slurms = is_on_slurm(env) and (signals is None or len(signals) > 0)
    monitor.begin(
        signals=numbers_of(signals or ()),
        wishes=numbers_of(SLURM_SIGNALS) if takes_slurms else (),
        env=env,
        may_be_asked=takes_slurms,
    )
    return monitor


def _why_silent(env: Mapping[str, str], *, job_id: str | None, has_place: bool) -> str:
    """Why nothing would be watched; empty where something is."""
    if env.get(ENV_SWITCH, "").lower() in OFF:
        return f"{ENV_SWITCH} is {env[ENV_SWITCH]}"
    missing = [ENV_JOB_ID] * (job_id is None) + [f"{ENV_MAILBOX} or {ENV_BUS}"] * (not has_place)
    unknown = unknown_variables(env)
    more = f"; unknown: {', '.join(unknown)}" if unknown else ""
    return f"not set: {', '.join(missing)}{more}" if missing else ""


def _config(env: Mapping[str, str]) -> Config:
    config = Config.from_env(env)
    if config.problems:
        logger.warning("Rekindle's monitor ignores settings that it cannot read: %s", ", ".join(config.problems))
    return config


def _rank(ranks: Ranks, env: Mapping[str, str]) -> int:
    return rank_from_env(env)[0] if ranks.rank is None else ranks.rank


def _world_size(ranks: Ranks, env: Mapping[str, str]) -> int:
    return max(rank_from_env(env)[1] if ranks.world_size is None else ranks.world_size, _rank(ranks, env) + 1)


def _hold(
    env: Mapping[str, str],
    mailbox: str | Box | None,
    *,
    job_id: str | None,
    attempt: str,
    ranks: Ranks,
    poll_s: float,
) -> Hold:
    """What this process has yet to claim; nothing where it has no mailbox, or would be silent."""
    job_id = job_id or env.get(ENV_JOB_ID) or env.get(ENV_ATTEMPT_NAME) or None
    rank, place = _rank(ranks, env), mailbox if mailbox is not None else env.get(ENV_MAILBOX)
    if not place or job_id is None or _why_silent(env, job_id=job_id, has_place=True):
        return Hold(rank=rank)
    claimant = Claimant.of(env, job_id=job_id, attempt=attempt, rank=rank, host=host_from_env(env))
    return Hold(claimant, rank=rank, poll_s=poll_s)


def _must_be_no_fork(attempt: str) -> None:
    """Raises: NotWatched."""
    if lifetime.forked_from(attempt):
        raise NotWatched("the process from which this one was forked holds this run")


def _claimed(
    hold: Hold, box: Callable[[], Box | None], life: int | None = None
) -> tuple[int | None, NotWatched | None]:
    """(the life that is claimed now, None where it is not known yet; why this process stays silent).

    What cannot be claimed now is claimed by the mailbox's thread.
    """
    try:
        opened = box()
        if opened is not None:
            hold.claim(opened, life=life)
    except NotWatched as err:
        return None, err
    except Exception as err:  # the mailbox's: a start does not wait for it
        logger.info("Rekindle's monitor could not claim this run yet: %r", err)
    return hold.claimed_life, None


def _is_set_up(env: Mapping[str, str]) -> bool:
    """Whether any REKINDLE_ variable is set and the monitor is not switched off: then its silence is a warning."""
    return env.get(ENV_SWITCH, "").lower() not in OFF and any(name.startswith("REKINDLE_") for name in env)


def _paced(exchange: Callable[[], Exchange | None], poll_s: float) -> Exchange | None:
    opened = exchange()
    return None if opened is None else Paced(opened, poll_s)


def _loss_kind(given: str) -> LossKind:
    try:
        return LossKind(given)
    except ValueError:
        logger.warning("Rekindle's monitor knows no loss kind %r; it goes by the rows: %s", given, ", ".join(LossKind))
        return LossKind.AUTO


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


def _settled(
    reported: LaunchInstructions, mailbox: str | Box | None, budget: Budget, attempt: str, ranks: Ranks
) -> ResumePlan:
    """The plan, checked against this machine's disk; as it was where that cannot be done."""
    env = reported.env
    plan = _resume_plan(env) if reported.resume is None else reported.resume

    def look() -> ResumePlan:
        box = _box_of(mailbox, env, budget)
        found = settled(
            plan,
            directory=env.get(ENV_CHECKPOINT_DIR) or None,
            upload=_upload(env),
            box=box,
            clients=BoundedClients(budget),
            is_repeat=_attempt_number(env) > 1,
            attempt=attempt,
            unplanned=reported.unplanned,
            job_id=env.get(ENV_JOB_ID, ""),
        )
        if _rank(ranks, env) == 0 and (why := other_world(found, box, _world_size(ranks, env))):
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


def _box_of(mailbox: str | Box | None, env: Mapping[str, str], budget: Budget) -> Box | None:
    """The mailbox as a start reads it. Raises: MailboxError for what is no mailbox's place."""
    there = mailbox if mailbox is not None else env.get(ENV_MAILBOX) or None
    if there is None:
        return None
    if isinstance(there, str) and there.startswith("s3://"):
        load_boto3()
    return BoxAround(open_box(there, Clients()) if isinstance(there, str) else there, budget.call)


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
        return switch not in OFF
    return bus is not None or (isinstance(mailbox, str) and mailbox.startswith("s3://"))
