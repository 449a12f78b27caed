"""A receiver, and Rekindle on the embedded cloud in virtual time with channels of the test's choice."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from chalicelib import bootstrap
from chalicelib.channels.makers import Makers
from chalicelib.channels.quiet import quieten
from localcloud.cloud import STACK, Cloud
from localcloud.stack import deploy_rekindle
from tests.notify.made import OLDER, SECRET
from tests.notify.receiver import Receiver


@pytest.fixture(autouse=True)
def _loud(caplog: pytest.LogCaptureFixture) -> None:
    """Everything that anything logs is caught and searched for secrets (tests/conftest.py), at every level."""
    quieten()  # as the service does when it starts
    caplog.set_level(logging.DEBUG)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as one:
        yield one


class Told:
    """Rekindle's notices on the embedded cloud."""

    def __init__(self, cloud: Cloud, service: bootstrap.Service) -> None:
        self.cloud = cloud
        self.service = service
        self.secret("hook", SECRET)
        self.secret("older", OLDER)

    def deliver_with(self, makers: Makers) -> None:
        """Channels from here on. The function's own parts were made as it started."""
        self.service.deliver = replace(self.service.deliver, makers=makers)

    def secret(self, name: str, value: str) -> None:
        self.cloud.client("ssm").put_parameter(
            Name=f"/{STACK}/secrets/{name}", Value=value, Type="SecureString", Overwrite=True
        )

    def document(self, name: str, body: dict[str, Any]) -> None:
        self.cloud.client("ssm").put_parameter(
            Name=f"/{STACK}/{name}", Value=json.dumps(body), Type="String", Overwrite=True
        )

    def redrive(self) -> int:
        """What `aws sqs start-message-move-task` does, which moto lacks: from the undeliverable back to the queue."""
        sqs, moved = self.cloud.client("sqs"), 0
        source, target = (
            sqs.get_queue_url(QueueName=f"{STACK}-{name}")["QueueUrl"] for name in ("undelivered", "deliveries")
        )
        while messages := sqs.receive_message(QueueUrl=source, MaxNumberOfMessages=10).get("Messages"):
            for message in messages:
                sqs.send_message(QueueUrl=target, MessageBody=message["Body"])
                sqs.delete_message(QueueUrl=source, ReceiptHandle=message["ReceiptHandle"])
                moved += 1
        return moved

    def waiting(self, queue: str) -> list[dict[str, Any]]:
        """The messages of a queue, hidden ones too, without receiving them."""
        from moto.sqs.models import sqs_backends

        backend: Any = sqs_backends["123456789012"]["us-west-2"]
        return [
            {"body": message.body, "attributes": message.message_attributes}
            for message in backend.get_queue(f"{STACK}-{queue}")._messages
        ]


@pytest.fixture
def told() -> Iterator[Told]:
    with Cloud() as cloud:
        service = deploy_rekindle(cloud)
        cloud.events.stop_schedules()  # the sweep is not what is tested
        # Receivers get a second of real time instead of ten; the cloud's own time is virtual.
        one = Told(cloud, service)
        one.deliver_with(replace(service.makers, total_s=1.0))
        yield one
    bootstrap.install(None)
