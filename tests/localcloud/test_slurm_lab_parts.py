"""What of the Slurm lab needs no Slurm: its keeper, its configuration, its ports; tests/slurm has the rest."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from localcloud.keeper import KEEPER
from localcloud.platforms.places import MAX_PORTS, take_ports
from tests.slurm.lab.conf import Timers, conf_text, jobcomp_lines
from tests.slurm.lab.install import ENV_ROOT, Installation, SlurmMissing
from tests.slurm.lab.processes import is_alive

PATIENCE_S = 120.0
# A daemon whose child lives in a session of its own, as a slurmstepd does, and outlives it.
DAEMON = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
print(child.pid, flush=True)
time.sleep(600)
"""


def until(condition: Callable[[], bool]) -> None:
    pause = threading.Event()
    for _ in range(int(PATIENCE_S / 0.05)):
        if condition():
            return
        pause.wait(0.05)
    pytest.fail(f"not within {PATIENCE_S} s")


@pytest.mark.process
@pytest.mark.skipif(sys.platform != "linux", reason="the lab needs Linux's subreapers")
@pytest.mark.parametrize("ends", ["closed", "killed"])
def test_whatever_a_keeper_started_ends_with_it_orphans_too(tmp_path: Path, ends: str) -> None:
    log = tmp_path / "daemon.log"
    what = {"argv": [sys.executable, "-c", DAEMON], "env": dict(os.environ), "cwd": str(tmp_path), "log": str(log)}
    with subprocess.Popen(
        [sys.executable, "-I", "-S", str(KEEPER)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as keeper:
        assert keeper.stdin is not None
        assert keeper.stdout is not None
        keeper.stdin.write(
            "".join(json.dumps({"start": start}) + "\n" for start in ({**what, "argv": ["/nonexistent"]}, what))
        )
        keeper.stdin.flush()
        assert "why" in json.loads(keeper.stdout.readline())
        daemon = json.loads(keeper.stdout.readline())["pid"]
        until(lambda: log.exists() and log.read_text().endswith("\n"))
        orphan = int(log.read_text())
        if ends == "killed":
            keeper.kill()  # the kernel ends its daemons; what these started is the lab's own sweep to find
            until(lambda: not is_alive(daemon))
            os.kill(orphan, 9)
        else:
            os.kill(daemon, 9)
            until(lambda: not is_alive(daemon))
            assert is_alive(orphan)
        keeper.stdin.close()
    until(lambda: not is_alive(daemon) and not is_alive(orphan))


def test_a_folder_without_slurm_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(SlurmMissing, match="run `make e2e-slurm`"):
        Installation.find({ENV_ROOT: str(tmp_path)})


def test_ports_in_use_or_taken_by_another_lab_are_not_given_out() -> None:
    with contextlib.ExitStack() as stack:
        first = take_ports(10, stack)
        second = take_ports(10, stack)
        assert abs(first - second) >= MAX_PORTS
        with socket.create_server(("127.0.0.1", first)):
            assert all(20000 <= port < 32768 for port in (first, second))
    with pytest.raises(ValueError, match="63 nodes"):
        take_ports(MAX_PORTS + 1, contextlib.ExitStack())


def test_the_configuration_has_a_port_for_each_node_and_says_who_is_spare(tmp_path: Path) -> None:
    text = conf_text(
        folder=tmp_path,
        cluster="hpc",
        port=21000,
        nodes=("a", "b"),
        spares=("b",),
        cpus=3,
        timers=Timers(slurmd_timeout_s=9),
        with_munge=False,
        extra=("PluginDir=/x",),
    )
    lines = text.splitlines()
    assert {"ClusterName=hpc", "SlurmctldPort=21000", "SlurmdTimeout=9", "AuthType=auth/none", "PluginDir=/x"} <= set(
        lines
    )
    assert "NodeName=a NodeHostname=localhost NodeAddr=127.0.0.1 Port=21001 CPUs=3 State=UNKNOWN" in lines
    assert "NodeName=b NodeHostname=localhost NodeAddr=127.0.0.1 Port=21002 CPUs=3 State=UNKNOWN Feature=spare" in lines
    assert "PartitionName=main Nodes=a,b Default=YES MaxTime=INFINITE State=UP" in lines


def test_a_record_of_what_ended_may_hold_spaces_and_its_last_line_may_be_half_written() -> None:
    text = "JobId=7 Name=my job JobState=NODE_FAIL NodeList=a,b ExitCode=0:0 \nJobId=8 Name=half"
    (record,) = jobcomp_lines(text)
    assert record == {"JobId": "7", "Name": "my job", "JobState": "NODE_FAIL", "NodeList": "a,b", "ExitCode": "0:0"}
