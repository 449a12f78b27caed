"""A job's `JobSpec`: what is needed to submit it again, what is missing for that, and the sbatch that does it."""

from __future__ import annotations

import os
import pwd
import socket
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Final

from rekindle.protocol.cluster.documents import JobSpec, SlurmState
from rekindle.protocol.cluster.names import ENV_SLURM_ATTEMPT, ENV_SUBMITTED_ON, OF_ONE_ATTEMPT, parse_attempt
from rekindle.protocol.cluster.orders import Order
from rekindle.protocol.launch_orders import ENV_JOB_ID
from rekindle.protocol.wire import MailboxError
from rekindle.sbatch.options import of_script
from rekindle.slurm_agent.base.ports import SlurmError, SlurmRefused, SlurmUnavailable
from rekindle.slurm_agent.copies.capture import (
    LIMITS,
    SUBMIT_DIR,
    UMASK,
    Captured,
    environment_of,
    for_submission,
    script_of,
    submission_of,
)
from rekindle.slurm_agent.copies.compare import ASKED_NAME, COMMENT, LEFT_OUT, differences, hosts_of, shown_of
from rekindle.slurm_agent.copies.hashes import OF_THIS_PROCESS, ValueHashes
from rekindle.slurm_agent.copies.reads import CopyReads
from rekindle.slurm_agent.copies.script_file import script_file
from rekindle.slurm_agent.reading import comment as comments
from rekindle.slurm_agent.reading import text
from rekindle.slurm_agent.reading.jobs import Job, plain_dependency
from rekindle.slurm_agent.reading.line import of_line, options_lost
from rekindle.slurm_agent.reading.nodes import Settings
from rekindle.slurm_agent.reading.options import expand, options_of
from rekindle.slurm_agent.reading.run import As, Runner, Unreadable
from rekindle.slurm_agent.reading.script import ScriptFacts, reads_its_place
from rekindle.slurm_agent.reading.script import read as read_script

# Of the attempt before; never carried into the next one. Its mailbox and bus stay what they were.
EXCLUDED: Final = "REKINDLE_EXCLUDED_NODES"  # nodes that we, and not the user, kept a submission of ours from
MAX_LOST: Final = 8  # names, in one sentence
STALE: Final = (EXCLUDED, *OF_ONE_ATTEMPT)
INTERACTIVE: Final = "it was started by salloc or srun: there is no script to submit again"
ARRAY: Final = "it is a task of a job array: one task cannot be submitted again as part of the array"
HETEROGENEOUS: Final = "it is a heterogeneous job: its parts cannot be submitted again as one"
NO_SCRIPT: Final = "its script cannot be read (the agent must run as root or SlurmUser)"
NO_ENVIRONMENT: Final = "the environment of its submission cannot be read (the agent must run as root on the head node)"
NO_ARGUMENTS: Final = "its script's arguments are known only as one line, in which blanks cannot be distinguished"
LOST: Final = "it was submitted with options, a plug-in's perhaps, that cannot be given again: "
NOT_KEPT: Final = "what Slurm showed of the original was not kept, by an older agent"
UNPRINTABLE: Final = "its name holds a line break or another character that is not printed"
NOT_WRITABLE: Final = "what is needed to submit it again cannot be kept"
READS_ITS_PLACE: Final = (
    "its script reads where it lies, or how it was submitted, from Slurm (Command= or SubmitLine= of its record): a "
    "copy of it lies elsewhere"
)
MAY_COME: Final = (NO_SCRIPT, NO_ENVIRONMENT, NO_ARGUMENTS)
HAS_DEADLINE: Final = "it has a deadline (sbatch --deadline), which is not carried over"
HAS_PRIORITY: Final = "it has a Priority of its own (sbatch --priority), which a copy that waits held loses"
HAS_NO_ENVIRONMENT: Final = "it was submitted with --export=NIL, which leaves no way to name the new attempt"
WAS_SHORTENED: Final = "its TimeLimit was shortened when it started (sbatch --time-min): the one asked for is not shown"


