"""What wheel and sdist are made from: copied out of the checkout, so that nothing else that lies there gets in."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent  # a checkout, or `rekindle/service` of a wheel
SERVICE_FILES: Final = ROOT / "infra" / "service-files.txt"  # setup.py reads it too
_PROJECT: Final = ("setup.py", "pyproject.toml", "README.md", "LICENSE", "MANIFEST.in", "CHANGELOG.md", "rekindle")


def is_checkout() -> bool:
    """Whether a wheel can be built from what lies here."""
    return (ROOT / "setup.py").is_file()


def copy_sources(target: Path) -> None:
    """Copy them to `target`, which is made. Raises: OSError."""
    target.mkdir(parents=True)
    for name in (*_PROJECT, *SERVICE_FILES.read_text(encoding="utf-8").split()):
        source, copy = ROOT / name, target / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, copy, ignore=shutil.ignore_patterns("__pycache__", "*.pyc", "*.egg-info"))
        else:
            shutil.copy(source, copy)
