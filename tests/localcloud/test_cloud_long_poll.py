"""A long poll is answered by the message that comes while it waits, and gives none to a client that is gone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from typing import Any

from localcloud.cloud import Cloud

POLLS = """
import boto3, sys
print("polls", flush=True)
boto3.client("sqs").receive_message(QueueUrl=sys.argv[1], WaitTimeSeconds=20)
"""


def test_a_message_sent_during_a_long_poll_ends_it(http_cloud: Cloud) -> None:
    sqs = http_cloud.client("sqs")
    url = sqs.create_queue(QueueName="orders")["QueueUrl"]
    got: list[dict[str, Any]] = []
    poll = threading.Thread(target=lambda: got.append(sqs.receive_message(QueueUrl=url, WaitTimeSeconds=20)))
    poll.start()
    sqs.send_message(QueueUrl=url, MessageBody="now")  # would wait for the end of the poll, were the lock held
    poll.join(120)
    assert [message["Body"] for message in got[0]["Messages"]] == ["now"]
    assert "Messages" not in sqs.receive_message(QueueUrl=url, WaitTimeSeconds=1)


def test_a_client_that_was_killed_in_its_poll_takes_no_message_with_it(http_cloud: Cloud) -> None:
    sqs = http_cloud.client("sqs")
    url = sqs.create_queue(QueueName="orders")["QueueUrl"]
    with subprocess.Popen(
        [sys.executable, "-c", POLLS, url], stdout=subprocess.PIPE, text=True, env=os.environ | http_cloud.environ()
    ) as client:
        assert client.stdout is not None
        assert client.stdout.readline() == "polls\n"
        client.send_signal(signal.SIGKILL)
        client.wait(60)
    sqs.send_message(QueueUrl=url, MessageBody="later")
    got = sqs.receive_message(QueueUrl=url, WaitTimeSeconds=20)
    assert [message["Body"] for message in got["Messages"]] == ["later"]
