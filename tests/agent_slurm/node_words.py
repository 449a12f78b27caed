"""Slurm's own words for the states of nodes and for why a job waits, asked of its library, and how their records were
made.

`SLURM_ROOT=.venv/slurm-26.05 python -m tests.agent_slurm.node_words` writes `recorded/26.05-node-states.json`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.slurm.lab.install import Installation

RECORDED = Path(__file__).with_name("recorded")
# Source: slurm/slurm.h, NODE_STATE_BASE (the low four bits count, each of the others is a flag) and node_states.
ASK = """
import ctypes, json, sys
library = ctypes.CDLL(sys.argv[1])
def ask(name, state):
    function = getattr(library, name)
    function.restype, function.argtypes = ctypes.c_char_p, [ctypes.c_uint32]
    return function(state).decode()
bases = [ask("slurm_node_state_string_complete", base) for base in range(16)]
bases = bases[: bases.index("INVALID")]
flags = {bit: ask("slurm_node_state_string_complete", 2 | 1 << bit).partition("+")[2] for bit in range(4, 32)}
flags = {bit: word for bit, word in flags.items() if word not in ("", "?")}
short = {
    f"{base}+{word}": ask("slurm_node_state_string", number | 1 << bit)
    for number, base in enumerate(bases) for bit, word in flags.items()
}
name = next(one for one in ("slurm_job_state_reason_string", "slurm_job_reason_string") if hasattr(library, one))
reasons = [ask(name, number) for number in range(300)]  # beyond its last: a number, or one word for all
reasons = [word for number, word in enumerate(reasons) if not word.isdigit() and word not in reasons[:number]]
print(json.dumps({"bases": bases, "flags": flags, "short": short, "reasons": reasons}))
"""


def ask(install: Installation) -> dict[str, Any]:
    """`bases` in the order of their numbers, `flags` by their bits, `short`: how sinfo folds one of each into one;
    `reasons`: why a job waits or has ended."""
    root = install.root or Path("/")
    library = next(root.glob("usr/lib/*/slurm-wlm/libslurmfull.so"))
    loader: list[str] = []
    if install.root is not None:  # with its own C library, which may be newer than this machine's
        name = next(found for top in ("usr/lib", "lib") for found in root.glob(f"{top}/*/ld-linux*.so.*"))
        folders = [root / top / name.parent.name for top in ("usr/lib", "lib")]
        loader = [str(name), "--library-path", os.pathsep.join(map(str, [*folders, library.parent]))]
    done = subprocess.run(
        [*loader, str(Path(sys.executable).resolve()), "-I", "-c", ASK, str(library)],
        capture_output=True,
        text=True,
        check=True,
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def recorded(version: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RECORDED / f"{version}-node-states.json").read_text())
    return found


def main() -> None:
    install = Installation.find()
    version = "{}.{:02}".format(*install.version())
    (RECORDED / f"{version}-node-states.json").write_text(json.dumps(ask(install), indent=1) + "\n")


if __name__ == "__main__":
    main()
