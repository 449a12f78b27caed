"""The commands that speak to the service, and their arguments. What each does is in the module beside its name."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from rekindle.cli.options import (
    Unlisted,
    command,
    days,
    group,
    inner_commands,
    limit,
    metric,
    minutes,
    name,
    node,
    order,
    s3,
    since,
    slurm_job,
    step,
    watchable,
    window,
)
from rekindle.cli.options import nodes as node_list
from rekindle.cli.orders import approvals, drill, nodes, policies, runs, switches, undelivered
from rekindle.cli.views import clusters, ledger, overview, report
from rekindle.protocol.signals import FaultClass

SLURM_HELP: Final = (
    "a Slurm job by its number, which its cluster's agent watches: its comment begins with `rekindle`; else "
    "`scontrol update jobid=JOB comment=rekindle` first, and the job is protected automatically"
)


def register(commands: Any) -> None:
    """Add them."""
    _reading(commands)
    _jobs(commands)
    cancel = order(commands, "cancel", runs.cancel, "end an Incident; what has been done stays done")
    cancel.add_argument("incident", type=name, metavar="INCIDENT")
    waiting = watchable(commands, "approvals", approvals.approvals, "what waits for a person's answer; approve, deny")
    _answers(inner_commands(waiting, "approve|deny"))
    _nodes(group(commands, "nodes", "reboot or replace a node; hardware that keeps failing", "reboot|replace|hardware"))
    standing = watchable(commands, "switches", switches.show, "pause, shadow mode and breaker, as they stand; set them")
    _switches(inner_commands(standing, "pause|unpause|shadow|lift"))
    _policies(commands)
    _ledger(commands)
    _drill(commands)
    unread = group(commands, "dead-letters", "events that could not be read, notices not delivered", "events|notices")
    _unread_events(unread, "events")
    _undelivered_notices(unread, "notices")
    _second_names(Unlisted(commands))


def _second_names(commands: Any) -> None:
    """What is typed at night, and may stand in scripts, without its group's name."""
    _answers(commands)
    _nodes(commands)
    _switches(commands)
    _postmortem(commands)
    _unread_events(commands, "quarantine")
    _undelivered_notices(commands, "undelivered")


def _reading(commands: Any) -> None:
    watchable(commands, "status", overview.status, "what is happening now")
    jobs = watchable(commands, "jobs", overview.jobs, "protected Jobs, or one with its attempts")
    jobs.add_argument("job", nargs="?", type=name, metavar="JOB")
    jobs.add_argument("--active", action="store_true", help="only those that are protected now")
    jobs.add_argument("--wide", action="store_true", help="with how each is watched: alarms, metrics")
    incidents = watchable(commands, "incidents", overview.incidents, "open Incidents, and the newest closed ones")
    which = incidents.add_mutually_exclusive_group()
    which.add_argument("--open", action="store_true", help="open ones only")
    which.add_argument("--closed", action="store_true", help="closed ones only, newest first")
    which.add_argument("--all", action="store_true", help="open ones and every closed one")
    incidents.add_argument("--limit", type=limit, metavar="N", help="at most N closed ones")
    incidents.add_argument("--job", type=name, metavar="JOB", help="only this Job's")
    incidents.add_argument("--cluster", type=name, metavar="NAME", help="only this cluster's")
    incidents.add_argument(
        "--fault", choices=sorted(fault.value for fault in FaultClass), metavar="FAULT", help="only with this fault"
    )
    incidents.add_argument("--since", type=since, metavar="TIME", help="opened since: 24h, 7d, 2026-11-20T10:00Z")
    seen = watchable(commands, "clusters", clusters.clusters, "Slurm clusters and their agents, or one with its nodes")
    seen.add_argument("cluster", nargs="?", type=name, metavar="NAME")
    show = watchable(commands, "show", report.show, "one Incident's timeline; with --watch until it closes")
    show.add_argument("incident", type=name, metavar="INCIDENT")
    show.add_argument(
        "--report",
        action="store_true",
        help="a signed link to its page, for a browser or a phone, instead of the timeline",
    )
    show.add_argument("--save", type=Path, metavar="FILE", help="with --report: the page itself into a new file")