@dataclass(frozen=True, slots=True, kw_only=True)
class CapturedSpec:
    """What was captured. `facts` is None where the script could not be read; `is_final` False: worth another try."""

    spec: JobSpec | None
    cannot: tuple[str, ...]
    facts: ScriptFacts | None
    is_final: bool


def capture_spec(
    reads: CopyReads,
    settings: Settings,
    job: Job,
    detail: Mapping[str, str],
    hashes: ValueHashes = OF_THIS_PROCESS,
) -> CapturedSpec:
    """Capture a job; a copy's comment is made from `job.comment`.

    Raises: SlurmUnavailable; what else is missing is listed in `cannot`.
    """
    if not job.is_batch:
        return CapturedSpec(spec=None, cannot=(INTERACTIVE,), facts=None, is_final=True)
    script = script_of(settings.state_location, job.kept_as)
    try:
        script = script or reads.script(job.job)
    except SlurmError as err:
        if isinstance(err, SlurmUnavailable) and "no batch script" not in str(err):
            raise
        script = None
    environment = environment_of(settings.state_location, job.kept_as)
    how = submission_of(settings.state_location, job, detail, version=settings.version)
    return build_spec(
        job,
        detail,
        script=script,
        environment=environment,
        arguments=how.arguments,
        line=how.line,
        version=settings.version,
        hashes=hashes,
    )


def build_spec(
    job: Job,
    detail: Mapping[str, str],
    *,
    script: str | None,
    environment: Captured,
    arguments: tuple[str, ...] | None,
    line: str | None = None,
    version: str = "",
    hashes: ValueHashes = OF_THIS_PROCESS,
) -> CapturedSpec:
    """The spec, from what could be read. line: of the submission. version: Slurm's. Pure."""
    cannot = _never_the_same(job, detail, environment)
    if script is None:
        return CapturedSpec(spec=None, cannot=(*cannot, NO_SCRIPT), facts=None, is_final=False)
    own, kept, whole = of_script(script), environment.kept or {}, environment.all or {}
    words = (job.command.partition(" ")[0], *(arguments or ())) if job.command not in ("", "(null)") else ()
    given = of_line(line, words) if line is not None else None
    cannot += [NO_ENVIRONMENT] if environment.kept is None else []
    cannot += [NO_ARGUMENTS] if arguments is None else []
    cannot += _not_given_again(script, own, given or {}, whole)
    options = _options(job, detail, kept, own=own, line=given)
    left_out = tuple(name for name in environment.left_out if len(name) <= 2000)
    spec = JobSpec(
        script=script,
        arguments=tuple(job.command.split()[1:]) if arguments is None else arguments,
        workdir=job.workdir,
        user=job.user,
        options=options,
        environment={name: value for name, value in for_submission(kept).items() if name not in STALE},
        left_out=left_out,
        dependency=plain_dependency(job.dependency),
        shown=shown_of(job, detail, environment.all, version, hashes)
        | {f"{LEFT_OUT}{name}": hashes.of(name, whole[name]) for name in left_out}
        | {"Partition": options.get("partition") or ""}
        | _asked_name(job, own, given, whole),
    )
    facts = read_script(script, environment.kept)
    try:
        spec.to_json()
    except MailboxError as err:
        return CapturedSpec(spec=None, cannot=(*cannot, f"{NOT_WRITABLE}: {err}"[:500]), facts=facts, is_final=True)
    return CapturedSpec(
        spec=spec,
        cannot=tuple(cannot),
        facts=facts,
        is_final=environment.kept is not None and arguments is not None,
    )


