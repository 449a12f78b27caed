"""`rekindle-agent`, the same as `python -m rekindle.slurm_agent`: the agent, or one line that names what is missing."""

from __future__ import annotations

import sys


def main() -> int:
    try:
        from rekindle.slurm_agent.__main__ import main as run
    except ModuleNotFoundError as err:
        if (err.name or "").partition(".")[0] == "rekindle":
            raise
        print(f"rekindle-agent: {err.name} is not installed: pip install 'rekindle[monitor]'", file=sys.stderr)
        return 2  # as `rekindle` ends where an extra is missing
    return run()