def _jobs(commands: Any) -> None:
    checkpoint = order(commands, "checkpoint", runs.checkpoint, "ask a run for a checkpoint now; it continues")
    checkpoint.add_argument("job", type=name, metavar="JOB")
    stop = order(commands, "stop", runs.stop, "save and stop a Job, to stay stopped")
    stop.add_argument("job", type=name, metavar="JOB")
    stop.add_argument("--no-checkpoint", action="store_true", help="do not ask it to save first")
    resubmit = order(commands, "resubmit", runs.resubmit, "save, stop and submit a Job again")
    resubmit.add_argument("job", type=name, metavar="JOB")
    resubmit.add_argument("--from-step", type=step, metavar="N", help="resume at step N at the latest")
    resubmit.add_argument(
        "--skip",
        type=window,
        action="append",
        metavar="A:B",
        help="leave out the data of steps A to B-1; may be repeated",
    )
    resubmit.add_argument(
        "--exclude",
        type=node_list,
        action="append",
        metavar="NODE[,NODE]",
        help="not on these nodes (Slurm); may be repeated",
    )
    register = order(commands, "register", runs.register, "protect a training job or a Slurm job from now on")
    which = register.add_mutually_exclusive_group(required=True)
    which.add_argument("training_job", nargs="?", type=name, metavar="TRAINING_JOB")
    which.add_argument("--slurm", type=slurm_job, metavar="CLUSTER/JOB", help=SLURM_HELP)
    register.add_argument("--policy", type=name, metavar="NAME", help="which policy (default: its tag's, or default)")
    register.add_argument("--mailbox", type=s3, metavar="s3://BUCKET/PREFIX", help="where its monitor and we meet")
    register.add_argument("--alarms", choices=("none", "job", "shared"), help="which CloudWatch alarms are kept for it")
    register.add_argument(
        "--hang-minutes", type=minutes, metavar="N", help="how long its metric may be silent before the hang alarm"
    )
    register.add_argument(
        "--metric",
        type=metric,
        action="append",
        metavar="ROLE=NAME",
        help="of a script without a monitor: loss=..., step=... or grad_norm=... is this metric of the training job",
    )


def _answers(commands: Any) -> None:
    for word, help_ in (
        ("approve", "let an Incident do what it asks for"),
        ("deny", "refuse what an Incident asks for; the run is left as it is"),
    ):
        answer = order(commands, word, approvals.answer, help_)
        answer.add_argument("incident", type=name, metavar="INCIDENT")
        answer.add_argument("approval", nargs="?", type=name, metavar="APPROVAL", help="which, where it asks several")
        answer.add_argument("--comment", type=name, metavar="TEXT", help="kept on the Incident's timeline")
        answer.set_defaults(answer=word)


def _nodes(commands: Any) -> None:
    for word, help_ in (
        ("reboot", "reboot a node, once nothing runs on it"),
        ("replace", "replace a node, once nothing runs on it; what is on its volumes is lost"),
    ):
        repair = order(commands, word, nodes.repair, help_)
        repair.add_argument("node", type=node, metavar="CLUSTER/NODE")
        repair.add_argument("--why", type=name, metavar="TEXT", help="kept on the Incident's timeline")
        repair.add_argument("--force", action="store_true", help="pass over the policy's budgets of repairs")
        repair.set_defaults(do=word)
    watchable(commands, "hardware", nodes.hardware, "hardware that keeps failing")