def _options(
    job: Job,
    detail: Mapping[str, str],
    environment: Mapping[str, str],
    *,
    own: Mapping[str, str | None],
    line: Mapping[str, str | None] | None,
) -> dict[str, str | None]:
    """sbatch's options, with the job's comment and without the nodes that we excluded. own: the script's options."""
    stdout, stderr = expand(job.stdout, job), expand(job.stderr, job)
    options = options_of(job, detail, environment, stdout, stderr, script=own, line=line)
    options["comment"] = job.comment
    ours = environment.get(EXCLUDED, "")
    if ours and options.get("exclude"):
        options["exclude"] = without_hosts(options["exclude"] or "", ours.split(","))
    return options


def _asked_name(
    job: Job, own: Mapping[str, str | None], line: Mapping[str, str | None] | None, environment: Mapping[str, str]
) -> dict[str, str]:
    """The name that the job was submitted with, where it has another one now; nothing where that is not known."""
    if line is None or "wrap" in line:
        return {}
    script = job.command.partition(" ")[0].rpartition("/")[2]
    asked = line.get("job-name") or environment.get("SBATCH_JOB_NAME") or own.get("job-name") or script
    return {ASKED_NAME: asked} if asked not in ("", "(null)", job.name) else {}


def _never_the_same(job: Job, detail: Mapping[str, str], environment: Captured) -> list[str]:
    """What no copy could have again, by Slurm's record and the submission's environment."""
    found = []
    if job.is_array_task:
        found.append(ARRAY)
    if job.het_job:
        found.append(HETEROGENEOUS)
    if detail.get("Deadline", "N/A") not in ("N/A", "None", "Unknown", "(null)", ""):
        found.append(HAS_DEADLINE)
    if text.value(detail.get("TimeMin")) not in ("", "N/A") and job.state is not SlurmState.PENDING:
        found.append(WAS_SHORTENED)
    if (environment.all or {}).get("SLURM_EXPORT_ENV", "").upper() == "NIL":
        found.append(HAS_NO_ENVIRONMENT)
    if not job.name.isprintable():  # the copy's could not be compared with it
        found.append(UNPRINTABLE)
    return found


def _not_given_again(
    script: str, own: Mapping[str, str | None], line: Mapping[str, str | None], environment: Mapping[str, str]
) -> list[str]:
    """What no copy could be given again, by the script and the line of the submission."""
    lost = options_lost(line, own, environment)
    found = [HAS_PRIORITY] if "priority" in {*own, *line} else []
    found += [f"{LOST}{', '.join(lost)}"[:300]] if lost else []
    return found + ([READS_ITS_PLACE] if reads_its_place(script) else [])


def without_hosts(written: str, names: Collection[str]) -> str:
    """A list of hosts without those; as it was written where none of them is in it, or it cannot be read."""
    try:
        found = text.hosts(written)
    except Unreadable:
        return written
    kept = [name for name in found if name not in names]
    return written if len(kept) == len(found) else ",".join(kept)


def excluded_by(spec: JobSpec, order: Order) -> frozenset[str]:
    """The nodes that a copy is kept from, by its user and by the order."""
    return hosts_of(spec.options.get("exclude") or "") | frozenset(order.exclude)


def excluding_none_of(names: Collection[str], spec: JobSpec, order: Order) -> tuple[JobSpec, Order]:
    """Both without those names in what they exclude."""
    if not names:
        return spec, order
    own = without_hosts(spec.options.get("exclude") or "", names)
    kept = tuple(name for name in order.exclude if name not in names)
    return replace(spec, options={**spec.options, "exclude": own}), replace(order, exclude=kept)


def comment_of(spec: JobSpec, order: Order) -> str:
    """The new submission's comment: the old one's policy and keys, the Job it belongs to and its attempt's name. One
    that says nothing to us is its user's, and stays: sites charge by it. The copy is then known by its script's path.
    """
    theirs = spec.shown.get(COMMENT, "").strip()
    if theirs and comments.parse(theirs) is None:
        return theirs
    asked = comments.parse(spec.options.get("comment") or "") or comments.Comment()
    old = parse_attempt(order.attempt) if order.attempt else None
    job = order.environment.get(ENV_JOB_ID) or asked.job or (old.restarted(0).name if old else None)
    return comments.text_of(replace(asked, job=job, attempt=order.new_attempt))


