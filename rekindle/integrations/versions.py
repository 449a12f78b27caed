"""In which versions of a framework its private names were seen. In others an integration uses public hooks alone."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import Final

from rekindle.monitor.base.trouble import logger

# docs/integrations.md says which names.
SEEN: Final = {"transformers": ("5.23", "5.24"), "torch": ("2.13", "2.14", "2.15")}

_warned: set[str] = set()


def is_seen(package: str, lost: str) -> bool:
    """Whether the installed version is one of `SEEN`; where it is not, one warning names what is lost."""
    try:
        installed = version(package)
    except PackageNotFoundError:
        installed = "of no known version"
    if f"{installed}.".startswith(tuple(f"{seen}." for seen in SEEN[package])):
        return True
    if package not in _warned:
        _warned.add(package)
        known = ", ".join(SEEN[package])
        logger.warning("Rekindle was tried with %s %s, and this is %s: %s", package, known, installed, lost)
    return False
