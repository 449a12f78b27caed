"""`make bench [ARGS="overhead monitor"]`: each part prints one table; all parts without ARGS."""

from __future__ import annotations

import argparse
import importlib
import sys

PARTS = {
    "imports": "benchmarks.bench_cold",
    "overhead": "benchmarks.bench_overhead",
    "monitor": "benchmarks.bench_monitor",
    "detectors": "benchmarks.detectors",
    "healthy": "benchmarks.healthy",
    "field": "benchmarks.field",
    "hangs": "benchmarks.hangs",
    "fleet": "benchmarks.fleet",
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; all by default")
    chosen = parser.parse_args().parts or list(PARTS)
    for part in chosen:
        if part not in PARTS:
            parser.error(f"{part!r} is no part: choose from {', '.join(PARTS)}")
    for part in chosen:
        print(f"\n== {part} ==", flush=True)
        importlib.import_module(PARTS[part]).main()
    return 0


if __name__ == "__main__":
    sys.exit(main())
