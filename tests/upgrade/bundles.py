"""Two versions of the service's bundle in one process: the other one is the same source under other package names.

A copy of `chalicelib` and app.py is written to a folder as `chalicelib_<name>` and `app_<name>`, with changes to its
text, and imported beside the checkout's own. Both work on one embedded cloud, as two published versions of the
functions do in one account.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from chalicelib import bootstrap
from infra.package import ROOT
from localcloud.cloud import STACK, Cloud
from localcloud.cloud_app import deployment_of
from localcloud.stack import PREPARED, CloudSession

Changes = Mapping[str, tuple[str, str]]  # path below chalicelib -> (text that is there once, text in its place)


class Bundle:
    """One version: its composition root, its app, and which of its functions have been invoked, in order."""

    def __init__(self, root: ModuleType, app: ModuleType) -> None:
        self._root = root
        self._app = app
        self.invoked: list[str] = []

    def deploy(self, cloud: Cloud) -> Any:
        """Put this version's functions in the place of those that are there. Rules and schedules stay. Its service."""
        service = self._root.build(
            cloud.environ(), clock=cloud.clock, session=CloudSession(cloud), monotonic=cloud.monotonic_s
        )
        for function in PREPARED:
            service.prepare(function)
        self._root.install(service)
        found = deployment_of(self._app.app, cloud.stack_functions(), stack=STACK)
        handlers = {name: self._noted(name, handler) for name, handler in found.handlers.items()}
        cloud.deploy(handlers, durable=found.durable, settings=found.settings)
        return service

    def close(self) -> None:
        """Forget its service."""
        self._root.install(None)

    def _noted(self, name: str, handler: Any) -> Any:
        def noted(event: Any, context: Any) -> Any:
            self.invoked.append(name.removeprefix(f"{STACK}-"))
            return handler(event, context)

        return noted


def own() -> Bundle:
    """The version of this checkout."""
    return Bundle(bootstrap, importlib.import_module("app"))


def other(folder: Path, name: str, changes: Changes) -> Bundle:
    """A version with other text; `name` makes its packages' names.

    Raises: ValueError for a change that does not fit exactly once.
    """
    package = f"chalicelib_{name}"
    sources = {path.relative_to(ROOT / "chalicelib").as_posix(): path for path in (ROOT / "chalicelib").rglob("*.py")}
    for relative, path in sources.items():
        text = path.read_text(encoding="utf-8")
        if relative in changes:
            old, new = changes[relative]
            if text.count(old) != 1:
                raise ValueError(f"{relative} does not hold once: {old}")
            text = text.replace(old, new)
        target = folder / package / relative
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text.replace("chalicelib", package), encoding="utf-8")
    app = (ROOT / "app.py").read_text(encoding="utf-8").replace("chalicelib", package)
    (folder / f"app_{name}.py").write_text(app, encoding="utf-8")
    sys.path.insert(0, str(folder))
    try:
        return Bundle(importlib.import_module(f"{package}.bootstrap"), importlib.import_module(f"app_{name}"))
    finally:
        sys.path.remove(str(folder))
