"""`rekindle init` and `rekindle stack estimate`.

This module is loaded by every `rekindle` command, so it imports what it needs only to run.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rekindle.cli.options import whole
from rekindle.cli.service.target import DEFAULT_STACK, add_options
from rekindle.cli.terminal.parsing import described
from rekindle.client.errors import CommandFailed, Exit, NotFound, UsageError
from rekindle.client.table import clean

if TYPE_CHECKING:
    from infra.init.answers import Answers
    from infra.init.files import Plan
    from infra.init.look import AccountState
    from rekindle.doctor.aws.account import Account

_INIT: Final = """\
Write what is still missing for a protected job into a folder: the policy, the rights of the roles, the job's settings,
the lines of its script, the Slack app's manifest; and name the commands that follow, in order. On a terminal it asks
for what no option says. The account is only read: who asks, its training jobs' roles, HyperPod clusters, buckets,
the stack. Nothing is deployed, and no file is overwritten without --force."""
_ESTIMATE: Final = """\
What a deployment costs per month idle, per Job and per Incident, from the same prices and counts as docs/deploy.md.
Nothing is asked of AWS."""
OUT: Final = Path("rekindle-setup")
RUNS: Final = ("training-job", "hyperpod-slurm", "slurm")
INTEGRATIONS: Final = ("plain", "ddp", "fsdp2", "huggingface", "lightning", "accelerate", "deepspeed")
_MAX_COUNT: Final = 1_000_000


def add_init(commands: Any) -> None:
    asks = described(commands, "init", "what is missing for a protected job, written into a folder", _INIT)
    asks.add_argument("--runs", choices=RUNS, metavar="WHERE", help=f"where the job runs: {', '.join(RUNS)}")
    asks.add_argument(
        "--with",
        dest="integration",
        choices=INTEGRATIONS,
        metavar="FRAMEWORK",
        help=f"{', '.join(INTEGRATIONS)} (plain)",
    )
    asks.add_argument("--job", metavar="NAME", help="the Job's name; each attempt of it gets one of its own")
    asks.add_argument("--role", metavar="ARN", help="(training-job) the execution role of its training jobs")
    asks.add_argument("--cluster", metavar="NAME", help="(Slurm) the cluster's name")
    asks.add_argument(
        "--mailbox",
        metavar="URI",
        help="s3://BUCKET/PREFIX/JOB, or on Slurm a path (training-job: in the stack's bucket)",
    )
    asks.add_argument("--checkpoints", metavar="URI", help="where its checkpoints lie, if not below the mailbox")
    asks.add_argument("--policy", metavar="NAME", help="which policy (default)")
    asks.add_argument(
        "--shadow",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="begin in shadow mode: decide and tell, do nothing (yes)",
    )
    asks.add_argument("--email", metavar="ADDRESS", help="who gets notices by e-mail (none)")
    asks.add_argument(
        "--slack", action=argparse.BooleanOptionalAction, default=None, help="the Slack app's manifest (no)"
    )
    asks.add_argument("--region", metavar="NAME", help="AWS region (default: as the AWS CLI has it)")
    asks.add_argument("--profile", metavar="NAME", help="AWS profile (default: as the AWS CLI has it)")
    asks.add_argument("--out", type=Path, default=OUT, metavar="DIR", help=f"where the files go ({OUT})")
    asks.add_argument("--force", action="store_true", help="overwrite files that differ")
    asks.add_argument("--yes", action="store_true", help="ask nothing: options and defaults alone count")
    add_options(asks)
    asks.set_defaults(run=_init, extra="cli")


def add_estimate(commands: Any) -> None:
    costs = described(commands, "estimate", "what a deployment costs: idle, per Job, per Incident", _ESTIMATE)
    costs.add_argument("--jobs", type=_count, default=1, metavar="N", help="Jobs that train all month (1)")
    costs.add_argument("--incidents", type=_count, default=1, metavar="N", help="Incidents in that month (1)")
    costs.add_argument("--json", action="store_true", help="for machines")
    costs.set_defaults(run=_estimate, extra="deploy")


def _count(text: str) -> int:
    return whole(text, 0, _MAX_COUNT)


def _estimate(args: argparse.Namespace) -> int:
    from infra.estimate import as_text, estimate
    from infra.package import PackagingError

    try:
        found = estimate(jobs=args.jobs, incidents=args.incidents)
    except PackagingError as err:
        raise CommandFailed(str(err)) from err
    print(json.dumps(found.to_json(), indent=2) if args.json else as_text(found))
    return Exit.OK


def _init(args: argparse.Namespace) -> int:
    """Raises: CliError."""
    from infra.init import files, look
    from infra.init.answers import WrongAnswer, stage_of
    from infra.init.questions import ask, check_options

    stack = getattr(args, "stack", None) or os.environ.get("REKINDLE_STACK") or DEFAULT_STACK
    try:
        stage_of(stack)
    except WrongAnswer as err:
        raise UsageError(f"--stack: {clean(stack)!r} {err}: `rekindle stack deploy` makes no other") from err
    if args.out.exists() and not args.out.is_dir():
        raise UsageError(f"--out: {clean(args.out)} is no folder")
    is_asked = not args.yes and sys.stdin.isatty() and sys.stderr.isatty()
    check_options(args, is_asked=is_asked)
    account = _account(args)
    seen = look.look(account, stack)
    _tell(look.stack_rows(seen, stack))
    service = look.service(seen, stack)
    known = service if isinstance(service, look.Service) else service.why
    answers = ask(args, seen, known, is_asked=is_asked)
    own = known.bucket if isinstance(known, look.Service) else ""
    _tell(look.account_rows(account, answers, seen, own))
    api, is_stored = _service(args, account, seen, answers, stack)
    given = files.InitInputs(
        answers=answers,
        seen=seen,
        service=known,
        stack=stack,
        is_policy_stored=is_stored,
        api=api,
        region=args.region or account.region,
        out=str(args.out),
        target=_target(args),
    )
    plan = files.plan(given)
    _tell_costs(api)
    if is_asked:
        _confirm(args.out, plan)
    _write(args.out, plan, is_forced=args.force)
    for name, why in plan.left_out:
        print(f"left out  {clean(name)}: {clean(why)}")
    print(f"\nNext: {plan.commands[0]}\nAll steps in order: {clean(args.out / files.STEPS)}")
    return Exit.OK


def _account(args: argparse.Namespace) -> Account:
    """The operator's own account; none beside an embedded cloud, whose store is no account."""
    from rekindle.cli.tools.doctor import account_of
    from rekindle.client.api import is_loopback
    from rekindle.doctor.aws.account import Account
    from rekindle.doctor.setup import ON_THIS_MACHINE

    named = getattr(args, "api", None)
    is_local = getattr(args, "store", None) is not None or (named is not None and is_loopback(str(named)))
    if is_local and "AWS_ENDPOINT_URL" not in os.environ:
        return Account(why_none=ON_THIS_MACHINE)
    return account_of(args)


