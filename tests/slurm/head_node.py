"""Stand-ins for two commands of a head node, each an executable that says so: `systemctl` and `aws`.

systemctl   one service, run as its unit says (ExecStart, EnvironmentFile, Restart after a second), below REKINDLE_ROOT.
            A supervisor process keeps it; is-active, enable, disable, start, stop, restart, daemon-reload are there.
aws         `s3 cp` of one object from the embedded cloud. `ssm start-session` as HyperPod's nodes have it: the words of
            the command are split without a shell and run; its exit code is lost, what it prints stands between the
            session's own lines. BREAK_SESSION=after-begin ends the output early, =not-connected refuses. Source:
            docs/facts-sagemaker.md#head-node-access.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final
from urllib.parse import urlparse

NAMES: Final = ("systemctl", "aws", "session-manager-plugin")
PATIENCE_S: Final = 60.0


def lay_out(folder: Path) -> Path:
    """The executables, in a folder to be put in front of PATH."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in NAMES:
        script = folder / name
        project = Path(__file__).resolve().parents[2]
        script.write_text(
            "#!/bin/bash\n# A stand-in: tests/slurm/head_node.py\n"
            f"export PYTHONPATH={shlex.quote(str(project))}\n"
            f'exec {shlex.quote(sys.executable)} -m tests.slurm.head_node {name} "$@"\n'
        )
        script.chmod(0o755)
    return folder


class Service:
    """rekindle-agent.service below a root."""

    def __init__(self, root: Path, name: str) -> None:
        self._root = root
        self._unit = root / "etc/systemd/system" / name
        self._run = root / "run" / name
        self._run.mkdir(parents=True, exist_ok=True)

    def command(self, verb: str, *, is_now: bool) -> int:
        if verb == "is-active":
            return 0 if self._child() else 3
        if verb == "stop" and not self._unit.exists():
            return 5  # Source: systemctl(1), LSB: not installed
        if verb in ("stop", "restart") or (verb == "disable" and is_now):
            self._stop()
        if verb == "disable":
            (self._run / "enabled").unlink(missing_ok=True)
        if verb == "enable":
            (self._run / "enabled").touch()
        if verb in ("start", "restart") or (verb == "enable" and is_now):
            return self._start()
        return 0

    def _pid(self, name: str) -> int | None:
        try:
            pid = int((self._run / name).read_text())
            os.kill(pid, 0)
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (OSError, ValueError):  # it may end between the two
            return None
        return None if state == "Z" else pid

    def _child(self) -> int | None:
        return self._pid("main") if self._pid("supervisor") else None

    def _start(self) -> int:
        if self._pid("supervisor"):
            return 0
        if not self._unit.exists():
            return 5
        with (self._run / "log").open("ab") as log:
            subprocess.Popen(
                [sys.executable, "-m", "tests.slurm.head_node", "supervise", str(self._root), self._unit.name],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        return 0 if _until(lambda: self._child() is not None) else 1

    def _stop(self) -> None:
        keeper = self._pid("supervisor")
        if keeper is not None:
            os.kill(keeper, signal.SIGTERM)
            _until(lambda: self._pid("supervisor") is None)

    def supervise(self) -> int:
        """The service's own life, in this process."""
        lines = [line.partition("=")[::2] for line in self._unit.read_text().splitlines() if "=" in line]
        program = shlex.split(next(text for key, text in lines if key == "ExecStart"))
        environ = dict(os.environ)
        for key, text in lines:
            if key == "EnvironmentFile":
                given = Path(f"{self._root}{text}").read_text().splitlines()
                environ |= dict(line.split("=", 1) for line in given if "=" in line)
        environ.setdefault("REKINDLE_STATE_DIR", str(self._root / "var/lib/rekindle"))
        environ.pop("PYTHONPATH", None)
        ends: list[int] = []
        signal.signal(signal.SIGTERM, lambda *_: ends.append(1))
        (self._run / "supervisor").write_text(str(os.getpid()))
        while not ends:
            child = subprocess.Popen([f"{self._root}{program[0]}", *program[1:]], env=environ, cwd="/")
            (self._run / "main").write_text(str(child.pid))
            while child.poll() is None:
                if ends:
                    child.terminate()
                    child.wait(PATIENCE_S)
                time.sleep(0.05)
            for _ in range(20):
                if not ends:
                    time.sleep(0.05)
        return 0


def _until(holds: Callable[[], bool]) -> bool:
    end = time.monotonic() + PATIENCE_S
    while not holds():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


def _aws(words: Sequence[str]) -> int:
    if words[:2] == ["ssm", "start-session"]:
        return _session(words)
    if words[:2] == ["s3", "cp"]:
        import boto3

        source, target = [word for word in words[2:] if not word.startswith("--")]
        place = urlparse(source)
        s3 = boto3.client("s3")
        s3.download_file(place.netloc, place.path.lstrip("/"), target)
        return 0
    print(f"the stand-in for aws knows no {' '.join(words[:2])}", file=sys.stderr)
    return 252


def _session(words: Sequence[str]) -> int:
    import json

    given = dict(zip(words[2::2], words[3::2], strict=False))
    how = os.environ.get("BREAK_SESSION")
    if how == "not-connected":
        print(f"An error occurred (TargetNotConnected): {given['--target']} is not connected.", file=sys.stderr)
        return 254
    [line] = json.loads(given["--parameters"])["command"]
    print("\nStarting session with SessionId: ops-0123456789abcdef0", flush=True)
    own = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}  # what finds this stand-in
    done = subprocess.run(shlex.split(line), env=own, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    detail = done.stdout.decode("utf-8", "replace").replace("\n", "\r\n")
    if how == "after-begin":
        print("\r\n".join(detail.splitlines()[:1]))
        print("Cannot perform start session: EOF", file=sys.stderr)
        return 0
    print(detail, "\nExiting session with sessionId: ops-0123456789abcdef0.", sep="")
    return 0


def main(arguments: Sequence[str]) -> int:
    name, *words = arguments
    if name == "supervise":
        return Service(Path(words[0]), words[1]).supervise()
    if name == "aws":
        return _aws(words)
    if name == "systemctl":
        plain = [word for word in words if not word.startswith("-")]
        service = Service(Path(os.environ.get("REKINDLE_ROOT", "/")), "rekindle-agent.service")
        return service.command(plain[0], is_now="--now" in words)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