def _switches(commands: Any) -> None:
    pause = order(commands, "pause", switches.set_paused, "do nothing, everywhere, until unpaused")
    pause.add_argument("--why", type=name, metavar="TEXT", help="shown to those who ask why nothing happens")
    pause.set_defaults(paused=True)
    order(commands, "unpause", switches.set_paused, "lift the pause").set_defaults(paused=False)
    shadow = order(commands, "shadow", switches.set_shadow, "decide and tell, but do nothing; or do again")
    shadow.add_argument("state", choices=("on", "off"))
    shadow.add_argument("--job", type=name, metavar="JOB")
    shadow.add_argument("--cluster", type=name, metavar="NAME")
    shadow.add_argument("--everywhere", action="store_true")
    order(commands, "lift", switches.lift_breaker, "close the fleet-wide breaker: what it held continues")


def _policies(commands: Any) -> None:
    inner = group(commands, "policy", "what Rekindle may do: policy documents", "list|get|put|validate|diff")
    watchable(inner, "list", policies.listing, "every policy in brief")
    get = command(inner, "get", policies.get, "one policy: the document as it is stored")
    get.add_argument("name", type=name, metavar="NAME")
    get.add_argument("--effective", action="store_true", help="every field, with what counts")
    put = order(inner, "put", policies.put, "store a document, after showing what it changes")
    put.add_argument("name", type=name, metavar="NAME")
    put.add_argument("file", metavar="FILE", help="JSON; - is standard input")
    put.add_argument("--replaces", type=step, metavar="VERSION", help="refuse if another version is stored")
    validate = command(inner, "validate", policies.validate, "every problem of a document; nothing is stored")
    validate.add_argument("file", metavar="FILE", help="JSON; - is standard input")
    validate.add_argument("--name", type=name, metavar="NAME", help="as which policy (default: the one it names)")
    diff = command(inner, "diff", policies.diff, "what a document would change")
    diff.add_argument("name", type=name, metavar="NAME")
    diff.add_argument("file", metavar="FILE", help="JSON; - is standard input")
    diff.add_argument("--exit-code", action="store_true", help="exit with 1 if anything would change")


def _ledger(commands: Any) -> None:
    costs = watchable(commands, "ledger", ledger.ledger, "what Incidents cost and saved: of all, a Job or one")
    which = costs.add_mutually_exclusive_group()
    which.add_argument("--job", type=name, metavar="JOB")
    which.add_argument("--incident", type=name, metavar="INCIDENT")
    which.add_argument(
        "--days", "--since", type=days, metavar="N", help=f"of all, how far back ({ledger.DEFAULT_DAYS})"
    )
    _postmortem(inner_commands(costs, "postmortem"))


def _postmortem(commands: Any) -> None:
    story = command(commands, "postmortem", ledger.postmortem, "one Incident's post-mortem, in Markdown")
    story.add_argument("incident", type=name, metavar="INCIDENT")


def _drill(commands: Any) -> None:
    rehearse = order(commands, "drill", drill.drill, "rehearse a fault on a living Job: nothing is done to it")
    faults = sorted(fault.value for fault in FaultClass if fault is not FaultClass.OPERATOR_ORDER)
    rehearse.add_argument("fault", nargs="?", choices=faults, metavar="FAULT", help=", ".join(faults))
    rehearse.add_argument("--job", type=name, metavar="JOB")
    rehearse.add_argument("--show", type=name, metavar="DRILL", help="an earlier rehearsal, by its id")


def _unread_events(commands: Any, called: str) -> None:
    inner = group(commands, called, "events that could not be read", "list|redrive")
    watchable(inner, "list", overview.quarantine_list, "the oldest of them, left where they are")
    order(inner, "redrive", runs.redrive, "feed them in again, after the cause has been fixed")


def _undelivered_notices(commands: Any, called: str) -> None:
    inner = group(commands, called, "notices that did not reach a channel", "list|redrive")
    watchable(inner, "list", undelivered.listing, "some of them, with the reason; left where they are")
    order(inner, "redrive", undelivered.redrive, "send them again, after the channel has been fixed")
