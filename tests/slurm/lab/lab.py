"""A real Slurm cluster on one machine: munged, slurmctld and one slurmd per node, which can be killed like nodes.

with SlurmLab(nodes=("node1", "node2", "node3")) as lab:
    job = lab.submit(script)
    lab.kill_node("node1")

Needs no root, no systemd and no cgroups. Every file is in a folder of the lab's own with a short path (a Unix socket's
is at most 108 bytes), every port on the loopback device and of this lab alone. All of it descends from one keeper
(localcloud/keeper.py), which ends with the lab and with the process that has it: nothing is ever left running.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Self

from localcloud.platforms.places import short_folder, take_ports
from tests.slurm.lab.accounting import Accounting
from tests.slurm.lab.commands import BACKUP, LabError, built_plugin, munged, slurmctld_of_the_backup
from tests.slurm.lab.conf import JobRecord, Timers, conf_text, records_of
from tests.slurm.lab.daemons import Daemons
from tests.slurm.lab.head_clock import HeadClock
from tests.slurm.lab.install import Installation
from tests.slurm.lab.processes import Process, is_alive, leftovers, processes_below, send
from tests.waiting import ask_until

PATIENCE_S: Final = 120.0  # a loaded machine may need a minute for what takes a second
COMMAND_LIMIT_S: Final = 60.0
# What every start of Debian's packages says, where there is neither PMIx nor a known hardware.
_NOISE: Final = re.compile(
    r"mpi/pmix|xcpuinfo_hwloc|Node configuration differs|Domain socket dir|CPU frequency|CPUs=\d"
)
_PASSED_ON: Final = ("HOME", "LANG", "LC_ALL", "TMPDIR")


class SlurmLab:
    """One cluster. `spares` are nodes like the others that carry the feature `spare`.

    with_munge: False has no authentication at all. with_auto_resume: srun and sbatch take `--auto-resume`, as on
    HyperPod, and do nothing about it (needs a C compiler). gpus: what each node counts as its GPUs, plain files.
    with_backup: a second slurmctld stands by, on a host of its own name, with the same StateSaveLocation.
    with_accounting: slurmdbd and its database, limits enforced. with_clock: slurmctld has a clock of its own, see
    `head_clock`.
    """

    def __init__(
        self,
        *,
        nodes: Sequence[str],
        spares: Sequence[str] = (),
        cpus: int = 2,
        name: str = "lab",
        timers: Timers | None = None,
        extra_conf: Sequence[str] = (),
        with_munge: bool = True,
        with_auto_resume: bool = False,
        gpus: int = 0,
        with_backup: bool = False,
        with_accounting: bool = False,
        with_clock: bool = False,
        install: Installation | None = None,
    ) -> None:
        self._backup = with_backup
        self._accounting: Accounting | None = None
        self._has_accounting, self._has_clock = with_accounting, with_clock
        self.nodes = (*nodes, *spares)
        self.spares = tuple(spares)
        self.name = name
        self.install = install or Installation.find()
        self._cpus = cpus
        self._timers = timers or Timers()
        self._extra = tuple(extra_conf)
        self._munge = with_munge
        self._auto_resume = with_auto_resume
        self._gpus = gpus
        self._stack = contextlib.ExitStack()
        self._daemons: Daemons | None = None
        self.folder = Path("/nonexistent")
        self.port = 0
        self.clock: HeadClock | None = None

    # ---- life ------------------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Raise everything; returns when all nodes are idle. Raises: LabError, and leaves nothing behind."""
        with contextlib.ExitStack() as stack:
            self._stack = stack
            self.folder = Path(tempfile.mkdtemp(prefix="rkl-", dir=short_folder()))
            stack.callback(shutil.rmtree, self.folder, ignore_errors=True)
            for part in ("etc", "log", "run", "state", "spool", "work"):
                (self.folder / part).mkdir()
            self.port = take_ports(len(self.nodes) + 2, stack)
            if self._has_accounting:
                self._accounting = Accounting(
                    install=self.install,
                    folder=self.folder,
                    port=self.port + len(self.nodes) + 1,
                    cluster=self.name,
                    auth="munge" if self._munge else "none",
                    user=getpass.getuser(),
                )
            if self._has_clock:
                self.clock = HeadClock(self.install, self.folder / "run/clock")
            self._write_conf()
            stack.callback(self._sweep)
            self._daemons = Daemons(self.folder)
            stack.callback(self._daemons.close)
            if self._munge:
                self._start("munged", munged(self.install, self.folder))
                self.wait(lambda: (self.folder / "run/munge.socket").exists(), "munged")
            if self._accounting:
                self._accounting.start(self._start, self.run, self.wait)
            self._start_slurmctld("-c")
            if self._backup:
                self._start(f"slurmctld-{BACKUP}", slurmctld_of_the_backup(self.install, self.folder))
            for node in self.nodes:
                self._start_slurmd(node)
            self.wait(lambda: set(self.node_states().values()) == {"idle"}, "all nodes to be idle")
            self._stack = stack.pop_all()

    def stop(self) -> None:
        """End everything that runs in the lab and remove its folder."""
        self._stack.close()

    def _sweep(self) -> None:
        """What outlived a keeper that was killed itself."""
        while alive := leftovers(self.folder):
            send(alive)

    # ---- what tests do to it ---------------------------------------------------------------------------------------

    def kill_node(self, node: str) -> None:
        """The whole node dies at once: slurmd, its steps, their tasks. What those were just starting dies too."""
        while found := [process.pid for process in self.processes(node)]:
            send(found)

    def kill_slurmd(self, node: str) -> None:
        """Only the daemon dies; the node's steps and ranks live on."""
        self._end(f"slurmd-{node}")

    def start_node(self, node: str) -> None:
        """The node's daemon runs (again)."""
        if not self.is_running(f"slurmd-{node}"):
            self._start_slurmd(node)

    def take_node(self, node: str) -> None:
        """The machine is taken away: everything on it ends, and its local disk is lost."""
        self.kill_node(node)
        shutil.rmtree(self.folder / "spool" / node, ignore_errors=True)

    def replace_node(self, node: str) -> None:
        """A fresh machine under the same name."""
        self.take_node(node)
        self.start_node(node)

    def remove_node(self, node: str) -> None:
        """The cluster is made smaller, or the machine replaced by one of another name: slurm.conf names it no more."""
        self.take_node(node)
        conf = self.folder / "etc/slurm.conf"
        lines = [line for line in conf.read_text().splitlines() if not line.startswith(f"NodeName={node} ")]
        left = ",".join(other for other in self.nodes if other != node)
        conf.write_text("\n".join(line.replace(f"Nodes={','.join(self.nodes)}", f"Nodes={left}") for line in lines))
        # Not by a reconfigure: 22.05's slurmctld ends itself then ("MaxNodeCount has changed").
        self.stop_slurmctld()
        self.start_slurmctld()
        self.nodes = tuple(left.split(","))
        self.wait(lambda: set(self.node_states()) == set(self.nodes), "the node to be gone")

    def freeze_rank(self, job: int, rank: int) -> list[int]:
        """Stop every process of one rank in its tracks. Returns their ids, to be thawed by `send(ids, SIGCONT)`."""
        pids = self.rank_pids(job, rank)
        if not pids:
            raise LabError(f"job {job} has no rank {rank} that runs")
        send(pids, signal.SIGSTOP)
        return pids

    def stop_slurmctld(self, *, kills: bool = False, patience_s: float = PATIENCE_S) -> None:
        """As its service is stopped, which saves its state; or as its machine dies, which loses the last seconds.

        patience_s: after which a service is killed, as systemd does, where that is less than this lab's own patience.
        """
        if not kills and patience_s < PATIENCE_S:
            pid = self._running.pids["slurmctld"]
            send([pid], signal.SIGTERM)
            kills = not ask_until(lambda: not is_alive(pid), limit_s=patience_s, pause_s=0.05, rest=1)
        self._end("slurmctld", signal.SIGKILL if kills else signal.SIGTERM)

    def lose_slurmctld_state(self) -> None:
        """StateSaveLocation is lost and slurmctld started again: it knows no job, and numbers begin at FirstJobId."""
        self.stop_slurmctld(kills=True)
        shutil.rmtree(self.folder / "state")
        (self.folder / "state").mkdir()
        self.start_slurmctld()

    def take_over(self) -> None:
        """The second slurmctld acts from now on, at once and not after SlurmctldTimeout; returns when it answers."""
        self.wait(lambda: self.run("scontrol", "takeover", "1", fails=True).returncode == 0, "the takeover")
        self.wait(lambda: self.run("scontrol", "show", "config", fails=True).returncode == 0, "the second slurmctld")

    def start_slurmctld(self) -> None:
        """Started on the state that is there; returns when it answers."""
        self._start_slurmctld()
        self.wait(lambda: self.run("scontrol", "ping", fails=True).returncode == 0, "slurmctld to answer")

    def set_gpus(self, count: int) -> None:
        """How many GPUs every slurmd finds when it starts; fewer than slurm.conf says are lost ones."""
        devices = self.folder / "dev"
        devices.mkdir(exist_ok=True)
        for number in range(count):
            (devices / f"gpu{number}").touch()
        line = f"AutoDetect=off\nName=gpu File={devices}/gpu[0-{count - 1}]\n" if count else "AutoDetect=off\n"
        (self.folder / "etc" / "gres.conf").write_text(line)

    # ---- what tests see --------------------------------------------------------------------------------------------

    def processes(self, node: str | None = None) -> list[Process]:
        """Everything that lives in the lab, or on one of its nodes: its slurmd, its steps and what these started."""
        if self._daemons is None:
            return []
        found = processes_below(self._daemons.keeper_pid, self.folder / "log")
        if node is None:
            return found
        daemon = self._daemons.pids.get(f"slurmd-{node}")
        return [process for process in found if process.pid == daemon or process.node == node]

    def rank_pids(self, job: int, rank: int, *, node: str | None = None) -> list[int]:
        """The processes of one rank, workers of its own included."""
        return [process.pid for process in self.processes(node) if process.job == job and process.rank == rank]

    def is_running(self, daemon: str) -> bool:
        """Of `munged`, `slurmctld`, `slurmd-<node>`."""
        pid = self._daemons.pids.get(daemon) if self._daemons is not None else None
        return pid is not None and is_alive(pid)

    def node_states(self) -> dict[str, str]:
        """Node name to state as sinfo shows it in short: idle, mix, alloc, drain, down*; empty where it is silent."""
        done = self.run("sinfo", "-h", "-N", "-o", "%N %t", fails=True)
        return dict(line.split() for line in done.stdout.splitlines()) if done.returncode == 0 else {}

    def job_state(self, job: int) -> str | None:
        """RUNNING, PENDING, …; None where slurmctld does not know the job or is silent."""
        return self.job(job).get("JobState")

    def job(self, job: int) -> dict[str, str]:
        """The fields of `scontrol show job`; empty where slurmctld does not know the job or is silent."""
        done = self.run("scontrol", "-o", "show", "job", str(job), fails=True)
        if done.returncode:
            return {}
        return dict(re.findall(r"(\S+?)=(.*?)(?= \S+?=|\s*$)", done.stdout.strip()))

    def nodes_of(self, job: int) -> list[str]:
        """In the order of the job's node ids; empty where it has none."""
        listed = self.job(job).get("NodeList", "")
        if listed in ("", "(null)"):
            return []
        hosts: list[str] = self.run("scontrol", "show", "hostnames", listed).stdout.split()
        return hosts

    def records(self, job: int | None = None) -> list[JobRecord]:
        """What has ended, oldest first: one entry for each start of each job."""
        with contextlib.suppress(FileNotFoundError):
            found = records_of((self.folder / "log/jobcomp.txt").read_text(errors="replace"))
            return [record for record in found if job in (None, record.job)]
        return []

    def logs(self, lines: int = 40) -> str:
        """The ends of all daemons' logs, for a person who wants to know why a test failed."""
        reported = []
        for log in sorted((self.folder / "log").glob("*.log")):
            notes = [line for line in log.read_text(errors="replace").splitlines() if not _NOISE.search(line)]
            reported += [f"---- {log.name}", *notes[-lines:]]
        return "\n".join(reported)

    # ---- using it --------------------------------------------------------------------------------------------------

    def environ(self) -> dict[str, str]:
        """What a process needs in order to use this cluster."""
        kept = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
        return kept | self.install.environ() | {"SLURM_CONF": str(self.folder / "etc/slurm.conf")}

    def run(self, *command: str, fails: bool = False, environ: Mapping[str, str] | None = None) -> Any:
        """A command of Slurm's, to its end. Raises: LabError where it fails and must not."""
        try:
            done = subprocess.run(
                command,
                env=self.environ() | dict(environ or {}),
                cwd=self.folder / "work",
                capture_output=True,
                text=True,
                check=False,
                timeout=COMMAND_LIMIT_S,
            )
        except subprocess.TimeoutExpired:
            done = subprocess.CompletedProcess(command, 124, "", f"no end within {COMMAND_LIMIT_S:g} s")
        if done.returncode and not fails:
            raise LabError(f"`{' '.join(command)}` failed: {(done.stderr or done.stdout).strip()}")
        return done

    def submit(self, script: Path, *options: str, environ: Mapping[str, str] | None = None) -> int:
        """sbatch; returns the job's id."""
        reported = self.run("sbatch", "--parsable", *options, str(script), environ=environ).stdout
        return int(reported.strip().partition(";")[0])

    def saved_jobs(self) -> bytes:
        """slurmctld's file of jobs, empty until it is there: each time it is saved its name is free for a moment."""
        try:
            return (self.folder / "state" / "job_state").read_bytes()
        except FileNotFoundError:
            return b""

    def jobs_saved_at(self) -> float:
        """When that file was written, in seconds of this machine's clock; 0: it is not there."""
        try:
            return (self.folder / "state" / "job_state").stat().st_mtime
        except FileNotFoundError:
            return 0.0

    def wait(self, condition: Callable[[], Any], what: str, limit_s: float = PATIENCE_S) -> Any:
        """Ask until the answer is true, and return it. Asking takes half of the time at most.

        Raises: LabError with the daemons' logs.
        """
        answer = ask_until(condition, limit_s=limit_s, pause_s=0.05, rest=1)
        if not answer:
            raise LabError(f"waited {limit_s:g} s for {what}\n{self.logs()}")
        return answer

    # ---- how it works inside ---------------------------------------------------------------------------------------

    def _write_conf(self) -> None:
        etc = self.folder / "etc"
        key = etc / "munge.key"
        key.touch(mode=0o600)
        key.write_bytes(os.urandom(128))
        plugin = f"required {built_plugin(self.install, self.folder)}\n" if self._auto_resume else ""
        (etc / "plugstack.conf").write_text(plugin)
        if self._gpus:
            self.set_gpus(self._gpus)
        text = conf_text(
            folder=self.folder,
            cluster=self.name,
            port=self.port,
            nodes=self.nodes,
            spares=self.spares,
            cpus=self._cpus,
            timers=self._timers,
            with_munge=self._munge,
            extra=(*self.install.conf(), *self._extra),
            accounting=self._accounting.conf() if self._accounting else None,
            gpus=self._gpus,
            backup=BACKUP if self._backup else "",
        )
        (etc / "slurm.conf").write_text(text)

    def _start_slurmctld(self, *options: str) -> None:
        own = self.clock.environ() if self.clock else None
        self._start("slurmctld", [str(self.install.which("slurmctld")), "-D", *options], own)

    def _start_slurmd(self, node: str) -> None:
        self._start(f"slurmd-{node}", self.install.slurmd(node))

    @property
    def _running(self) -> Daemons:
        """Raises: LabError before the start."""
        if self._daemons is None:
            raise LabError("the lab is not started")
        return self._daemons

    def _start(self, daemon: str, argv: Sequence[str], own: Mapping[str, str] | None = None) -> None:
        self._running.start(daemon, argv, self.environ() | dict(own or {}))

    def _end(self, daemon: str, number: int = signal.SIGKILL) -> None:
        pid = self._running.pids[daemon]
        send([pid], number)
        self.wait(lambda: not is_alive(pid), f"{daemon} to end")
