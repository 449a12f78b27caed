"""slurmdbd and its database for a lab: users, accounts, QOS and their limits, as a cluster with accounting has them.

MariaDB answers on a Unix socket in the lab's folder alone. Source: slurmdbd.conf(5), and measurement.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.slurm.lab.install import Installation, SlurmMissing

# Little of everything: the database of a lab has some hundred rows.
_SMALL: Final = ("--innodb-log-file-size=4M", "--innodb-buffer-pool-size=16M")
_TABLES: Final = "m*_system_tables.sql"  # mysql_ up to MariaDB 10, mariadb_ since


@dataclass(frozen=True, slots=True, kw_only=True)
class Accounting:
    """What a lab starts before its slurmctld."""

    install: Installation
    folder: Path
    port: int
    cluster: str
    auth: str  # munge or none
    user: str

    def conf(self) -> list[str]:
        """Lines of slurm.conf."""
        return [
            "AccountingStorageType=accounting_storage/slurmdbd",
            "AccountingStorageHost=localhost",
            f"AccountingStoragePort={self.port}",
            "AccountingStorageEnforce=associations,limits,qos",
            *([f"AccountingStoragePass={self.folder}/run/munge.socket"] if self.auth == "munge" else []),
        ]

    def start(self, start: Callable[..., None], run: Callable[..., Any], wait: Callable[..., Any]) -> None:
        """Database, slurmdbd, and an account with the lab's user. Raises: SlurmMissing, LabError."""
        self._lay_out()
        start("mariadbd", self._mariadbd(), self._environ())
        wait(lambda: (self.folder / "run/mariadb.socket").exists(), "mariadbd")
        start("slurmdbd", [str(self.install.which("slurmdbd")), "-D"], self._environ(self._client()))
        wait(lambda: run("sacctmgr", "-n", "show", "cluster", fails=True).returncode == 0, "slurmdbd")
        for what in (("cluster", self.cluster), ("account", "all"), ("user", self.user, "account=all")):
            run("sacctmgr", "-i", "add", *what)

    def _mariadbd(self) -> list[str]:
        program = self.install.beside("mariadbd")
        places = (f"--datadir={self.folder}/state-db", f"--lc-messages-dir={self._words()}", f"--user={self.user}")
        return [
            *(str(program), "--no-defaults", *places, *_SMALL, "--skip-networking", "--skip-grant-tables"),
            *(f"--socket={self.folder}/run/mariadb.socket", f"--pid-file={self.folder}/run/mariadbd.pid"),
        ]

    def _words(self) -> Path:
        return self.install.beside(_TABLES).parent

    def _client(self) -> Path:
        return self.install.beside("libmariadb.so.3")

    def _environ(self, client: Path | None = None) -> dict[str, str]:
        """Of the database; of slurmdbd, which has a loader of its own, where `client` is given."""
        if client is None:
            return {"LD_LIBRARY_PATH": str(self._client().parent)}
        return {"LD_PRELOAD": str(client), "MYSQL_UNIX_PORT": f"{self.folder}/run/mariadb.socket"}

    def _lay_out(self) -> None:
        if self.install.which("slurmdbd") is None or self.install.which("sacctmgr") is None:
            raise SlurmMissing("no slurmdbd is here: run `make e2e-slurm`, which installs it")
        (self.folder / "state-db").mkdir()
        tables = self.install.beside(_TABLES).read_text()
        command: Sequence[str] = [
            word for word in self._mariadbd() if not word.startswith(("--skip-grant", "--socket"))
        ]
        subprocess.run(
            [*command, "--bootstrap"],
            env=self._environ(),
            input=f"create database mysql;\nuse mysql;\n{tables}",
            text=True,
            capture_output=True,
            check=True,
        )
        conf = self.folder / "etc/slurmdbd.conf"
        conf.touch(mode=0o600)
        lines = [
            f"AuthType=auth/{self.auth}",
            *([f"AuthInfo=socket={self.folder}/run/munge.socket"] if self.auth == "munge" else []),
            "DbdHost=localhost",
            f"DbdPort={self.port}",
            f"SlurmUser={self.user}",
            f"LogFile={self.folder}/log/slurmdbd.log",
            f"PidFile={self.folder}/run/slurmdbd.pid",
            "StorageType=accounting_storage/mysql",
            "StorageHost=localhost",
            f"StorageUser={self.user}",
            "StorageLoc=slurm_acct_db",
            *self.install.conf(),
        ]
        conf.write_text("\n".join(lines) + "\n")