def sbatch_arguments(spec: JobSpec, order: Order, script: str, names: tuple[str, ...]) -> list[str]:
    """The argument list. `names` are the variables that are added; with `--export` of the user's own they are named."""
    options = {name: given for name, given in spec.options.items() if name not in ("comment", "export")}
    if options.get("nodelist"):  # sbatch refuses a node that is asked for and excluded
        options["nodelist"] = without_hosts(options["nodelist"] or "", order.exclude)
    if order.nodes_max is not None:  # the spec may have been read while the job was smaller
        options["nodes"] = str(order.nodes_max)
    exclude = [name for name in [options.pop("exclude", "") or "", *order.exclude] if name]
    args = [
        f"--{name}" if given is None else f"--{name}={given}" for name, given in sorted(options.items()) if given != ""
    ]
    own = of_script(spec.script)
    if exclude or "exclude" in own:  # an empty one takes back the script's
        args.append(f"--exclude={','.join(exclude)}")
    args += [f"--export={_exported(spec, names)}", "--open-mode=append", "--propagate=NONE"]
    if spec.workdir:
        args.append(f"--chdir={spec.workdir}")
    if spec.dependency or "dependency" in own:  # what the original has waited for is over
        args.append(f"--dependency={spec.dependency}")
    return ["sbatch", "--parsable", "--hold", *args, f"--comment={comment_of(spec, order)}", script, *spec.arguments]


def _exported(spec: JobSpec, names: tuple[str, ...]) -> str:
    asked = spec.options.get("export") or "ALL"
    if asked == "ALL":
        return asked
    own = [] if asked == "NONE" else asked.split(",")
    return ",".join(dict.fromkeys([*own, *names])) or "NONE"


def sbatch(runner: Runner, spec: JobSpec, order: Order, secrets: Mapping[str, str], *more: str) -> str:
    """It runs as that user itself, not as root with `--uid`: the environment is the user's, and root must not start a
    program in it (LD_PRELOAD). Limits are slurmd's own (`--propagate=NONE`), because the agent's were not asked for.
    """
    who, _ = _whom(spec)
    environment = _environment(runner, spec, order, secrets)
    names = tuple(
        sorted({*order.environment, ENV_SLURM_ATTEMPT, ENV_SUBMITTED_ON, *([EXCLUDED] if order.exclude else [])})
    )
    where = submitted_from(spec)
    with script_file(spec.script, who, order.new_attempt or "") as script:
        args = sbatch_arguments(spec, order, script, names)
        args[:1] = [runner.where(args[0]), *more]
        return runner.change([runner.where("env"), f"--chdir={where}", *args], environ=environment, who=who, cwd="/")


def submit(runner: Runner, spec: JobSpec, order: Order, *, secrets: Mapping[str, str]) -> int:
    """sbatch --hold, as the job's user; the new job's id. `secrets` are variables that the spec leaves out.

    Raises: SlurmError.
    """
    printed = sbatch(runner, spec, order, secrets)
    number = printed.strip().splitlines()[-1].partition(";")[0].strip() if printed.strip() else ""
    if not text.is_number(number):
        raise SlurmUnavailable(f"sbatch: printed no job id: {printed.strip()[:200]!r}")
    return int(number)


def submitted_from(spec: JobSpec) -> str:
    """The folder that sbatch is called in. Raises: SlurmRefused."""
    return spec.environment.get(SUBMIT_DIR) or spec.workdir or _whom(spec)[1]


def ids_of(spec: JobSpec) -> tuple[int, int]:
    """Of the job's user and his group. Raises: SlurmRefused."""
    who, _ = _whom(spec)
    return who.uid, who.gid


