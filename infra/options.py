"""Options of the programs in this folder."""

from __future__ import annotations

import argparse


def no_options(module: str, doc: str | None) -> None:
    """For a program without options: exits with 2 where one is given, and prints the first line of `doc` for --help."""
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=(doc or "").partition("\n")[0])
    parser.parse_args()
