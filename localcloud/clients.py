"""Clients of the embedded cloud: real ones of boto3's, and the environment by which other code makes its own."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache
from typing import Any

import boto3
from botocore.config import Config

from localcloud.aws import roles
from localcloud.aws.wire import SERVICE


def client_of(service: str, url: str | None, *, caller: str, region: str) -> Any:
    """A client of `caller`'s for the cloud that answers at `url`, or within this process."""
    if url is None:
        return _in_process_client(service, caller, region)
    return _make_client(service, url, caller, region)


@cache
def _session(region: str) -> Any:
    """One for all clouds: reading botocore's models takes most of a second, and they do not change."""
    return boto3.Session(region_name=region)


def _make_client(service: str, url: str | None, caller: str, region: str) -> Any:
    client = _session(region).client(
        service,
        endpoint_url=url,
        aws_access_key_id="testing",
        aws_secret_access_key="testing",  # noqa: S106  moto takes any
        # botocore would put its own name together from 22 parts, twice in every call.
        config=Config(
            retries={"max_attempts": 0},
            max_pool_connections=32,
            user_agent=caller,
            signature_version="s3v4" if service == "s3" else None,  # as the service's own clients sign links
        ),
    )
    if caller == SERVICE:
        roles.watch(client)
    return client


@cache
def _in_process_client(service: str, caller: str, region: str) -> Any:
    """Clients that never open a connection hold nothing of the cloud they talk to, so they serve every one."""
    return _make_client(service, None, caller, region)


class environment:
    """Environment variables for as long as a block lasts."""

    def __init__(self, variables: Mapping[str, str]) -> None:
        self._variables = dict(variables)
        self._before: dict[str, str | None] = {}

    def __enter__(self) -> None:
        self._before = {name: os.environ.get(name) for name in self._variables}
        os.environ.update(self._variables)

    def __exit__(self, *_: object) -> None:
        for name, value in self._before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
