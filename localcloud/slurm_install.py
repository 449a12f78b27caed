"""Where Slurm is on this machine, and how it gets here: `python -m localcloud.slurm_install --root build/slurm`.

As root, through apt; otherwise the same packages are fetched by apt and unpacked under a folder, which needs no right
at all: Slurm runs from there through `PluginDir=`, `LD_LIBRARY_PATH` and `slurmd -d`. Installing starts no daemon.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from localcloud import debian

# libslurm-dev has <slurm/spank.h>, for the stand-in of HyperPod's `--auto-resume`.
PACKAGES: Final = ("slurmctld", "slurmd", "slurm-client", "munge", "libslurm-dev")
DAEMONS: Final = ("slurmctld", "slurmd", "slurmstepd", "munged")
COMMANDS: Final = ("scontrol", "squeue", "sinfo", "sbatch", "srun", "scancel", "sacct")
ENV_ROOT: Final = "SLURM_ROOT"  # the folder that packages were unpacked to; unset where Slurm is installed


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
    try:
        if os.geteuid() == 0:
            debian.install(PACKAGES)
            there = Installation()
        else:
            there = _unpacked(root)
    except debian.PackagesMissing as err:
        raise SlurmMissing(str(err)) from err
    if lacking := there.lacking():
        raise SlurmMissing(f"the packages {', '.join(PACKAGES)} hold no {', '.join(lacking)}")
    return there


def _unpacked(root: Path) -> Installation:
    """As anybody; Debian's daemons have names of their own there."""
    debian.unpack(PACKAGES, root)
    (root / "bin").mkdir(exist_ok=True)
    for name in ("slurmctld", "slurmd", "slurmstepd"):
        there, link = root / f"usr/sbin/{name}-wlm", root / "bin" / name
        if there.exists() and not link.exists():
            link.symlink_to(there)
    return Installation(root=root)


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
