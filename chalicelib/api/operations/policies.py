"""Routes about policy documents: listed, read, tried, compared, stored."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from chalicelib.api.operation import NAMES, Operation
from chalicelib.api.operations.shared import null_at
from chalicelib.api.parts import Parts
from chalicelib.api.problems import ApiResponse, ok
from chalicelib.api.request import Request
from chalicelib.api.schema import Schema, any_object, any_text, flag, listing, or_null, record, ref, whole
from chalicelib.api.versions import replace, replacement, versioned
from chalicelib.services.operator.policy_documents import DEFAULT_NAME

_DOCUMENT: Final[Schema] = {
    "type": "object",
    "description": "a policy document (docs/policy.md); a field that is left out takes its built-in value",
}
MAX_NAME_CHARS: Final = NAMES["name"]["maxLength"]
_NAME: Final = re.compile(r"[A-Za-z0-9._-]+")  # a policy's name in a path, NAMES["name"]


def list_policies(parts: Parts, _: Request) -> ApiResponse:
    """Every policy in brief."""
    return ok({"policies": parts.policy_documents.listing()})


def get_policy(parts: Parts, request: Request) -> ApiResponse:
    """One policy: the document, and every field with what counts."""
    return versioned(parts.policy_documents.get(request.names["name"]))


def put_policy(parts: Parts, request: Request) -> ApiResponse:
    """Store a document in place of the version that the caller has read."""
    document = request.body["document"]
    return replace(
        request, lambda version: parts.policy_documents.put(request.names["name"], document, replaces=version)
    )


def validate_policy(parts: Parts, request: Request) -> ApiResponse:
    """Every problem of a document, with its field."""
    body = request.body
    own = body["document"].get("name")
    # A document that says its own name is tried under that one: a person who asks has no other in mind.
    name = own if isinstance(own, str) and len(own) <= MAX_NAME_CHARS and _NAME.fullmatch(own) else DEFAULT_NAME
    return ok(parts.policy_documents.validate(body["document"], name=body.get("name", name)))


def diff_policy(parts: Parts, request: Request) -> ApiResponse:
    """What would change, field by field."""
    return ok(parts.policy_documents.diff(request.names["name"], request.body["document"]))


ANSWERS: Final[Mapping[str, Schema]] = {
    "PolicyBrief": record(
        {
            "name": any_text(),
            "version": whole("counts its writings; 0: nothing is stored"),
            "is_builtin": flag("only the built-in policy counts"),
            "modified_at": null_at("when it was written"),
        }
    ),
    "Policies": record({"policies": listing(ref("PolicyBrief"))}),
    "Policy": record(
        {
            "name": any_text(),
            "version": whole("counts its writings; what the next PUT names"),
            "is_builtin": flag("only the built-in policy counts"),
            "modified_at": null_at("when it was written"),
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
        name="list_policies",
        method="GET",
        path="/policies",
        tag="policies",
        summary="Every policy in brief",
        run=list_policies,
        links={"get_policy": {"name": "/policies/0/name"}},
        answers={200: ref("Policies")},
    ),
    Operation(
        name="get_policy",
        method="GET",
        path="/policies/{name}",
        tag="policies",
        summary="One policy: the document as it is stored, and every field with what counts",
        run=get_policy,
        links={"put_policy": {"name": "/name"}, "diff_policy": {"name": "/name"}},
        is_versioned=True,
        answers={200: ref("Policy")},
    ),
    Operation(
        name="put_policy",
        method="PUT",
        path="/policies/{name}",
        tag="policies",
        summary="Store a policy in place of the version that was read",
        details=(
            "Refused with 412 where another version is stored by now, with 428 where none is named. Open Incidents "
            "keep the policy with which they began."
        ),
        run=put_policy,
        forms={"": replacement(_DOCUMENT)},
        links={"get_policy": {"name": "/name"}},
        is_versioned=True,
        answers={200: ref("Policy")},
        is_order=True,
        refuses=(412, 428),
        example={"document": {"budgets": {"max_attempts": 20}}, "version": 0},
    ),
    Operation(
        name="validate_policy",
        method="POST",
        path="/policies/validate",
        tag="policies",
        summary="Try a document: every problem with its field",
        run=validate_policy,
        forms={"": record({"document": _DOCUMENT, "name": NAMES["name"]}, may=("name",))},
        answers={200: ref("PolicyVerdict")},
        example={"document": {"budgets": {"max_attempts": 20}}},
    ),
    Operation(
        name="diff_policy",
        method="POST",
        path="/policies/{name}/diff",
        tag="policies",
        summary="What would change, field by field, if this document were stored",
        run=diff_policy,
        forms={"": record({"document": _DOCUMENT})},
        answers={200: ref("PolicyDiff")},
        example={"document": {"budgets": {"max_attempts": 20}}},
    ),
)
