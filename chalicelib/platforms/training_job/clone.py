"""From DescribeTrainingJob's answer to a CreateTrainingJob request, by botocore's own model of both.

Deriving the members at run time means that a member AWS adds is copied as soon as botocore knows it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from chalicelib.aws.errors import AwsRefusal, call
from chalicelib.platforms.training_job.tags import TAG_CHECKED

OPERATION: Final = "CreateTrainingJob"
NOT_FOUND: Final = "ResourceNotFound"
INVALID: Final = "ValidationException"
TAKEN: Final = "ResourceInUse"

# The request's shape has these, but they are what SageMaker chose, not what the user asked for (botocore).
CHOSEN_BY_PLATFORM: Final = frozenset({"SelectedInstanceType", "SelectedInstanceCount"})


def clone_request(service_model: Any, described: Mapping[str, Any]) -> dict[str, Any]:
    """The members of `described` that a CreateTrainingJobRequest takes, without null and empty ones.

    Values inside maps (Environment, HyperParameters) are the user's own and are kept as they are, empty ones too.
    `Tags` are not in a description; the caller adds them.
    """
    shape = service_model.operation_model(OPERATION).input_shape
    request: dict[str, Any] = _pruned(shape, described)
    resources = request.get("ResourceConfig", {})
    if resources.get("InstanceGroups"):  # the groups stand instead of these two, which a description fills with zeros
        resources.pop("InstanceCount", None)
        resources.pop("InstanceType", None)
    return request


def create(client: Any, request: dict[str, Any]) -> None:
    """Submit it. A hardware check that SageMaker refuses is left out: it fails open.

    Raises:
        AwsRefusal: one of the refusals that are expected; what `call` raises for others.
    """
    expected = (TAKEN, INVALID, NOT_FOUND)
    try:
        call(client.create_training_job, expect=expected, **request)
    except AwsRefusal as refusal:
        if refusal.code != INVALID or not take_out_infra_check(request):
            raise
        call(client.create_training_job, expect=expected, **request)


def too_much(client: Any, request: Mapping[str, Any]) -> str | None:
    """What there is more of in the request than SageMaker takes."""
    for member, what in (("Environment", "environment variables"), ("Tags", "tags")):
        limit = limit_of(client.meta.service_model, member)
        if len(request[member]) > limit:
            return f"the clone would have {len(request[member])} {what}; SageMaker takes {limit}"
    return None


def put_in_infra_check(request: dict[str, Any]) -> None:
    """SageMaker is to test the instances before the script begins; an owner's own word about that stands.

    Source: botocore, sagemaker, InfraCheckConfig.
    """
    if request.get("InfraCheckConfig") is None:
        request["InfraCheckConfig"] = {"EnableInfraCheck": True}
        request["Tags"] = [*request["Tags"], {"Key": TAG_CHECKED, "Value": "yes"}]


def take_out_infra_check(request: dict[str, Any]) -> bool:
    """Without a check that Rekindle has put in, here or in the attempt that was cloned. Whether there was one."""
    others = [tag for tag in request["Tags"] if tag["Key"] != TAG_CHECKED]
    if len(others) == len(request["Tags"]):
        return False
    request["Tags"] = others
    request.pop("InfraCheckConfig", None)
    return True


def instance_count(described: Mapping[str, Any]) -> int:
    """Instances of the whole job; heterogeneous clusters give one count per group."""
    resources = described.get("ResourceConfig") or {}
    groups = resources.get("InstanceGroups") or ()
    if groups:
        return sum(int(group.get("InstanceCount") or 0) for group in groups)
    return int(resources.get("InstanceCount") or resources.get("SelectedInstanceCount") or 0)


def instances(described: Mapping[str, Any]) -> tuple[tuple[str, int], ...]:
    """Instances by type: one pair, or one per group of a heterogeneous cluster. Empty where the types are unknown."""
    resources = described.get("ResourceConfig") or {}
    groups = resources.get("InstanceGroups") or ()
    if groups:
        return tuple((str(group.get("InstanceType") or ""), int(group.get("InstanceCount") or 0)) for group in groups)
    kind = resources.get("InstanceType") or resources.get("SelectedInstanceType") or ""
    return ((str(kind), instance_count(described)),) if kind else ()


def limit_of(service_model: Any, member: str) -> int:
    """How many entries a map or list member of the request may have, by the model."""
    shape = service_model.operation_model(OPERATION).input_shape.members[member]
    return int(shape.metadata["max"])


def _pruned(shape: Any, value: Any) -> Any:
    if value is None:
        return None
    if shape.type_name == "structure":
        pruned = {
            name: _pruned(member, value[name])
            for name, member in shape.members.items()
            if name in value and name not in CHOSEN_BY_PLATFORM
        }
        return {name: item for name, item in pruned.items() if not _is_empty(item)}
    if shape.type_name == "list":
        return [item for item in (_pruned(shape.member, item) for item in value) if not _is_empty(item)]
    if shape.type_name == "map":
        return {name: item for name, item in value.items() if item is not None}
    return value


def _is_empty(value: Any) -> bool:
    """Null, or nothing in it. False and 0 are values."""
    return value is None or (isinstance(value, str | list | dict) and not value)


def redact(text: str, request: Mapping[str, Any]) -> str:
    """A refusal's text without the values that it quotes from the request's environment and hyperparameters."""
    for section in ("Environment", "HyperParameters"):
        for value in sorted((request.get(section) or {}).values(), key=len, reverse=True):
            if len(value) >= 6:  # shorter ones are numbers and flags, and would maim the text
                text = text.replace(value, "***").replace(json.dumps(value)[1:-1], "***")
    return text[:800]
