"""`python infra/records.py BUNDLE_FOLDER OUT`: what chalicelib/records.py reads, made by the functions' own Python.

Every module of the service, and of the packages that are made of records, is imported from the unpacked bundle; each
text that `dataclasses` executes meanwhile is kept, compiled. Standard library only: it runs without our environment.
"""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
import sys
from pathlib import Path
from types import CodeType
from typing import Any, Final

PACKAGES: Final = ("chalicelib", "rekindle", "aws_durable_execution_sdk_python", "aws_lambda_powertools.metrics")


def main(folder: Path, out: Path) -> None:
    """Write the file `out` for the bundle that lies in `folder`."""
    sys.path.insert(0, str(folder))
    records = importlib.import_module("chalicelib.records")
    codes: dict[bytes, CodeType] = {}

    def execute(text: str, names: dict[str, Any], local: dict[str, Any]) -> None:
        code = records.compiled(text)
        codes[records.digest(text)] = code
        exec(code, names, local)  # noqa: S102

    setattr(dataclasses, "exec", execute)  # noqa: B010
    importlib.import_module("app")
    for name in PACKAGES:
        package = importlib.import_module(name)
        for found in pkgutil.walk_packages(package.__path__, f"{name}."):
            if found.name.endswith("__main__"):
                continue
            try:
                importlib.import_module(found.name)
            except ImportError:  # a part whose own dependency is not in the bundle, so that no function loads it
                if name == "chalicelib":
                    raise
    out.write_bytes(records.written(codes))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
