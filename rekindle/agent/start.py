"""`rekindle-agent`: the agent, or one line that says what is not installed. `python -m rekindle.agent` is the same."""

from __future__ import annotations

import sys


def main() -> int:
    """See `rekindle.agent.__main__.main`."""
    try:
        from rekindle.agent.__main__ import main as run
    except ModuleNotFoundError as err:
        if (err.name or "").partition(".")[0] == "rekindle":
            raise
        print(f"rekindle-agent: {err.name} is not installed: pip install 'rekindle[monitor]'", file=sys.stderr)
        return 1
    return run()
