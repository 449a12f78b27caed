"""What the API answers, as named schemas: data of the OpenAPI document, held against real answers by the tests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from chalicelib.api.schema import (
    Schema,
    any_text,
    at,
    flag,
    free,
    listing,
    maybe,
    number,
    or_null,
    record,
    ref,
    table,
    whole,
    word,
)
from chalicelib.api.shapes_ledger import LEDGER_COMPONENTS
from chalicelib.domain.model.approvals import ApprovalAnswer, Guard
from chalicelib.domain.model.incident import Phase
from chalicelib.domain.model.job import AlarmMode
from chalicelib.domain.model.signal import SignalKind, SignalSource
from chalicelib.platforms.registry import PLATFORMS
from chalicelib.services.reporting.outcome import What
from rekindle.signatures.faults import FaultClass

_CURSOR: Final = or_null(any_text("where the next page begins; null: this was the last one"))
_STEP: Final = ref("Step")
_MAYBE_TEXT: Final = or_null(any_text())


def _null_at(said: str) -> Schema:
    return or_null(at(said))


_JOB_FIELDS: Final[Mapping[str, Schema]] = {
    "job_id": any_text("the same across every attempt"),
    "name": any_text("as the platform shows it"),
    "platform": word("what runs its attempts", [one.name for one in PLATFORMS]),
    "policy": any_text("the policy's name"),
    "created_at": at("when the first attempt was created"),
    "current_attempt": any_text("the platform's name of the attempt under protection"),
    "attempt_number": whole("its number"),
    "mailbox": any_text("s3:// prefix where monitor and service meet; empty: none"),
    "active": flag("false once the run is over"),
    "open_incident": or_null(any_text("the Incident that is open now")),
    "metrics": table(any_text(), "role (loss, step, grad_norm) -> the training job's own metric"),
    "alarms": word("which CloudWatch alarms are kept for it", AlarmMode),
    "alarms_state": any_text("what has come of them"),
    "hang_minutes": whole("how long its metric may be silent"),
    "size": record(
        {
            "instances": listing(listing({}), "[type, how many]; empty where the platform names no types"),
            "gpus": maybe(or_null(whole("GPUs in all"))),
        },
        "as it was when it was registered",
    ),
    "limits": listing(any_text(), "what cannot be done for it"),
}
_BRIEF_FIELDS: Final[Mapping[str, Schema]] = {
    "incident_id": any_text(),
    "job_id": or_null(any_text("null for a node's or a cluster's own")),
    "cluster": _MAYBE_TEXT,
    "node": _MAYBE_TEXT,
    "fault": word("what is wrong", FaultClass),
    "phase": word("where the recovery stands", Phase),
    "outcome": any_text("how it ended; empty while it is open"),
    "opened_at": at("when the first Signal was taken in"),
    "closed_at": _null_at("when it ended"),
    "attempt": or_null(any_text("the attempt under care")),
    "tries": whole("resubmissions, or repairs of the node, so far"),
    "target_step": _STEP,
    "approvals_pending": whole("questions that wait for an answer"),
    "held_by": listing(word("a guard", Guard), "guards that hold something back now"),
}
_APPROVAL_FIELDS: Final[Mapping[str, Schema]] = {
    "approval_id": any_text("unique in its Incident"),
    "key": any_text("the step that it covers"),
    "actions": listing(any_text()),
    "what": any_text("what will be done"),
    "why": any_text("which rule asks"),
    "asked_at": at("when it was asked"),
    "deadline_at": at("when the default counts"),
    "default": word("what counts if nobody answers", ApprovalAnswer),
    "answer": or_null(word("null until then", ApprovalAnswer)),
    "by": any_text("who answered"),
    "answered_at": _null_at("when"),
    "comment": any_text(),
    "phase": any_text("the phase in which it was asked"),
    "told": flag("the answer was told"),
    "lapsed_at": _null_at("when it was no longer asked, because things had changed"),
}

COMPONENTS: Final[Mapping[str, Schema]] = {
    "Problem": record(
        {
            "type": any_text(),
            "title": any_text("the kind of problem"),
            "status": whole("the HTTP status", low=400, high=599),
            "detail": any_text("what is wrong, for people"),
            "field": any_text("dotted path of the offending field, where there is one"),
        },
        "RFC 9457",
        may=("field",),
    ),
    "GatewayMessage": {
        "type": "object",
        "description": "what API Gateway says by itself: no signature, throttled, its own limits",
        "properties": {"message": or_null(any_text())},
        "additionalProperties": True,
    },
    "Step": maybe(or_null(whole("a training step"))),
    "Job": record(_JOB_FIELDS),
    "JobInFull": record(
        {
            **_JOB_FIELDS,
            "attempts": listing(ref("Attempt"), "in order"),
            "incidents": listing(ref("IncidentBrief"), "the newest 20"),
        }
    ),
    "Jobs": record({"jobs": listing(ref("Job")), "cursor": _CURSOR}),
    "Attempt": record(
        {
            "number": whole("1 is the first"),
            "name": any_text("the platform's name"),
            "submitted_at": at("when it was submitted"),
            "incident_id": or_null(any_text("the Incident that submitted it")),
            "resume_step": _STEP,
            "skips": listing(listing(whole("step")), "[from_step, to_step) whose data are left out"),
            "status": any_text("as the platform last told it"),
            "first_step": _STEP,
            "last_step": _STEP,
            "ended_at": _null_at("when it ended"),
        }
    ),
    "IncidentBrief": record(_BRIEF_FIELDS),
    "Incidents": record({"incidents": listing(ref("IncidentBrief")), "cursor": _CURSOR}),
    "Line": record(
        {
            "at": at("when"),
            "phase": word("the phase after it", Phase),
            "rule": any_text("the rule that decided"),
            "text": any_text("for people"),
            "actions": listing(any_text(), "what was ordered"),
            "facts": free("what the look saw, what each action answered"),
        },
        "one line of an Incident's story",
    ),
    "Timeline": record({"timeline": listing(ref("Line")), "cursor": _CURSOR}),
    "Signal": record(
        {
            "kind": word("what was observed", SignalKind),
            "source": word("by whom", SignalSource),
            "occurred_at": at("by the source's own clock"),
            "dedupe_key": any_text("equal for each delivery of the same fact"),
            "summary": any_text("for people"),
            "job_id": _MAYBE_TEXT,
            "attempt": _MAYBE_TEXT,
            "cluster": _MAYBE_TEXT,
            "node": _MAYBE_TEXT,
            "fault": or_null(word("what it suggests", FaultClass)),
            "triggers": flag("it may open an Incident"),
            "evidence": free("small facts of the source"),
        }
    ),
    "Approval": record(_APPROVAL_FIELDS),
    "Hold": record(
        {
            "guard": word("what held", Guard),
            "since": at("since when"),
            "said": any_text("why, for people"),
            "actions": listing(any_text(), "what was not done"),
            "until": _null_at("until when; null: it still holds"),
        }
    ),
    "Incident": record(
        {
            "incident_id": any_text(),
            "job_id": _MAYBE_TEXT,
            "cluster": _MAYBE_TEXT,
            "node": _MAYBE_TEXT,
            "opened_at": at("when the first Signal was taken in"),
            "closed_at": _null_at("when it ended"),
            "phase": word("where the recovery stands", Phase),
            "phase_entered_at": at("since when"),
            "fault": word("what is wrong", FaultClass),
            "fault_rule": any_text("the rule that says so"),
            "outcome": any_text("how it ended"),
            "policy_name": any_text(),
            "policy_version": any_text(),
            "policy_document": or_null(free("the policy that counts for it, whole")),
            "version": whole("counts its changes"),
            "generation": whole("which durable execution works on it"),
            "attempt": or_null(any_text("the attempt under care")),
            "attempt_number": whole("its number"),
            "target_step": _STEP,
            "onset_step": _STEP,
            "watch_step": _STEP,
            "signals": listing(ref("Signal"), "the newest that were taken in"),
            "signals_seen": whole("all that were"),
            "tries": listing(free("one resubmission"), "resubmissions so far"),
            "failures": listing(free("how one attempt ended")),
            "rollbacks": whole("roll-backs so far"),
            "skips": listing(listing(whole("step")), "[from_step, to_step) whose data are left out"),
            "suspicions": listing(free("who is suspected of what")),
            "conclusion": any_text("what came out of the evidence"),
            "repair": or_null(free("what a node's own Incident remembers")),
            "approvals": listing(ref("Approval")),
            "holds": listing(ref("Hold"), "what has held something back"),
            "timeline": listing(ref("Line"), "the newest lines, in order"),
            "timeline_left_out": whole("older lines that did not fit: see /incidents/{id}/timeline"),
            "inbox": listing(ref("Signal"), "taken in by its next look"),
        },
        "an Incident with everything that its decisions rest on; members beside these are the workflow's own",
        is_open=True,
    ),
    "Taken": record(
        {
            "what": word("how the order was taken", What),
            "reason": any_text("in a few stable words"),
            "incident_id": or_null(any_text("where to follow it")),
        }
    ),
    "Health": record({"status": {"const": "ok"}, "stage": any_text(), "at": at("now")}),
    "Status": record(
        {
            "paused": flag("the global pause"),
            "jobs_active": whole("Jobs under protection"),
            "incidents_open": whole("open Incidents"),
            "incidents": listing(ref("IncidentBrief"), "the newest 50 of them"),
            "at": at("now"),
        }
    ),
    "Switches": record(
        {
            "paused": flag("the global pause"),
            "paused_by": any_text(),
            "paused_at": _null_at("since when"),
            "paused_why": any_text(),
            "shadow": record(
                {
                    "everywhere": flag("nothing is done, for nobody"),
                    "jobs": listing(any_text()),
                    "clusters": listing(any_text()),
                    "changed_by": any_text(),
                    "changed_at": _null_at("when"),
                }
            ),
            "breaker": record(
                {
                    "open": flag("it holds everything"),
                    "tripped_at": _null_at("when it tripped last"),
                    "incident_id": any_text("whose action would have been one too many"),
                    "said": any_text("what was counted"),
                    "lifted_at": _null_at("when it was lifted last"),
                    "lifted_by": any_text(),
                }
            ),
        }
    ),
    "PendingApproval": record(
        {
            **_APPROVAL_FIELDS,
            "incident": record(
                {
                    "incident_id": any_text(),
                    "job_id": _MAYBE_TEXT,
                    "cluster": _MAYBE_TEXT,
                    "node": _MAYBE_TEXT,
                    "fault": word("what is wrong", FaultClass),
                    "phase": word("where the recovery stands", Phase),
                    "opened_at": at("since when"),
                }
            ),
        }
    ),
    "Approvals": record({"approvals": listing(ref("PendingApproval"))}),
    "QuarantinedEvent": free("an event that could not be read, with what is wrong with it"),
    "Quarantine": record({"events": listing(ref("QuarantinedEvent"))}),
    "Redriven": record(
        {"taken": whole("events fed in again"), "quarantined_again": whole("of them, still not readable")}
    ),
    "UndeliveredNotice": record(
        {
            "id": any_text("the queue's own id of it"),
            "channel": any_text("by its name in the channels document; empty: nobody can read the message"),
            "why": any_text("what the channel answered, or what is wrong"),
            "given_up_at": _null_at("when it was given up; null: not told"),
            "notice_id": any_text("equal for the same notice on other channels"),
            "said_at": _null_at("when it was said; null: not told"),
            "severity": any_text(),
            "kind": any_text(),
            "title": any_text(),
            "incident_id": any_text("empty: about none"),
            "job_id": any_text("empty: about none"),
        }
    ),
    "Undelivered": record({"notices": listing(ref("UndeliveredNotice"))}),
    "SentAgain": record(
        {"sent_again": whole("notices on their way again"), "unreadable": whole("messages that are no notice; left")}
    ),
    "PolicyBrief": record(
        {
            "name": any_text(),
            "version": whole("counts its writings; 0: nothing is stored"),
            "is_builtin": flag("only the built-in policy counts"),
            "modified_at": _null_at("when it was written"),
        }
    ),
    "Policies": record({"policies": listing(ref("PolicyBrief"))}),
    "Policy": record(
        {
            "name": any_text(),
            "version": whole("counts its writings; what the next PUT names"),
            "is_builtin": flag("only the built-in policy counts"),
            "modified_at": _null_at("when it was written"),
            "document": free("as it is stored"),
            "effective": or_null(free("every field with what counts")),
            "problem": or_null(any_text("why the service cannot read what is stored")),
        }
    ),
    "PolicyVerdict": record(
        {
            "valid": flag("the service could read it"),
            "problems": listing(record({"field": any_text("dotted path"), "problem": any_text()})),
            "effective": or_null(free("every field with what would count")),
        }
    ),
    "PolicyDiff": record(
        {
            "name": any_text(),
            "version": whole("the one that is stored, 0: none"),
            "changes": listing(
                record(
                    {
                        "field": any_text("dotted path"),
                        "now": {"description": "what counts now; null: nothing"},
                        "then": {"description": "what would count"},
                    }
                )
            ),
            "problem": or_null(any_text("why the stored one cannot be compared with")),
        }
    ),
    "ClusterBrief": record(
        {
            "cluster": any_text(),
            "unknown": {"description": "why nothing is known of it; null: something is"},
            "heartbeat_age_s": or_null(number("since the agent last said that it lives")),
            "slurm_read_age_s": or_null(number("since it last read Slurm")),
            "agent_version": any_text(),
            "slurm_version": any_text(),
            "cluster_arn": any_text(),
            "problems": listing(any_text()),
            "node_states": or_null(table(whole("nodes"), "state -> how many")),
            "jobs_active": whole("protected Jobs on it"),
        },
        is_open=True,
    ),
    "Clusters": record({"clusters": listing(ref("ClusterBrief"))}),
    "Cluster": {
        "allOf": [
            ref("ClusterBrief"),
            {
                "type": "object",
                "properties": {
                    "nodes": listing(free("one node"), "at most 1,000"),
                    "jobs": listing(free("one protected Job")),
                },
                "required": ["nodes", "jobs"],
            },
        ]
    },
    "Lemons": record({"lemons": listing(ref("Lemon"), "at most 200")}),
    "Lemon": record(
        {
            "identity": any_text("GPU UUID, serial number or instance id"),
            "kind": any_text("which of these"),
            "is_lemon": flag("by the built-in policy"),
            "faults_total": whole("ever"),
            "faults_in_window": whole("lately"),
            "window_days": whole("what lately is"),
            "faults": listing(free("one fault, the newest first")),
        }
    ),
    **LEDGER_COMPONENTS,
}
