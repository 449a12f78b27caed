"""An account to deploy to: moto for the services, our CloudFormation and Region over HTTP, found by the environment."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import boto3
import pytest
from moto import mock_aws

from tests.infra.region import Region
from tests.infra.stack_reading import REGION
from tests.infra.stacks.account import Account
from tests.infra.stacks.api import CloudFormation
from tests.infra.stacks.records import StackRecord

ACCOUNT_ID = "123456789012"


@dataclass
class LiveAccount:
    """What a test sees of it. `region` is changed before `session` is used for the first time."""

    session: boto3.session.Session
    region: Region

    def client(self, service: str) -> Any:
        return self.session.client(service)

    def stack(self, name: str) -> StackRecord:
        return self.region.cloudformation.stack(name)

    @property
    def account(self) -> Account:
        return self.region.cloudformation.account

    def statuses(self, name: str, logical_id: str) -> list[str]:
        """What happened to one resource of a stack, in order."""
        return [
            event["ResourceStatus"] for event in self.stack(name).events if event["LogicalResourceId"] == logical_id
        ]


@contextmanager
def live_account(**region: Any) -> Iterator[LiveAccount]:
    """An account of its own while this lasts. region: what differs of its Region, see tests.infra.region."""
    with mock_aws(), pytest.MonkeyPatch.context() as patch:
        clients = functools.cache(boto3.session.Session(region_name=REGION).client)
        cloudformation = CloudFormation(Account(clients, ACCOUNT_ID, REGION))
        found = Region(cloudformation, **region)
        with found.served() as environ:
            for name, url in environ.items():
                patch.setenv(name, url)
            yield LiveAccount(boto3.session.Session(region_name=REGION), found)
