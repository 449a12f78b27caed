"""Runs a script of `examples/` as it stands, as one rank of a story: reports its steps, and harms it from below.

Steps are seen by a hook of torch on every optimizer, saves by Python's audit events: the first file or folder that this
rank makes in the checkpoint folder is the place `save`. A fault that raises there makes that very call raise.
"""

# Annotations must be real here, not texts: frameworks read those of hooks.
import faulthandler
import hashlib
import os
import runpy
import sys
import time
from pathlib import Path
from typing import Any

from tests.train.harm import Harm
from tests.train.line import Line

RANK, WORLD = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
FOLDER = os.environ["REKINDLE_EXAMPLE_DIR"]
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT


class Watch:
    """Where the run is."""

    def __init__(self, line: Line, harm: Harm) -> None:
        self._line, self._harm = line, harm
        self._step = int(os.environ.get("REKINDLE_RESUME_STEP") or 0)
        self._began = time.monotonic()
        self._is_inside = False

    def stepped(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self._step += 1
        digest = hashlib.sha256()
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                digest.update(parameter.detach().contiguous().numpy().tobytes())
        now = time.monotonic()
        self._line.send("step", step=self._step, step_s=now - self._began, digest=digest.hexdigest())
        self._began = now
        self._harm.at("step", self._step)

    def audited(self, event: str, args: Any) -> None:
        if event not in ("open", "os.mkdir") or self._is_inside:
            return
        path, flags = args[0], args[2] if event == "open" else WRITES
        if isinstance(path, str | os.PathLike) and flags & WRITES and str(path).startswith(FOLDER):
            self._is_inside = True
            try:
                self._harm.at("save", self._step)
            finally:
                self._is_inside = False


def main() -> None:
    from torch.optim.optimizer import register_optimizer_step_post_hook

    faulthandler.enable()
    line = Line(rank=RANK, world=WORLD)
    watch = Watch(line, Harm(line))
    register_optimizer_step_post_hook(watch.stepped)
    Path(FOLDER).mkdir(parents=True, exist_ok=True)
    sys.addaudithook(watch.audited)
    try:
        runpy.run_path(sys.argv[1], run_name="__main__")
    except SystemExit as err:
        line.send("bye", why="ended" if not err.code else f"SystemExit: {err.code}")
        raise
    except BaseException as err:
        line.send("bye", why=f"{type(err).__name__}: {err}"[:1000])
        raise


if __name__ == "__main__":
    main()
