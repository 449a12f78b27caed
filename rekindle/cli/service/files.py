"""Where the service's own sources are: `app.py`, `chalicelib`, the embedded cloud, the template.

The distribution `rekindle-service` brings them as files in one folder, not as packages of their own: names such as
`app`, `infra` and `chalicelib` must not stand among a user's packages (ADR 0003). A checkout has them beside
`rekindle`.
"""

from __future__ import annotations

import sys
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path

import rekindle

MIN_PYTHON = (3, 11)  # the service's own floor; `rekindle` itself runs on 3.10


@cache
def service_root() -> Path | None:
    """The folder that holds the service's sources; None where they are not installed, or are of another version."""
    checkout = Path(rekindle.__file__).resolve().parent.parent
    if (checkout / "app.py").is_file() and (checkout / "chalicelib").is_dir():
        return checkout
    try:
        service = distribution("rekindle-service")
        return Path(str(service.locate_file("rekindle_service"))) if service.version == version("rekindle") else None
    except PackageNotFoundError:
        return None


def make_importable() -> None:
    """Put the service's sources first on the path of this process: it is ours, and no other `app` may come between."""
    root = service_root()
    if root is not None and str(root) not in sys.path:
        sys.path.insert(0, str(root))
