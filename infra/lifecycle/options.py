"""The options of `rekindle slurm-agent` and of `python -m infra.lifecycle`."""

from __future__ import annotations

import argparse
from pathlib import Path


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add every option of a command that writes the lifecycle folder."""
    add_names(parser)
    parser.add_argument("--out", type=Path, default=Path("build/lifecycle"), help="where to write (build/lifecycle)")
    add_wheels(parser)


def add_names(parser: argparse.ArgumentParser) -> None:
    """Add the options that name the cluster and the service it reports to."""
    parser.add_argument("--cluster", required=True, help="the HyperPod cluster's name, or Slurm's ClusterName")
    parser.add_argument("--stack", default="rekindle", help="the service's stack (rekindle)")
    by_hand = parser.add_argument_group("where the service is; by default the stack is asked")
    for name in ("bucket", "bus", "region", "account", "partition"):
        by_hand.add_argument(f"--{name}")


def add_wheels(parser: argparse.ArgumentParser) -> None:
    """Add the options that choose what the folder installs on the node."""
    parser.add_argument("--no-wheels", action="store_true", help="leave the packages to pip on the node: see --package")
    parser.add_argument("--package", help="with --no-wheels: what pip installs, such as a wheel's https or file URL")
    parser.add_argument(
        "--python",
        type=Path,
        metavar="ARCHIVE",
        help="carry this Python: an install_only archive (.tar.gz) of python-build-standalone, for a head node that "
        "has none of 3.10 or newer and no way to get one",
    )
