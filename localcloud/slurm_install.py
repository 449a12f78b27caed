"""Where Slurm is on this machine, and how it gets here: `python -m localcloud.slurm_install --root build/slurm`.

As root, through apt; otherwise the same packages are fetched by apt and unpacked under a folder, which needs no right
at all: Slurm runs from there through `PluginDir=`, `LD_LIBRARY_PATH` and `slurmd -d`. Installing starts no daemon.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

# libslurm-dev has <slurm/spank.h>, for the stand-in of HyperPod's `--auto-resume`.
PACKAGES: Final = ("slurmctld", "slurmd", "slurm-client", "munge", "libslurm-dev")
DAEMONS: Final = ("slurmctld", "slurmd", "slurmstepd", "munged")
COMMANDS: Final = ("scontrol", "squeue", "sinfo", "sbatch", "srun", "scancel", "sacct")
ENV_ROOT: Final = "SLURM_ROOT"  # the folder that packages were unpacked to; unset where Slurm is installed
_POLICY: Final = Path("/usr/sbin/policy-rc.d")  # Source: invoke-rc.d(8): exit status 101 forbids to start a daemon
# Source: apt.conf(5). A mirror that stumbles, or another apt at work, is waited for.
_PATIENT: Final = ("-o", "Acquire::Retries=5", "-o", "DPkg::Lock::Timeout=300")


class SlurmMissing(RuntimeError):
    """No usable Slurm here; the message says what is missing and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Installation:
    """One Slurm. `root` is the folder it was unpacked to, None where it is installed."""

    root: Path | None = None

    @classmethod
    def find(cls, environ: Mapping[str, str] | None = None) -> Self:
        """The one that SLURM_ROOT names, else the one that is installed. Raises: SlurmMissing."""
        root = (environ if environ is not None else os.environ).get(ENV_ROOT)
        found = cls(root=Path(root).resolve() if root else None)
        if lacking := found.lacking():
            where = found.root or "PATH and /usr/sbin"
            raise SlurmMissing(f"no {', '.join(lacking)} in {where}: run `make e2e-slurm`, which installs Slurm")
        return found

    def lacking(self) -> list[str]:
        """What is not there of what is needed."""
        missing = [name for name in (*DAEMONS, *COMMANDS) if self.which(name) is None]
        return missing if missing or self._plugins() is not None else ["Slurm's plugins"]

    def which(self, program: str) -> Path | None:
        """A program's place."""
        found = shutil.which(program, path=self.path())
        return Path(found) if found else None

    def path(self) -> str:
        """PATH for everything that uses this Slurm."""
        own = [str(self.root / part) for part in ("bin", "usr/sbin", "usr/bin")] if self.root else []
        return os.pathsep.join([*own, os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])

    def environ(self) -> dict[str, str]:
        """What a process needs in order to find this Slurm."""
        if self.root is None:
            return {"PATH": self.path()}
        plugins = self._plugins()
        libraries = [str(plugins.parent), str(plugins)] if plugins else []
        return {"PATH": self.path(), "LD_LIBRARY_PATH": os.pathsep.join(libraries)}

    def conf(self) -> list[str]:
        """Lines of slurm.conf that depend on where Slurm is."""
        return [f"PluginDir={self._plugins()}"] if self.root else []

    def slurmd(self, node: str) -> list[str]:
        """The command of one node's daemon, in the foreground. Source: slurmd(8); -c clears what a killed one left."""
        stepd = ["-d", str(self.which("slurmstepd"))] if self.root else []
        return [str(self.which("slurmd")), "-D", *stepd, "-N", node, "-c"]

    def include(self) -> Path:
        """Where <slurm/spank.h> is."""
        return (self.root or Path("/")) / "usr/include"

    def _plugins(self) -> Path | None:
        base = self.root or Path("/")
        return next((found for found in sorted(base.glob("usr/lib/*/slurm-wlm")) if found.is_dir()), None)


def install(root: Path) -> Installation:
    """Have Slurm, however it can be had. Raises: SlurmMissing."""
    for there in (Installation(), Installation(root=root)):
        if not there.lacking():
            return there
    if shutil.which("apt-get") is None:
        raise SlurmMissing("neither Slurm nor apt is here: install slurmctld, slurmd, the client commands and munge")
    there = _through_apt() if os.geteuid() == 0 else _unpacked(root)
    if lacking := there.lacking():
        raise SlurmMissing(f"the packages {', '.join(PACKAGES)} hold no {', '.join(lacking)}")
    return there


def _through_apt() -> Installation:
    """As root. A policy of ours forbids to start the daemons, unless the machine has one already."""
    ours = not _POLICY.exists()
    if ours:
        _POLICY.write_text("#!/bin/sh\nexit 101\n")
        _POLICY.chmod(0o755)
    try:
        command = ["apt-get", *_PATIENT, "install", "-y", "-q", "--no-install-recommends", *PACKAGES]
        if _run(command, fails=True) is None:  # the lists may be old, or not there at all
            _run(["apt-get", *_PATIENT, "update", "-q"])
            _run(command)
    finally:
        if ours:
            _POLICY.unlink()
    return Installation()


def _unpacked(root: Path) -> Installation:
    """As anybody: what apt would install is downloaded and unpacked."""
    debs = root / "debs"
    debs.mkdir(parents=True, exist_ok=True)
    (root / "bin").mkdir(exist_ok=True)
    own: tuple[str, ...] = ()
    wanted = _would_install(own)
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
        wanted = _would_install(own)
    if wanted is None:
        raise SlurmMissing(f"apt knows no packages {', '.join(PACKAGES)}")
    _run(["apt-get", *_PATIENT, *own, "download", "-q", *wanted], cwd=debs)
    for deb in sorted(debs.glob("*.deb")):
        _run(["dpkg-deb", "-x", str(deb), str(root)])
    for name in ("slurmctld", "slurmd", "slurmstepd"):
        there, link = root / f"usr/sbin/{name}-wlm", root / "bin" / name
        if there.exists() and not link.exists():
            link.symlink_to(there)
    return Installation(root=root)


def _would_install(options: Sequence[str]) -> list[str] | None:
    """The packages that apt would install, those that are needed by them included."""
    told = _run(["apt-get", *options, "-s", "--no-install-recommends", "install", *PACKAGES], fails=True)
    return None if told is None else re.findall(r"^Inst (\S+)", told, re.MULTILINE)


def _run(command: Sequence[str], *, cwd: Path | None = None, fails: bool = False) -> str | None:
    """Standard output; None where the command failed and may. Raises: SlurmMissing with what it said."""
    environ = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C"}
    done = subprocess.run(command, cwd=cwd, env=environ, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return done.stdout
    if fails:
        return None
    raise SlurmMissing(f"`{' '.join(command)}` failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the folder to be used as SLURM_ROOT, an empty line where Slurm is installed."""
    parser = argparse.ArgumentParser(prog="python -m localcloud.slurm_install", description=__doc__)
    parser.add_argument("--root", type=Path, required=True, help="where to unpack the packages without root")
    options = parser.parse_args(arguments)
    try:
        print(install(options.root.resolve()).root or "")
    except SlurmMissing as err:
        print(f"Slurm cannot be had here: {err}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
