"""Policy documents in SSM Parameter Store."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final

from chalicelib.aws.errors import AwsRefusal, call
from chalicelib.domain.model.errors import InvalidPolicy, UnknownEntity
from chalicelib.domain.policy.document import DEFAULT_POLICY, Policy
from chalicelib.ports.clock import Clock

DEFAULT_NAME: Final = "default"
# A new policy is read by the next Incident; running ones have theirs pinned. So seconds suffice, and a storm of new
# Incidents costs one GetParameter (40 a second per account at standard throughput).
MEMORY: Final = timedelta(seconds=30)
_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,64}\Z")  # a part of a parameter's name, and of a tag's value


@dataclass(frozen=True, slots=True, kw_only=True)
class _Read:
    policy: Policy
    parameter_version: int
    read_at: datetime


class SsmPolicies:
    """ports.Policies; `client` is a boto3 SSM client, documents lie at `<prefix>/<name>` as JSON."""

    def __init__(self, client: Any, *, prefix: str, clock: Clock) -> None:
        self._client = client
        self._prefix = prefix.rstrip("/")
        self._clock = clock
        self._reads: dict[str, _Read] = {}

    def load(self, name: str) -> Policy:
        if not _NAME.match(name):
            raise UnknownEntity(f"{name[:80]!r} is not a policy name")
        now = self._clock.now()
        read = self._reads.get(name)
        if read is not None and timedelta(0) <= now - read.read_at < MEMORY:
            return read.policy
        try:
            parameter = call(self._client.get_parameter, expect=("ParameterNotFound",), Name=f"{self._prefix}/{name}")[
                "Parameter"
            ]
        except AwsRefusal as refusal:
            self._reads.pop(name, None)
            if name == DEFAULT_NAME:
                return DEFAULT_POLICY
            raise UnknownEntity(f"policy {name!r} is not stored under {self._prefix}") from refusal
        version = int(parameter["Version"])
        if read is not None and read.parameter_version == version:
            self._reads[name] = replace(read, read_at=now)
            return read.policy
        policy = read_document(name, parameter["Value"])
        self._reads[name] = _Read(policy=policy, parameter_version=version, read_at=now)
        return policy


def read_document(name: str, text: str) -> Policy:
    """The policy called `name` in a stored document.

    Raises:
        InvalidPolicy: not JSON, a field is wrong, or the document calls itself something else.
    """
    try:
        wire = json.loads(text)
    except ValueError as err:
        raise InvalidPolicy("policy", f"{name!r} is not a JSON document") from err
    if not isinstance(wire, dict):
        raise InvalidPolicy("policy", f"must be an object, not {type(wire).__name__}")
    policy = Policy.from_wire({"name": name, **wire})
    if policy.name != name:
        raise InvalidPolicy("name", f"is {policy.name!r}, but the document is stored as {name!r}")
    return policy