def _target(args: argparse.Namespace) -> tuple[str, ...]:
    """The option that names the service in the commands that follow."""
    for name in ("api", "store", "stack"):
        value = getattr(args, name, None)
        if value is not None:
            return (f"--{name}", str(value))
    return ()


def _service(
    args: argparse.Namespace, account: Account, seen: AccountState, answers: Answers, stack: str
) -> tuple[str, bool]:
    """The API's address ("" where nothing is deployed), and whether the policy is stored there.

    Raises: CliError, where a service that was named cannot be asked.
    """
    from infra.init.look import Deployed, has_policy
    from rekindle.cli.service.target import connected
    from rekindle.client.shapes import member
    from rekindle.doctor.base.facts import NotInspected

    if getattr(args, "api", None) is None and getattr(args, "store", None) is None:
        if not isinstance(seen.stack, Deployed):
            return "", False
        found = has_policy(account, stack, answers.policy)
        if isinstance(found, NotInspected):
            _tell([(f"policy {answers.policy}", f"unknown: {found.why}")])
        return seen.stack.outputs.get("ApiUrl", ""), found is True
    address = ""
    try:
        with connected(args, only_look=True) as client:
            address = client.url
            body = client.get(f"/policies/{answers.policy}")
    except NotFound:
        return address, False
    return address, member(body, "is_builtin") is not True


def _tell(rows: Any) -> None:
    for name, value in rows:
        print(f"{clean(name)}: {clean(value)}")


def _tell_costs(api: str) -> None:
    """What a deployment makes and costs. Without the packages of `deploy` it says which extra tells that."""
    from infra.package import PackagingError

    print(f"\nRekindle is deployed: {clean(api)}" if api else "\n`rekindle stack deploy` makes in your account:")
    try:
        from infra.costs import packaged
        from infra.estimate import lines, of

        template, config = packaged()
    except (ModuleNotFoundError, PackagingError) as err:
        print(f"  what it makes and costs is not known here ({clean(str(err).splitlines()[0])}):")
        print("  pip install 'rekindle[deploy]', then rekindle stack estimate")
        return
    if not api:
        kinds = Counter(resource["Type"].removeprefix("AWS::") for resource in template["Resources"].values())
        print("  " + ", ".join(f"{count} {kind}" for kind, count in kinds.most_common()))
    for line in lines(of(template, config, jobs=1, incidents=1)):
        print(f"  {line}")
    print("  USD a month, list prices; `rekindle stack estimate` has the arithmetic\n")


def _confirm(out: Path, plan: Plan) -> None:
    """Raises: CommandFailed."""
    print(f"Write into {clean(out)}: {', '.join(plan.files)}\nGo on? [Y/n] ", end="", file=sys.stderr, flush=True)
    answer = sys.stdin.readline()
    if not answer or answer.strip().lower() not in ("", "y", "yes"):
        raise CommandFailed("nothing was written")


def _write(out: Path, plan: Plan, *, is_forced: bool) -> None:
    """Each file whole or not at all; what is there and differs is kept unless `is_forced`."""
    out.mkdir(parents=True, exist_ok=True)
    for name, text in plan.files.items():
        path, raw = out / name, text.encode()
        if _held(path) == raw:
            print(f"unchanged {clean(path)}")
        elif os.path.lexists(path) and not is_forced:
            print(f"kept      {clean(path)}: it differs; --force overwrites it")
        else:
            _put(path, raw)
            print(f"written   {clean(path)}")


def _held(path: Path) -> bytes | None:
    with suppress(OSError):
        return path.read_bytes()
    return None


def _put(path: Path, raw: bytes) -> None:
    """Raises: UsageError, where the name is a folder's."""
    if path.is_dir() and not path.is_symlink():
        raise UsageError(f"--out: {clean(path)} is a folder")
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_bytes(raw)
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)