def _environment(runner: Runner, spec: JobSpec, order: Order, secrets: Mapping[str, str]) -> dict[str, str]:
    kept = {name: given for name, given in spec.environment.items() if name not in (SUBMIT_DIR, UMASK)}
    kept |= {name: given for name, given in secrets.items() if name in spec.left_out}
    base = runner.environment()
    own = {name: base[name] for name in ("SLURM_CONF", "SLURM_CONF_SERVER") if name in base}
    fresh = {name: given for name, given in kept.items() if name not in STALE}
    named = {ENV_SLURM_ATTEMPT: order.new_attempt or "", ENV_SUBMITTED_ON: socket.gethostname()}
    if order.exclude:
        named[EXCLUDED] = ",".join(order.exclude)
    return {"PATH": base["PATH"]} | for_submission(fresh) | own | named | dict(order.environment)


def spec_differences(
    spec: JobSpec,
    order: Order,
    copy: Job,
    detail: Mapping[str, str],
    environment: Captured,
    version: str,
    hashes: ValueHashes = OF_THIS_PROCESS,
) -> tuple[str, ...]:
    """What of a copy is not as in its original, but for what the order changes; none: it is the same job. Pure."""
    if not spec.shown:
        return (NOT_KEPT,)
    if environment.all is None:
        return (NO_ENVIRONMENT,)
    asked = hosts_of(spec.shown.get("ReqNodeList", "")) - frozenset(order.exclude)
    excluded = excluded_by(spec, order)
    found = differences(
        spec.shown,
        shown_of(copy, detail, environment.all, version, hashes),
        hosts={"ReqNodeList": asked, "ExcNodeList": excluded},
        is_resized=order.nodes_max is not None and str(order.nodes_max) != spec.options.get("nodes"),
    )
    return (*found, *_lost_of_environment(spec, order, environment.all))


def _lost_of_environment(spec: JobSpec, order: Order, copy: Mapping[str, str]) -> tuple[str, ...]:
    """What the job's own environment had and the copy's has not, or has otherwise: by names, never by values. What
    looked like a secret was looked for before (`submissions`)."""
    own = {*STALE, *order.environment, ENV_SLURM_ATTEMPT, ENV_SUBMITTED_ON, "SLURM_CONF", "SLURM_CONF_SERVER"}
    kept = {
        name: given
        for name, given in for_submission(spec.environment).items()
        if name not in own and name not in (SUBMIT_DIR, UMASK) and not name.startswith(LIMITS)
    }
    lost = sorted(name for name, given in kept.items() if copy.get(name) != given)
    more = f" and {len(lost) - MAX_LOST} more" if len(lost) > MAX_LOST else ""
    return (f"of its environment, {', '.join(lost[:MAX_LOST])}{more} would not be the same",) if lost else ()


def _whom(spec: JobSpec) -> tuple[As, str]:
    """As whom sbatch runs: the job's user, with the job's group where he is still a member of it. And his home."""
    try:
        entry = pwd.getpwnam(spec.user)
    except (KeyError, ValueError) as err:
        raise SlurmRefused(f"sbatch: this head node knows no user {spec.user!r}") from err
    mask = spec.environment.get(UMASK, "")
    umask = int(mask, 8) if mask and all(char in "01234567" for char in mask) and len(mask) < 6 else -1
    if os.geteuid() != 0:
        if entry.pw_uid != os.geteuid():
            raise SlurmRefused(f"sbatch: the agent is not root and cannot submit as {spec.user}")
        return As(uid=entry.pw_uid, gid=os.getegid(), groups=None, umask=umask), entry.pw_dir
    groups = tuple(os.getgrouplist(spec.user, entry.pw_gid))
    asked = spec.shown.get("GroupId", "").rpartition("(")[2].removesuffix(")")
    is_member = text.is_number(asked) and (int(asked) in groups or entry.pw_uid == 0)
    gid = int(asked) if is_member else entry.pw_gid
    return As(uid=entry.pw_uid, gid=gid, groups=groups, umask=umask), entry.pw_dir
