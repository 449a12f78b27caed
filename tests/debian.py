"""Packages of Debian and Ubuntu for tests: through apt as root, else fetched by apt and unpacked under a folder."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_POLICY: Final = Path("/usr/sbin/policy-rc.d")  # Source: invoke-rc.d(8): exit status 101 forbids to start a daemon
ENV_UBUNTU: Final = "UBUNTU_MIRROR"  # where Ubuntu's packages come from; read where a suite of Ubuntu is asked for
_DEBIANS_KEYS: Final = Path("/usr/share/keyrings/debian-archive-keyring.gpg")  # of the package debian-archive-keyring
_UBUNTUS_KEYS: Final = "ubuntu-keyring"  # a package of Debian's trixie, not of bookworm
# Source: apt.conf(5). A mirror that stumbles, or another apt at work, is waited for.
_PATIENT: Final = ("-o", "Acquire::Retries=5", "-o", "DPkg::Lock::Timeout=300")


class PackagesMissing(RuntimeError):
    """The packages cannot be had; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """One release of a distribution, as apt names it."""

    name: str
    components: tuple[str, ...] = ("main",)
    is_ubuntu: bool = False

    def __str__(self) -> str:
        return f"{'Ubuntu' if self.is_ubuntu else 'Debian'}'s {self.name}"


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
    """Without root: what apt would install is downloaded and unpacked under `root`. Raises: PackagesMissing."""
    root.mkdir(parents=True, exist_ok=True)
    own: tuple[str, ...] = ()
    wanted = _would_install(packages, own)
    if wanted is None:  # no package lists: fetch them into a folder of our own
        own = _own_state(root, status=Path("/var/lib/dpkg/status"))
        _run(["apt-get", *_PATIENT, *own, "update", "-q"])
        wanted = _would_install(packages, own)
    _unpack(packages, wanted, own, root)


def unpack_suite(packages: Sequence[str], root: Path, *, suite: Suite) -> None:
    """Without root: the packages of another suite, with everything down to the C library, under `root`.

    Debian's come from the mirror that this machine's own packages come from, Ubuntu's from UBUNTU_MIRROR.
    Raises: PackagesMissing.
    """
    root.mkdir(parents=True, exist_ok=True)
    status, sources = root / "status", root / "sources.list"
    status.write_text("")  # as if nothing were installed: what is here is of another suite
    mirror, keys = _ubuntu(root) if suite.is_ubuntu else (_mirror(), _DEBIANS_KEYS)
    sources.write_text(f"deb [signed-by={keys}] {mirror} {suite.name} {' '.join(suite.components)}\n")
    own = (
        *_own_state(root, status=status),
        *("-o", f"Dir::Etc::sourcelist={sources}"),
        *("-o", "Dir::Etc::sourceparts=/dev/null", "-o", "Dir::Etc::preferencesparts=/dev/null"),
    )
    _run(["apt-get", *_PATIENT, *own, "update", "-q"])
    _unpack(packages, _would_install(packages, own), own, root)


def _ubuntu(root: Path) -> tuple[str, Path]:
    """Ubuntu's mirror and the keys that sign it. Raises: PackagesMissing."""
    mirror = os.environ.get(ENV_UBUNTU, "")
    if not mirror.startswith(("http://", "https://")):
        raise PackagesMissing(f"{ENV_UBUNTU} must be the address of a mirror of Ubuntu's packages, not {mirror!r}")
    keys = root / "keys"
    unpack_suite((_UBUNTUS_KEYS,), keys, suite=Suite(name="trixie"))
    return mirror, next(keys.rglob("ubuntu-archive-keyring.gpg"))


def _own_state(root: Path, *, status: Path) -> tuple[str, ...]:
    """Options that keep apt's lists and cache under `root`. status: which packages count as installed."""
    state, cache = root / "apt/state", root / "apt/cache"
    for folder in (state / "lists/partial", cache / "archives/partial"):
        folder.mkdir(parents=True, exist_ok=True)
    return (
        *("-o", f"Dir::State={state}"),
        *("-o", f"Dir::State::status={status}"),
        *("-o", f"Dir::Cache={cache}"),
    )


def _mirror() -> str:
    """Where this machine's own Debian comes from. Raises: PackagesMissing."""
    ask = [
        "apt-get",
        "indextargets",
        "--format",
        "$(REPO_URI)",
        "Created-By: Packages",
        "Origin: Debian",
        "Label: Debian",
    ]
    sites = (_run(ask) or "").split()  # the archive of security fixes has a label of its own, and not every suite
    if not sites:
        raise PackagesMissing("apt has no lists of Debian here: run `apt-get update`")
    return sites[0]


def _unpack(packages: Sequence[str], wanted: list[str] | None, own: Sequence[str], root: Path) -> None:
    if wanted is None:
        raise PackagesMissing(f"apt knows no packages {', '.join(packages)}")
    debs = root / "debs"
    debs.mkdir(exist_ok=True)
    _run(["apt-get", *_PATIENT, *own, "download", "-q", *wanted], cwd=debs)
    for deb in sorted(debs.glob("*.deb")):
        _run(["dpkg-deb", "-x", str(deb), str(root)])
    shutil.rmtree(debs)


def _would_install(packages: Sequence[str], options: Sequence[str]) -> list[str] | None:
    """The packages that apt would install, those that are needed by them included."""
    reported = _run(["apt-get", *options, "-s", "--no-install-recommends", "install", *packages], fails=True)
    return None if reported is None else re.findall(r"^Inst (\S+)", reported, re.MULTILINE)


def _run(command: Sequence[str], *, cwd: Path | None = None, fails: bool = False) -> str | None:
    """Standard output of the command; None where it failed and `fails`. Raises: PackagesMissing with its output."""
    environ = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C"}
    done = subprocess.run(command, cwd=cwd, env=environ, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return done.stdout
    if fails:
        return None
    raise PackagesMissing(f"`{' '.join(command)}` failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
