"""docs/reference/iam.md: what each function, the training roles and the agent may do, from the packaged policies."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from infra.functions import FUNCTIONS, INFRA
from infra.grants import POLICIES
from infra.lifecycle import HERE, POLICY
from infra.tables import cell, code, page, table

PAGE: Final = "docs/reference/iam.md"
_ARN: Final = re.compile(r"arn:\$\{AWS::Partition\}:([\w-]+):\$\{AWS::Region\}:\$\{AWS::AccountId\}:")
_SHARED: Final = (
    ("Training role", "training-role", "The stack's managed policy for the role of the training jobs."),
    (
        "Buckets of Jobs, read",
        "training_buckets_read",
        "Attached to the functions that read checkpoints and mailboxes.",
    ),
    ("Buckets of Jobs, write", "training_buckets_write", "Attached to the functions that write to mailboxes."),
)

# Why a statement is as it is, where its name does not say it.
WHY: Final[Mapping[str, str]] = {
    "Logs": "Lambda does it in the function's name",
    "KeepFailures": "Lambda keeps an event that failed",
    "TakeDeliveries": "Lambda polls the queue in the function's name",
    "DurableState": "Lambda's durable execution",
    "WriteRegistry": "the switches (`CONTROL`) are written by the API, and by `recover`, which trips the breaker",
    "WriteDeliveries": "what speaks to other people's servers writes what it has delivered, and nothing else",
    "Resubmit": "a job on reserved capacity names its plan, and the plan must allow it too",
    "HandOverTrainingRole": "a role that the stack does not name is handed to no job: a tag may name any role",
    "UseKeysOfBuckets": "where a bucket has a key of its own",
    "UseKeysOfVolumes": "where a job's volume has a key of its own",
    "ListTrainingJobs": "AWS offers it for the whole account only; it gives names and states",
    "ReadMetrics": "metrics have no ARN; numbers are read only",
    "JobAlarms": "`-job-…` are the Jobs' own, `-jobs-…` the shared ones; the stack's own alarms have other names",
    "ReadAlarms": "a listing by a prefix asks for the right on all alarms",
    "ReadAlarmsTags": "an alarm of a user's may name its Job by a tag",
    "RepairNodes": "a node has no ARN of its own; that no controller is repaired, the code sees to",
    "ReadCheckpoints": "manifests name files anywhere under the Job's prefix; their sizes are compared before a resume",
    "ReadPages": "what a role may read, its signed links open: Incidents' pages and nothing else",
    "ListPolicies": "the path itself is what the call is about; the documents lie below it",
    "Secrets": "encrypted with Parameter Store's own key, which lets every reader of the parameter decrypt",
}


def page_text() -> str:
    about = [
        "One role per function, and in it what the function calls and nothing else: tests run each function under its",
        "role, fail where a call is denied, and name what no test used. In ARNs `…` is the stack's partition, or its",
        "Region and account;",
        "`${STACK}` is the stack's name, other `${...}` are the template's resources and parameters.",
        "Why each part is kept apart: [threat-model.md](../threat-model.md).",
        "",
        *table(
            ("function", "started by", "statements"),
            (
                (
                    f"[`{function.name}`](#{function.name})",
                    str(function.trigger),
                    str(len(_statements(POLICIES / f"{function.name}.json"))),
                )
                for function in FUNCTIONS
            ),
        ),
    ]
    functions = (
        line for function in FUNCTIONS for line in _policy(f"`{function.name}`", POLICIES / f"{function.name}.json", "")
    )
    shared = (line for title, name, text in _SHARED for line in _policy(title, POLICIES / f"{name}.json", text))
    agent = _policy(
        "Agent on a Slurm head node",
        HERE / POLICY,
        "For the role of the head node ([hyperpod-slurm.md](../hyperpod-slurm.md#2-rights)).",
    )
    return page("IAM: every role and policy", about, functions, shared, agent)


def named() -> set[str]:
    """Files of policies that the page tells."""
    files = [POLICIES / f"{name}.json" for name in (*(each.name for each in FUNCTIONS), *(each[1] for each in _SHARED))]
    return {path.relative_to(INFRA).as_posix() for path in (*files, HERE / POLICY)}


def _policy(title: str, path: Path, text: str) -> Iterator[str]:
    yield from (f"## {title}", "", f"`infra/{path.relative_to(INFRA).as_posix()}`. {text}".rstrip(), "")
    rows = []
    for condition, statement in _statements(path):
        only = [f"if {condition}"] if condition else []
        only += [
            cell(f"{key} {test} {_shown(value)}")
            for test, keys in statement.get("Condition", {}).items()
            for key, value in keys.items()
        ]
        effect = "" if statement["Effect"] == "Allow" else "**denied:** "
        rows.append(
            (
                code(statement.get("Sid", "")),
                effect + ", ".join(code(action) for action in _listed(statement["Action"])),
                ", ".join(
                    code(_shown(resource))
                    for resource in _listed(statement.get("Resource", statement.get("NotResource")))
                ),
                "; ".join(only),
                WHY.get(statement.get("Sid", ""), ""),
            )
        )
    yield from table(("statement", "actions", "on", "only", "why"), rows)


def _statements(path: Path) -> list[tuple[str, Mapping[str, Any]]]:
    """(the condition of the template under which it is there, the statement)."""
    found = []
    for entry in json.loads(path.read_text(encoding="utf-8"))["Statement"]:
        inner = entry.get("Fn::If")
        found.append((inner[0], inner[1]) if inner else ("", entry))
    return found


def _shown(value: Any) -> str:
    """A value of the template, in CloudFormation's short words."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return ", ".join(_shown(item) for item in value)
    ((function, given),) = value.items()
    match function:
        case "Ref":
            return f"${{{given}}}"
        case "Fn::Sub":
            return _ARN.sub(r"arn:…:\1:…:", str(given)).replace("${AWS::StackName}", "${STACK}")
        case "Fn::GetAtt":
            return f"${{{'.'.join(given)}}}"
        case "Fn::Join":
            return str(given[0]).join(_shown(item) for item in (given[1] if isinstance(given[1], list) else [given[1]]))
        case "Fn::Split":
            return _shown(given[1])
        case "Fn::If":
            return f"{_shown(given[1])} if {given[0]}"
        case _:
            raise ValueError(f"{function} is not known here")


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]
