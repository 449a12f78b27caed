"""AWS's service models are read once for all boto3 sessions of a test process.

Each session has a loader of its own, which parses megabytes of JSON for each client. Tests make thousands of sessions.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import botocore.session
from botocore.loaders import Loader, create_loader


class Paths(list[str]):
    """boto3 adds its own folder for each session."""

    def append(self, path: str) -> None:
        if path not in self:
            super().append(path)


@cache
def shared_loader(search_path: str | None = None) -> Loader:
    made: Any = create_loader(search_path)
    made._search_paths = Paths(made._search_paths)
    return made


def install() -> None:
    botocore.session.create_loader = shared_loader
