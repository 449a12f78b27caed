"""What a Region and an account say of themselves, where moto says nothing: Lambda's room, durable functions, quotas."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from localcloud.aws.answers import AwsError
from localcloud.moto_server import Operation
from tests.infra.stacks.api import CloudFormation
from tests.infra.stacks.server import served

_FUNCTION = "AWS::Lambda::Function"


@dataclass(slots=True)
class Region:
    """One Region of one account.

    has_durable_functions: whether its Lambda knows durable executions. concurrency, code_limit: Lambda's limits;
    reserved, code_bytes: what is used of them. quotas: (service, code) -> value, for Service Quotas. sign_in: the error
    that STS answers with.
    """

    cloudformation: CloudFormation
    has_durable_functions: bool = True
    concurrency: int = 1000
    reserved: int = 0
    code_bytes: int = 0
    code_limit: int = 80_530_636_800
    quotas: dict[tuple[str, str], float] = field(
        default_factory=lambda: {("events", "L-244521F2"): 300.0, ("events", "L-658A4FD9"): 100.0}
    )
    sign_in: AwsError | None = None

    @contextmanager
    def served(self) -> Iterator[dict[str, str]]:
        """Answer over HTTP while this lasts; gives the environment in which boto3 finds it."""
        services: dict[str, tuple[str, Mapping[str, Operation]]] = {
            "CLOUDFORMATION": ("cloudformation", self.cloudformation.operations()),
            "LAMBDA": ("lambda", self._lambda()),
            "SERVICE_QUOTAS": ("service-quotas", {"GetServiceQuota": self._quota}),
        }
        if self.sign_in is not None:
            services["STS"] = ("sts", {"GetCallerIdentity": self._refuse})
        with ExitStack() as stack:
            yield {
                f"AWS_ENDPOINT_URL_{name}": stack.enter_context(served(service, operations))
                for name, (service, operations) in services.items()
            }

    def _lambda(self) -> dict[str, Operation]:
        known: dict[str, Operation] = {
            "GetAccountSettings": self._settings,
            "GetFunctionConfiguration": self._function,
        }
        if self.has_durable_functions:
            known["ListDurableExecutionsByFunction"] = self._executions
        return known

    def _settings(self, _: dict[str, Any]) -> dict[str, Any]:
        return {
            "AccountLimit": {
                "TotalCodeSize": self.code_limit,
                "CodeSizeUnzipped": 262_144_000,
                "CodeSizeZipped": 52_428_800,
                "ConcurrentExecutions": self.concurrency,
                "UnreservedConcurrentExecutions": self.concurrency - self.reserved,
            },
            "AccountUsage": {"TotalCodeSize": self.code_bytes, "FunctionCount": 0},
        }

    def _function(self, request: dict[str, Any]) -> dict[str, Any]:
        name = request["FunctionName"]
        if not self.cloudformation.account.exists(_FUNCTION, name):
            raise AwsError("ResourceNotFoundException", f"Function not found: {name}", status=404)
        return {"FunctionName": name}

    def _executions(self, request: dict[str, Any]) -> dict[str, Any]:
        self._function(request)
        return {"DurableExecutions": []}

    def _quota(self, request: dict[str, Any]) -> dict[str, Any]:
        key = request["ServiceCode"], request["QuotaCode"]
        if key not in self.quotas:
            raise AwsError("NoSuchResourceException", f"no quota {key}", status=404)
        return {"Quota": {"ServiceCode": key[0], "QuotaCode": key[1], "Value": self.quotas[key]}}

    def _refuse(self, _: dict[str, Any]) -> dict[str, Any]:
        assert self.sign_in is not None
        raise self.sign_in
