"""Debian's packages for tests: through apt as root, else fetched by apt and unpacked under a folder."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

_POLICY: Final = Path("/usr/sbin/policy-rc.d")  # Source: invoke-rc.d(8): exit status 101 forbids to start a daemon
# Source: apt.conf(5). A mirror that stumbles, or another apt at work, is waited for.
_PATIENT: Final = ("-o", "Acquire::Retries=5", "-o", "DPkg::Lock::Timeout=300")


class PackagesMissing(RuntimeError):
    """The packages cannot be had; the message says why."""


def install(packages: Sequence[str]) -> None:
    """Install as root. A policy of ours forbids to start daemons, unless the machine has one already.

    Raises: PackagesMissing.
    """
    ours = not _POLICY.exists()
    if ours:
        _POLICY.write_text("#!/bin/sh\nexit 101\n")
        _POLICY.chmod(0o755)
    try:
        command = ["apt-get", *_PATIENT, "install", "-y", "-q", "--no-install-recommends", *packages]
        if _run(command, fails=True) is None:  # the lists may be old, or not there at all
            _run(["apt-get", *_PATIENT, "update", "-q"])
            _run(command)
    finally:
        if ours:
            _POLICY.unlink()


def unpack(packages: Sequence[str], root: Path) -> None:
    """As anybody: what apt would install is downloaded and unpacked under `root`. Raises: PackagesMissing."""
    debs = root / "debs"
    debs.mkdir(parents=True, exist_ok=True)
    own: tuple[str, ...] = ()
    wanted = _would_install(packages, own)
    if wanted is None:  # no package lists: fetch them into a folder of our own
        state, cache = root / "apt/state", root / "apt/cache"
        for folder in (state / "lists/partial", cache / "archives/partial"):
            folder.mkdir(parents=True, exist_ok=True)
        own = (
            "-o",
            f"Dir::State={state}",
            "-o",
            "Dir::State::status=/var/lib/dpkg/status",
            "-o",
            f"Dir::Cache={cache}",
        )
        _run(["apt-get", *_PATIENT, *own, "update", "-q"])
        wanted = _would_install(packages, own)
    if wanted is None:
        raise PackagesMissing(f"apt knows no packages {', '.join(packages)}")
    _run(["apt-get", *_PATIENT, *own, "download", "-q", *wanted], cwd=debs)
    for deb in sorted(debs.glob("*.deb")):
        _run(["dpkg-deb", "-x", str(deb), str(root)])


def _would_install(packages: Sequence[str], options: Sequence[str]) -> list[str] | None:
    """The packages that apt would install, those that are needed by them included."""
    told = _run(["apt-get", *options, "-s", "--no-install-recommends", "install", *packages], fails=True)
    return None if told is None else re.findall(r"^Inst (\S+)", told, re.MULTILINE)


def _run(command: Sequence[str], *, cwd: Path | None = None, fails: bool = False) -> str | None:
    """Standard output; None where the command failed and may. Raises: PackagesMissing with what it said."""
    environ = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C"}
    done = subprocess.run(command, cwd=cwd, env=environ, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return done.stdout
    if fails:
        return None
    raise PackagesMissing(f"`{' '.join(command)}` failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
