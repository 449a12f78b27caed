"""Where the service's own sources are: `app.py`, `chalicelib`, the embedded cloud, the template.

A wheel carries them as files in `rekindle/service`, not as packages of their own: names such as `app`, `infra` and
`chalicelib` must not stand among the packages of a training image (ADR 0003). A checkout has them beside `rekindle`.
"""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path

import rekindle

_MARK = "app.py"
MIN_PYTHON = (3, 11)  # the service's own floor; `rekindle` itself runs on 3.10


@cache
def service_root() -> Path | None:
    """The folder that holds the service's sources; None where they were not installed."""
    package = Path(rekindle.__file__).resolve().parent
    for folder in (package / "service", package.parent):
        if (folder / _MARK).is_file() and (folder / "chalicelib").is_dir():
            return folder
    return None


def make_importable() -> None:
    """Put the service's sources first on the path of this process: it is ours, and no other `app` may come between."""
    root = service_root()
    if root is not None and str(root) not in sys.path:
        sys.path.insert(0, str(root))
