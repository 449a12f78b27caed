"""`python -m rekindle.slurm_agent`: the agent on a Slurm head node. See docs/agent.md.

Exit codes: 0 ended as asked, 1 something is missing or left (`--check`, `--once`, `--give-back`) or a fault of ours, 2
wrong settings, 3 another agent runs on the same state directory.

Nothing of AWS's is imported here: a process of root's becomes two first, see `privileged.separation`.
"""

from __future__ import annotations

import argparse
import logging
import os
import pwd
import socket
import sys
from collections.abc import Sequence
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from rekindle.slurm_agent.base.settings import Settings, SettingsError
from rekindle.slurm_agent.privileged import separation
from rekindle.slurm_agent.privileged.helper import Helper
from rekindle.slurm_agent.privileged.remote import Channels

BAD_SETTINGS: Final = 2
LOCK_WAIT_S: Final = 120.0  # longer than any command that a killed forerunner can have left behind


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="python -m rekindle.slurm_agent",
        description="Rekindle's agent on a Slurm head node: takes orders from the cluster's SQS queue, runs Slurm's "
        "commands, tells the service what it sees. Outbound HTTPS only.",
        epilog="Each option can be given by the environment variable in its description. See docs/agent.md.",
    )
    made.add_argument("--cluster", help="the cluster's name (REKINDLE_CLUSTER; else HyperPod's or Slurm's own)")
    made.add_argument("--stack", help="name of the service's stack (REKINDLE_STACK; 'rekindle')")
    made.add_argument("--bucket", help="the stack's bucket (REKINDLE_BUCKET)")
    made.add_argument("--bus", help="the stack's event bus (REKINDLE_BUS; the stack's name)")
    made.add_argument("--region", help="AWS region (AWS_REGION; else that of the HyperPod cluster)")
    made.add_argument("--state-dir", help="where its SQLite file lies (REKINDLE_STATE_DIR; /var/lib/rekindle)")
    made.add_argument("--poll", dest="poll_s", metavar="SECONDS", help="how often Slurm is read (REKINDLE_POLL_S; 10)")
    made.add_argument("--lock-wait", type=float, default=LOCK_WAIT_S, metavar="SECONDS", help=argparse.SUPPRESS)
    made.add_argument("--dry-run", action="store_true", help="with --give-back: say what would be done, and do nothing")
    made.add_argument("--within", type=float, metavar="SECONDS", help=argparse.SUPPRESS)
    made.add_argument("--version", action="version", version=f"rekindle {metadata.version('rekindle')}")
    mode = made.add_mutually_exclusive_group()
    mode.add_argument("--check", action="store_true", help="say what is found and what is missing, then end")
    mode.add_argument(
        "--give-back", action="store_true", help="release what it holds, resume the nodes that it drained, then end"
    )
    mode.add_argument(
        "--stop-all", action="store_true", help="no agent of the cluster acts until one is started here again, then end"
    )
    mode.add_argument(
        "--remove-state", action="store_true", help="remove what is kept of this cluster in S3 and here, then end"
    )
    mode.add_argument("--once", action="store_true", help="one reading of Slurm, one at the queue, then end")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    if find_spec("boto3") is None:  # not imported here: root's process becomes two first
        print("rekindle-agent: boto3 is not installed: pip install 'rekindle[monitor]'", file=sys.stderr)
        return BAD_SETTINGS  # as `rekindle` ends where an extra is missing
    options = parser().parse_args(arguments)
    logging.basicConfig(
        level=logging.INFO,
        stream=sys.stderr,
        format="%(levelname)s %(threadName)s %(message)s",  # journald adds the time
    )
    for name in ("boto3", "botocore", "urllib3", "s3transfer"):
        logging.getLogger(name).setLevel(logging.WARNING)
    try:
        settings = Settings.read(os.environ, vars(options))
    except SettingsError as err:
        for line in err.lines:
            print(f"rekindle-agent: {line}", file=sys.stderr)
        return BAD_SETTINGS
    if options.dry_run and not options.give_back:
        print("rekindle-agent: --dry-run belongs to --give-back", file=sys.stderr)
        return BAD_SETTINGS
    who = separation.user()
    return _agent(settings, options, None) if who is None else _separated(settings, options, who)


def _separated(settings: Settings, options: argparse.Namespace, who: pwd.struct_passwd) -> int:
    try:
        own = separation.hand_over(settings.state_dir, who)
    except OSError as err:
        print(f"rekindle-agent: --state-dir {settings.state_dir}: {err}", file=sys.stderr)
        return BAD_SETTINGS
    is_leaving = options.give_back and not options.dry_run
    helper = Helper(settings, own, is_leaving=is_leaving, is_removing=options.remove_state)

    def agent(ends: list[socket.socket]) -> int:
        if not os.access(settings.state_dir, os.R_OK | os.W_OK | os.X_OK):
            print(
                f"rekindle-agent: --state-dir {settings.state_dir}: user {who.pw_name} cannot get there",
                file=sys.stderr,
            )
            return BAD_SETTINGS
        for file in (__file__, os.__file__):  # our own code, and Python's
            if not os.access(file, os.R_OK):
                print(f"rekindle-agent: user {who.pw_name} cannot read {Path(file).parent}", file=sys.stderr)
                return BAD_SETTINGS
        return _agent(settings, options, Channels(ends))

    return separation.run(who, helper.serve, agent, settings.state_dir)


def _agent(settings: Settings, options: argparse.Namespace, channels: Channels | None) -> int:
    from rekindle.slurm_agent.agent_process import run

    return run(settings, options, channels)


if __name__ == "__main__":
    sys.exit(main())
