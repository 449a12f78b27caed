"""The options of `rekindle slurm-agent`."""

from __future__ import annotations

import argparse
from pathlib import Path


def add_names(parser: argparse.ArgumentParser) -> None:
    """Add the options that name the cluster and the service it reports to."""
    parser.add_argument("--cluster", required=True, help="the HyperPod cluster's name, or Slurm's ClusterName")
    parser.add_argument("--stack", default="rekindle", help="the service's stack (rekindle)")
    by_hand = parser.add_argument_group("where the service is; by default the stack is asked")
    for name in ("bucket", "bus", "region", "account", "partition"):
        by_hand.add_argument(f"--{name}")


def add_python(parser: argparse.ArgumentParser) -> None:
    """Add the option that names the Python which the folder carries."""
    parser.add_argument(
        "--python",
        type=Path,
        metavar="ARCHIVE",
        help="carry this Python: an install_only archive (.tar.gz) of python-build-standalone, for a head node that "
        "has none of 3.10 or newer and no way to get one",
    )
