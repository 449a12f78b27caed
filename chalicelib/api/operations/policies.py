"""Routes about policy documents: listed, read, tried, compared, stored."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final

from chalicelib.api.fields import MAX_POLICY_NAME, PolicyName
from chalicelib.api.operation import Operation
from chalicelib.api.operations.shared import time_or_null
from chalicelib.api.parts import Parts
from chalicelib.api.problems import ApiResponse, ok
from chalicelib.api.request import Request
from chalicelib.api.schema import Schema, any_object, any_text, flag, listing, or_null, record, ref, whole
from chalicelib.api.versions import Version, replace, versioned
from chalicelib.services.operator.policy_documents import DEFAULT_NAME

Document = Annotated[
    Mapping[str, Any], "a policy document (docs/policy.md); a field that is left out takes its built-in value"
]
_NAME: Final = re.compile(r"[A-Za-z0-9._-]+")  # a policy's name in a path, NAMES["name"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Replacement:
    """what is stored, in place of which version"""

    document: Document
    version: Version = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """what is tried, as which policy"""

    document: Document
    name: PolicyName | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """what is compared with the stored one"""

    document: Document


def list_policies(parts: Parts, _: Request) -> ApiResponse:
    """Every policy in brief."""
    return ok({"policies": parts.policy_documents.listing()})


def get_policy(parts: Parts, request: Request) -> ApiResponse:
    """One policy: the document as it is stored, and every field with what counts."""
    return versioned(parts.policy_documents.get(request.names["name"]))


def put_policy(parts: Parts, request: Request) -> ApiResponse:
    """Store a policy in place of the version that was read."""
    form: Replacement = request.form
    return replace(
        request, lambda version: parts.policy_documents.put(request.names["name"], form.document, replaces=version)
    )


def validate_policy(parts: Parts, request: Request) -> ApiResponse:
    """Try a document: every problem with its field."""
    form: Trial = request.form
    own = form.document.get("name")
    # A document that says its own name is tried under that one: a person who asks has no other in mind.
    name = own if isinstance(own, str) and len(own) <= MAX_POLICY_NAME and _NAME.fullmatch(own) else DEFAULT_NAME
    return ok(parts.policy_documents.validate(form.document, name=form.name or name))


def diff_policy(parts: Parts, request: Request) -> ApiResponse:
    """What would change, field by field, if this document were stored."""
    return ok(parts.policy_documents.diff(request.names["name"], request.form.document))


ANSWERS: Final[Mapping[str, Schema]] = {
    "PolicyBrief": record(
        {
            "name": any_text(),
            "version": whole("counts its writings; 0: nothing is stored"),
            "is_builtin": flag("only the built-in policy counts"),
            "modified_at": time_or_null("when it was written"),
        }
    ),
    "Policies": record({"policies": listing(ref("PolicyBrief"))}),
    "Policy": record(
        {
            "name": any_text(),
            "version": whole("counts its writings; what the next PUT names"),
            "is_builtin": flag("only the built-in policy counts"),
            "modified_at": time_or_null("when it was written"),
            "document": any_object("as it is stored"),
            "effective": or_null(any_object("every field with what counts")),
            "problem": or_null(any_text("why the service cannot read what is stored")),
        }
    ),
    "PolicyVerdict": record(
        {
            "valid": flag("the service could read it"),
            "problems": listing(record({"field": any_text("dotted path"), "problem": any_text()})),
            "effective": or_null(any_object("every field with what would count")),
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
}

OPERATIONS = (
    Operation(
        method="GET",
        path="/policies",
        tag="policies",
        run=list_policies,
        answers={200: ref("Policies")},
    ),
    Operation(
        method="GET",
        path="/policies/{name}",
        tag="policies",
        run=get_policy,
        is_versioned=True,
        answers={200: ref("Policy")},
    ),
    Operation(
        method="PUT",
        path="/policies/{name}",
        tag="policies",
        details=(
            "Refused with 412 where another version is stored by now, with 428 where none is named. Open Incidents "
            "keep the policy with which they began."
        ),
        run=put_policy,
        forms={"": Replacement},
        is_versioned=True,
        answers={200: ref("Policy")},
        is_order=True,
        refuses=(412, 428),
        example={"document": {"budgets": {"max_attempts": 20}}, "version": 0},
    ),
    Operation(
        method="POST",
        path="/policies/validate",
        tag="policies",
        run=validate_policy,
        forms={"": Trial},
        answers={200: ref("PolicyVerdict")},
        example={"document": {"budgets": {"max_attempts": 20}}},
    ),
    Operation(
        method="POST",
        path="/policies/{name}/diff",
        tag="policies",
        run=diff_policy,
        forms={"": Comparison},
        answers={200: ref("PolicyDiff")},
        example={"document": {"budgets": {"max_attempts": 20}}},
    ),
)
