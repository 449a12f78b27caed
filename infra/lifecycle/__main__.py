"""`python -m infra.lifecycle --cluster NAME [--stack NAME] [--out DIR]`: see `infra.lifecycle`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from infra.lifecycle import LifecycleError
from infra.lifecycle.make import make
from infra.lifecycle.options import add_options
from rekindle.protocol.wire import MailboxError


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m infra.lifecycle", description="The agent's folder for a cluster.")
    add_options(parser)
    options = parser.parse_args(arguments)
    if options.no_wheels != bool(options.package):
        parser.error("--no-wheels and --package belong together")
    try:
        make(options)
    except (LifecycleError, MailboxError, OSError) as err:
        print(f"infra.lifecycle: {err}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
