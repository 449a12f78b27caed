"""What the two distributions are made from: copied out of the checkout, so that nothing else there gets in."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent  # a checkout, or `rekindle_service` of an installation
SERVICE: Final = "rekindle_service"  # the folder that `rekindle-service` installs
# What `rekindle stack`, `init`, `demo`, `replay`, `plan` and `slurm-agent` need besides the package itself.
SERVICE_FILES: Final = (
    "app.py",
    "chalicelib",
    "docs",  # the pages that messages name
    "fleets",
    "infra",
    "localcloud",
    ".chalice/config.json",
    "examples/numpy_lm",
    "requirements.txt",
    "requirements-pure.txt",
)
_PACKAGE: Final = ("pyproject.toml", "README.md", "LICENSE", "NOTICE", "rekindle")


def is_checkout() -> bool:
    """Whether the distributions can be built from what lies here."""
    return (ROOT / "pyproject.toml").is_file()


def copy_package(target: Path) -> None:
    """Copy what `rekindle` is built from to `target`, which is made. Raises: OSError."""
    _copy(_PACKAGE, target)


def copy_service(target: Path) -> None:
    """Copy what `rekindle-service` is built from to `target`, which is made. Raises: OSError."""
    _copy(("LICENSE", "NOTICE"), target)
    shutil.copy(ROOT / "infra" / "distribution" / "pyproject.toml", target)
    _copy(SERVICE_FILES, target / SERVICE)
    shutil.rmtree(target / SERVICE / "infra" / "site")  # writes the documentation
    for file in (target / SERVICE / "docs").rglob("*.*"):
        if file.suffix != ".md":
            file.unlink()


def _copy(names: Iterable[str], target: Path) -> None:
    target.mkdir(parents=True)
    for name in names:
        source, copy = ROOT / name, target / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, copy, ignore=shutil.ignore_patterns("__pycache__", "*.pyc", "*.egg-info"))
        else:
            shutil.copy(source, copy)
