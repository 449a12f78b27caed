"""Reading one AWS account. The only module of the doctor that speaks to AWS; it only ever reads.

Every answer is the answer, `Missing` (AWS says there is no such thing), or `NotInspected` with the reason; a missing
permission is named by its action. A service that cannot be reached is not asked twice: each try costs its time-out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from rekindle.doctor.base.facts import Missing, NotInspected

# Source: IAM service authorization reference; only operations whose action is not "<service>:<Operation>".
_ACTIONS: Final[Mapping[tuple[str, str], str]] = {
    ("s3", "list_objects_v2"): "s3:ListBucket",
    ("s3", "get_object"): "s3:GetObject",
    ("service-quotas", "list_service_quotas"): "servicequotas:ListServiceQuotas",
    ("service-quotas", "get_service_quota"): "servicequotas:GetServiceQuota",
    ("sqs", "get_queue_url"): "sqs:GetQueueUrl",
}
_DENIED: Final = frozenset(
    {"AccessDenied", "AccessDeniedException", "UnauthorizedOperation", "Forbidden", "403", "AuthorizationError"}
)
_NO_LOGIN: Final = frozenset(
    {
        "ExpiredToken",
        "ExpiredTokenException",
        "InvalidClientTokenId",
        "UnrecognizedClientException",
        "AuthFailure",
        "InvalidAccessKeyId",
        "SignatureDoesNotMatch",
    }
)
_ABSENT: Final = frozenset(
    {
        "NoSuchBucket",
        "NoSuchKey",
        "404",
        "NoSuchEntity",
        "NoSuchEntityException",
        "ResourceNotFound",
        "ResourceNotFoundException",
        "FileSystemNotFound",
        "InvalidInstanceType",
        "AWS.SimpleQueueService.NonExistentQueue",
        "QueueDoesNotExist",
    }
)
MAX_PAGES: Final = 100


class Clients(Protocol):
    """Makes clients: a boto3 session's `client`."""

    def __call__(self, service: str) -> Any: ...


@dataclass(slots=True, kw_only=True)
class Account:
    """An account, or the reason why there is none: then nothing is asked and everything is unread for that reason."""

    clients: Clients | None = None
    why_none: str = "no AWS credentials"
    region: str = ""
    _made: dict[str, Any] = field(default_factory=dict)
    _dead: dict[str, NotInspected] = field(default_factory=dict)
    _known: dict[tuple[str, str, str], dict[str, Any] | Missing | NotInspected] = field(default_factory=dict)

    def ask(self, service: str, operation: str, **request: Any) -> dict[str, Any] | Missing | NotInspected:
        """One call; the same one twice is answered from memory. Raises nothing that AWS or the network could cause."""
        if operation == "get_object":  # its body can be read once
            return self._ask(service, operation, request)
        key = (service, operation, repr(sorted(request.items())))
        if key not in self._known:
            self._known[key] = self._ask(service, operation, request)
        return self._known[key]

    def _ask(self, service: str, operation: str, request: Mapping[str, Any]) -> dict[str, Any] | Missing | NotInspected:
        if self.clients is None:
            return NotInspected(self.why_none)
        if service in self._dead:
            return self._dead[service]
        # Only here: a check of files without AWS does not wait for boto3's import.
        from botocore.exceptions import BotoCoreError, ClientError, ParamValidationError
        from botocore.parsers import ResponseParserError

        try:
            if service not in self._made:
                self._made[service] = self.clients(service)
            answer: dict[str, Any] = getattr(self._made[service], operation)(**request)
        except ClientError as err:
            return self._refused(service, operation, err.response.get("Error", {}))
        except ResponseParserError:
            return NotInspected(f"{service} gave an answer to {operation} that cannot be read")
        except ParamValidationError as err:
            return NotInspected(f"AWS would refuse the question: {' '.join(str(err).split())}"[:300])
        except (BotoCoreError, ValueError) as err:
            self._dead[service] = NotInspected(f"{service} cannot be asked: {' '.join(str(err).split())}"[:300])
            return self._dead[service]
        return answer

    def pages(
        self, service: str, operation: str, member: str, *, marker: str = "NextToken", **request: Any
    ) -> list[Any] | Missing | NotInspected:
        """All pages of a listing, at most MAX_PAGES."""
        found: list[Any] = []
        more: dict[str, Any] = {}
        for _ in range(MAX_PAGES):
            answer = self.ask(service, operation, **request, **more)
            if not isinstance(answer, dict):
                return answer
            found += answer.get(member) or []
            if not answer.get(marker):
                return found
            more = {marker: answer[marker]}
        return found

    def _refused(self, service: str, operation: str, stated: Mapping[str, Any]) -> Missing | NotInspected:
        code, message = str(stated.get("Code", "")), " ".join(str(stated.get("Message", "")).split())[:200]
        if code in _DENIED:
            return NotInspected(f"not allowed; {action_of(service, operation)} is missing")
        if code in _NO_LOGIN:
            self._dead[service] = NotInspected(f"the AWS credentials are not accepted ({code})")
            return self._dead[service]
        if code in _ABSENT or code.endswith(".NotFound"):
            return Missing(message)
        return NotInspected(f"{service} answered {code}: {message}")


def action_of(service: str, operation: str) -> str:
    """The IAM action that a call needs."""
    known = _ACTIONS.get((service, operation))
    return known or f"{service}:{''.join(part.capitalize() for part in operation.split('_'))}"


def chunks(items: Iterable[str], size: int) -> list[list[str]]:
    """Lists of at most `size`; AWS limits how many values a filter may have."""
    every = list(dict.fromkeys(items))
    return [every[start : start + size] for start in range(0, len(every), size)]
