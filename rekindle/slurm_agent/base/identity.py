"""The identity of a compute node's hardware, for Slurm's records: `python3 -m rekindle.slurm_agent.base.identity`.

Run on the node itself, as root, once per boot (a lifecycle script, or slurmd's ExecStartPost), it prints one word:

    instance=i-0af01c0123456789a,gpus=GPU-5c89b0a6-…,GPU-…

    scontrol update nodename="$(hostname -s)" extra="$(python3 -m rekindle.slurm_agent.base.identity)"

The agent on the head node reads it from there. A mark that cannot be read is left out, never made up. It reads files,
and runs nothing.

Sources: NVIDIA driver README, "Using the /proc File System Interface" (`GPU UUID:` in gpus/*/information, shown once
the GPUs are initialised); EC2 user guide, identify_ec2_instances (board_asset_tag is the instance id on Nitro; what
else DMI tells there is the instance's own, so its serial number is passed over).
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

MAX_BYTES: Final = 4096
MAX_GPUS: Final = 64
_GPU: Final = re.compile(r"^GPU UUID:\s*(GPU-[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12})\s*$", re.MULTILINE)
_INSTANCE: Final = re.compile(r"i-[0-9a-f]{8}(?:[0-9a-f]{9})?")
_SERIAL: Final = re.compile(r"[0-9A-Za-z][0-9A-Za-z._-]{3,63}")


def identity(root: Path = Path("/")) -> str:
    """The value for Slurm's `Extra=`; empty where nothing is known. `root` is where /proc and /sys begin."""
    instance = _matched(_INSTANCE, root / "sys/class/dmi/id/board_asset_tag")
    serial = "" if instance else _matched(_SERIAL, root / "sys/class/dmi/id/product_serial")
    parts = [
        f"instance={instance}" if instance else "",
        f"serial={serial}" if serial else "",
        f"gpus={','.join(gpus)}" if (gpus := _gpus(root)) else "",
    ]
    return ",".join(part for part in parts if part)


def _gpus(root: Path) -> list[str]:
    found: list[str] = []
    for folder in sorted((root / "proc/driver/nvidia/gpus").glob("*")):
        found += _GPU.findall(_text(folder / "information"))
    return list(dict.fromkeys(found))[:MAX_GPUS]


def _matched(pattern: re.Pattern[str], path: Path) -> str:
    text = _text(path).strip()
    return text if pattern.fullmatch(text) else ""


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(MAX_BYTES).decode("ascii", "replace")
    except OSError:  # not there, or not ours to read: unknown
        return ""


def main(argv: Sequence[str] | None = None) -> int:
    """Exit codes: 0 something is known, 1 nothing is: then nothing should be written over what Slurm holds."""
    parser = argparse.ArgumentParser(
        prog="python3 -m rekindle.slurm_agent.base.identity", description="marks of this machine"
    )
    parser.parse_args(argv)
    word = identity()
    print(word)
    return 0 if word else 1


if __name__ == "__main__":
    raise SystemExit(main())
