"""Build and check what is released: `python -m infra.release [--tag vX.Y.Z] --out DIR` writes the sdist and the wheel.

The wheel is built from the sdist, so the sdist is whole. The wheel is then installed into an empty environment, where
the commands that need nothing else must work.
"""

from __future__ import annotations

import argparse
import email
import os
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from infra.sources import SERVICE_FILES, copy_sources, is_checkout

LICENSE: Final = "Apache-2.0"
_SDIST: Final = "from setuptools import build_meta; import sys; print(build_meta.build_sdist(sys.argv[1]))"
# In an environment that holds nothing but the wheel: what each prints on its first line, in part.
SMOKE: Final[tuple[tuple[tuple[str, ...], str], ...]] = (
    (("--version",), "rekindle "),
    (("detect", "--help"), "usage: rekindle detect"),
    (("demo", "--help"), "usage: rekindle demo"),
    (("stack", "deploy", "--help"), "usage: rekindle stack deploy"),
    (("slurm-agent", "bundle", "--help"), "usage: rekindle slurm-agent bundle"),
    (("plan", "--gpus", "64", "--seed", "1"), "64 GPUs: "),
)


class ReleaseError(Exception):
    """Nothing may be released; the message says why."""


def build(out: Path, *, tag: str | None = None) -> tuple[Path, Path]:
    """Write the sdist and the wheel into `out`, checked; returns their paths.

    Raises:
        ReleaseError: they cannot be built, are not what they should be, or the tag names another version.
    """
    if not is_checkout():
        raise ReleaseError("a release is built from a checkout")
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="rekindle-release-") as scratch:
        place = Path(scratch)
        copy_sources(place / "source")
        sdist = out / _ran([sys.executable, "-c", _SDIST, str(out.resolve())], cwd=place / "source").split()[-1]
        with tarfile.open(sdist) as archive:
            archive.extractall(place / "unpacked", filter="data")
        (unpacked,) = (place / "unpacked").iterdir()
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q", "wheel", "--no-deps"]
        _ran([*pip, "--no-build-isolation", "--wheel-dir", str(place / "wheels"), str(unpacked)], cwd=place)
        (built,) = (place / "wheels").glob("*.whl")
        version = check_wheel(built)
        if tag is not None and tag != f"v{version}":
            raise ReleaseError(f"--tag: {tag} is not v{version}, the version in pyproject.toml")
        _try(built, place)
        wheel = out / built.name
        wheel.write_bytes(built.read_bytes())
    return sdist, wheel


def check_wheel(wheel: Path) -> str:
    """Hold the wheel's content and metadata against what a release promises; returns its version.

    Raises:
        ReleaseError: it names what is wrong.
    """
    with zipfile.ZipFile(wheel) as zipped:
        names = zipped.namelist()
        info = next(name.split("/")[0] for name in names if name.endswith(".dist-info/METADATA"))
        metadata = email.message_from_bytes(zipped.read(f"{info}/METADATA"))
    if strangers := {name.split("/")[0] for name in names} - {"rekindle", info}:
        raise ReleaseError(f"the wheel would install {', '.join(sorted(strangers))} beside rekindle")
    if metadata["License-Expression"] != LICENSE or f"{info}/licenses/LICENSE" not in names:
        raise ReleaseError(f"the wheel does not carry {LICENSE} and the file LICENSE")
    if asked := [line for line in metadata.get_all("Requires-Dist", []) if "extra ==" not in line]:
        raise ReleaseError(f"the wheel needs {', '.join(asked)} without any extra")
    for entry in SERVICE_FILES.read_text(encoding="utf-8").split():
        if not any(f"{name}/".startswith(f"rekindle/service/{entry}/") for name in names):
            raise ReleaseError(f"the wheel lacks {entry}")
    return str(metadata["Version"])


def _try(wheel: Path, place: Path) -> None:
    venv.create(place / "empty", with_pip=True)
    python = place / "empty" / "bin" / "python"
    _ran([str(python), "-m", "pip", "install", "-q", "--no-deps", "--no-index", str(wheel)], cwd=place)
    for arguments, start in SMOKE:
        printed = _ran([str(python.with_name("rekindle")), *arguments], cwd=place)
        if not printed.startswith(start):
            raise ReleaseError(f"rekindle {' '.join(arguments)} printed {printed[:80]!r}")


def _ran(command: Sequence[str], *, cwd: Path) -> str:
    # What the caller's own PYTHONPATH holds must not stand in for what is built or installed.
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ReleaseError(f"{' '.join(command[:4])} failed: {(done.stderr or done.stdout).strip()[-800:]}")
    return done.stdout.strip()


def main(argv: Sequence[str] | None = None) -> int:
    """Command line. 0 when both stand, 1 with the reason on stderr."""
    parser = argparse.ArgumentParser(prog="python -m infra.release", description="Build and check sdist and wheel.")
    parser.add_argument("--out", type=Path, default=Path("dist"), help="where they go (dist)")
    parser.add_argument("--tag", help="the tag that is released: it must name the version of pyproject.toml")
    args = parser.parse_args(argv)
    try:
        built = build(args.out, tag=args.tag)
    except (ReleaseError, OSError) as err:
        print(f"error: {err}", file=sys.stderr)
        return 1
    for path in built:
        print(f"{path} ({path.stat().st_size / 1e6:.1f} MB)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
