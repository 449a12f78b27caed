"""The commands of a lab's daemons, and the plugin that stands in for HyperPod's."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path
from typing import Final

from tests.slurm.lab.install import Installation

BACKUP: Final = "ctl2"  # the name of the second head node
AUTO_RESUME: Final = Path(__file__).with_name("autoresume.c")


class LabError(RuntimeError):
    """The lab could not carry out a request; the message holds Slurm's own error output."""


def built_plugin(install: Installation, folder: Path) -> Path:
    """The stand-in for HyperPod's SPANK plugin: it only accepts `--auto-resume`. Raises: LabError."""
    plugin = folder / "etc/autoresume.so"
    command = ["gcc", "-shared", "-fPIC", f"-I{install.include()}", "-o", str(plugin), str(AUTO_RESUME)]
    try:
        subprocess.run(command, capture_output=True, text=True, check=True)
    except FileNotFoundError as err:
        raise LabError("--auto-resume needs a C compiler") from err
    except subprocess.CalledProcessError as err:
        raise LabError(f"--auto-resume could not be built: {err.stderr}") from err
    return plugin


def munged(install: Installation, folder: Path) -> list[str]:
    """With every file in the lab's own folder."""
    run, log = folder / "run", folder / "log"
    places = {
        "key-file": folder / "etc/munge.key",
        "socket": run / "munge.socket",
        "pid-file": run / "munged.pid",
        "log-file": log / "munged.log",
        "seed-file": run / "munged.seed",
    }
    options = [f"--{name}={place}" for name, place in places.items()]
    return [str(install.which("munged")), "--foreground", "--force", "--num-threads=4", *options]


def slurmctld_of_the_backup(install: Installation, folder: Path) -> list[str]:
    """With files of its own, as it would have on another machine."""
    text = (folder / "etc/slurm.conf").read_text()
    own = text.replace("/run/slurmctld.pid", "/run/slurmctld-2.pid").replace("/slurmctld.log", "/slurmctld-2.log")
    (folder / "etc/slurm-2.conf").write_text(own)
    command = [str(install.which("slurmctld")), "-D", "-f", str(folder / "etc/slurm-2.conf")]
    return [*on_host(BACKUP, folder), *command]


def on_host(name: str, folder: Path) -> list[str]:
    """What stands before a command that shall find itself on a machine of that name, which resolves there alone."""
    hosts = folder / f"etc/hosts-{name}"
    hosts.write_text(f"{Path('/etc/hosts').read_text()}\n127.0.0.2 {name}\n")
    own = [] if os.geteuid() == 0 else ["--user", "--map-current-user", "--keep-caps"]
    # This machine's own commands: a Slurm with libraries of its own brings some of their names too.
    ours = "PATH=/usr/sbin:/usr/bin:/sbin:/bin"
    script = f'{ours} hostname {name} && {ours} mount --bind {shlex.quote(str(hosts))} /etc/hosts && exec "$0" "$@"'
    return ["unshare", *own, "--uts", "--mount", "sh", "-c", script]
