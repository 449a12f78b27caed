"""`rekindle-agent`, the same as `python -m rekindle.slurm_agent`: the agent, or one line that names what is missing."""

from __future__ import annotations

import sys
from importlib.util import find_spec

from rekindle.slurm_agent.__main__ import main as run


def main() -> int:
    if find_spec("boto3") is None:  # not imported here: root's process becomes two first
        print("rekindle-agent: boto3 is not installed: pip install 'rekindle[monitor]'", file=sys.stderr)
        return 2  # as `rekindle` ends where an extra is missing
    return run()
