"""`make recording`: plays the demo in a terminal and writes docs/demo.svg; with --cast from an earlier recording."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Final

from infra.recording.film import film_of
from infra.recording.screens import screens_of
from infra.recording.terminal import read, record

ROOT: Final = Path(__file__).resolve().parents[2]
MOST_BYTES: Final = 300_000  # of a picture that a README loads
TITLE: Final = "make demo: a training run is killed, frozen, and poisoned, and recovers"


def main(arguments: list[str] | None = None) -> int:
    """Exit status: the demo's own, or 1 where the picture is too large."""
    parser = argparse.ArgumentParser(prog="python -m infra.recording", description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "demo.svg")
    parser.add_argument("--cast", type=Path, help="an asciicast of an earlier recording, in place of a new one")
    args = parser.parse_args(arguments)
    if args.cast is not None:
        cast = read(args.cast)
    else:
        cast = record(["make", "-C", str(ROOT), "--no-print-directory", "demo"], shown="make demo", environ=os.environ)
        cast.write(ROOT / "build" / "recording" / "demo.cast")
    if cast.status:
        print(f"the demo ended with {cast.status}", file=sys.stderr)
        return cast.status
    text = film_of(screens_of(cast), title=TITLE)
    if len(text.encode()) > MOST_BYTES:
        print(f"{len(text.encode())} bytes: more than {MOST_BYTES}", file=sys.stderr)
        return 1
    args.out.write_text(text, encoding="utf-8")
    print(f"{args.out}: {len(text.encode()):,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
