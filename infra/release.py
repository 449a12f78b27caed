"""Build and check what is released: `python -m infra.release [--tag vX.Y.Z] --out DIR` writes two sdists, two wheels.

`rekindle` is what a training image carries; `rekindle-service` is for the operator's machine (ADR 0003). Each wheel is
built from its sdist, so the sdist is whole. They are then installed into an empty environment, where the commands that
need nothing else must work.
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
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from infra.sources import SERVICE, SERVICE_FILES, copy_package, copy_service, is_checkout

LICENSE: Final = "Apache-2.0"
# Every training image and head node carries it: 1.03 MB in November 2026.
MAX_WHEEL_BYTES: Final = 1_100_000
_SDIST: Final = "from setuptools import build_meta; import sys; print(build_meta.build_sdist(sys.argv[1]))"
# In an environment that holds nothing but the wheels: what each prints on its first line, in part.
SMOKE: Final[tuple[tuple[tuple[str, ...], str], ...]] = (
    (("--version",), "rekindle "),
    (("detect", "--help"), "usage: rekindle detect"),
)
SMOKE_OF_SERVICE: Final[tuple[tuple[tuple[str, ...], str], ...]] = (
    (("demo", "--help"), "usage: rekindle demo"),
    (("stack", "deploy", "--help"), "usage: rekindle stack deploy"),
    (("slurm-agent", "bundle", "--help"), "usage: rekindle slurm-agent bundle"),
    (("plan", "--gpus", "64", "--seed", "1"), "64 GPUs: "),
)


class ReleaseError(Exception):
    """Nothing may be released; the message says why."""


def build(out: Path, *, tag: str | None = None) -> tuple[Path, ...]:
    """Write the sdists and the wheels into `out`, checked; returns their paths, `rekindle`'s first.

    Raises:
        ReleaseError: they cannot be built, are not what they should be, or the tag names another version.
    """
    if not is_checkout():
        raise ReleaseError("a release is built from a checkout")
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="rekindle-release-") as scratch:
        place = Path(scratch)
        sdist, wheel = _built(copy_package, place / "rekindle")
        version = check_wheel(wheel)
        if tag is not None and tag != f"v{version}":
            raise ReleaseError(f"--tag: {tag} is not v{version}, the version in pyproject.toml")
        of_service = _built(copy_service, place / "service")
        check_service_wheel(of_service[1], version)
        _try(wheel, of_service[1], place)
        made = (sdist, wheel, *of_service)
        for path in made:
            (out / path.name).write_bytes(path.read_bytes())
    return tuple(out / path.name for path in made)


def _built(copy_sources: Callable[[Path], None], place: Path) -> tuple[Path, Path]:
    """An sdist and the wheel that is made from it, both in `place`."""
    place.mkdir()
    copy_sources(place / "source")
    sdist = place / _ran([sys.executable, "-W", "ignore", "-c", _SDIST, str(place)], cwd=place / "source").split()[-1]
    with tarfile.open(sdist) as archive:
        archive.extractall(place / "unpacked", filter="data")
    (unpacked,) = (place / "unpacked").iterdir()
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q", "wheel", "--no-deps"]
    _ran([*pip, "--no-build-isolation", "--wheel-dir", str(place / "wheels"), str(unpacked)], cwd=place)
    (wheel,) = (place / "wheels").glob("*.whl")
    return sdist, wheel


def check_wheel(wheel: Path) -> str:
    """Hold the content and metadata of `rekindle` against what a release promises; returns its version.

    Raises:
        ReleaseError: it names what is wrong.
    """
    version, _, asked = _read(wheel, "rekindle")
    if without := [line for line in asked if "extra ==" not in line]:
        raise ReleaseError(f"the wheel needs {', '.join(without)} without any extra")
    if own := [line for line in asked if line.startswith("rekindle-") and f"=={version}" not in line]:
        raise ReleaseError(f"the extras of {version} ask for {own[0]}")
    if (size := wheel.stat().st_size) > MAX_WHEEL_BYTES:
        raise ReleaseError(f"the wheel has {size} bytes, {MAX_WHEEL_BYTES} are allowed: each training image carries it")
    return version


def check_service_wheel(wheel: Path, version: str) -> None:
    """The same for `rekindle-service`, which belongs to exactly one version of `rekindle`. Raises: ReleaseError."""
    own, names, asked = _read(wheel, SERVICE)
    if own != version or asked != [f"rekindle=={version}"]:
        raise ReleaseError(f"rekindle-service {own} asks for {', '.join(asked)}, and rekindle has version {version}")
    for entry in SERVICE_FILES:
        if not any(f"{name}/".startswith(f"{SERVICE}/{entry}/") for name in names):
            raise ReleaseError(f"the wheel of rekindle-service lacks {entry}")


def _read(wheel: Path, package: str) -> tuple[str, list[str], list[str]]:
    """Version, names of files, and requirements. Raises: ReleaseError."""
    with zipfile.ZipFile(wheel) as zipped:
        names = zipped.namelist()
        info = next(name.split("/")[0] for name in names if name.endswith(".dist-info/METADATA"))
        metadata = email.message_from_bytes(zipped.read(f"{info}/METADATA"))
    if strangers := {name.split("/")[0] for name in names} - {package, info}:
        raise ReleaseError(f"the wheel would install {', '.join(sorted(strangers))} beside {package}")
    held = {f"{info}/licenses/LICENSE", f"{info}/licenses/NOTICE"} <= set(names)
    if metadata["License-Expression"] != LICENSE or not held:
        raise ReleaseError(f"the wheel does not carry {LICENSE} and the files LICENSE and NOTICE")
    return str(metadata["Version"]), names, metadata.get_all("Requires-Dist", [])


def _try(wheel: Path, of_service: Path, place: Path) -> None:
    venv.create(place / "empty", with_pip=True)
    python = place / "empty" / "bin" / "python"
    for installed, smoke in ((wheel, SMOKE), (of_service, SMOKE_OF_SERVICE)):
        _ran([str(python), "-m", "pip", "install", "-q", "--no-deps", "--no-index", str(installed)], cwd=place)
        for arguments, start in smoke:
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
    """Command line. 0 when all stand, 1 with the reason on stderr."""
    parser = argparse.ArgumentParser(prog="python -m infra.release", description="Build and check sdists and wheels.")
    parser.add_argument("--out", type=Path, default=Path("dist"), help="where they go (dist)")
    parser.add_argument("--tag", help="the tag that is released: it must name the version of pyproject.toml")
    args = parser.parse_args(argv)
    try:
        built = build(args.out, tag=args.tag)
    except (ReleaseError, OSError) as err:
        print(f"error: {err}", file=sys.stderr)
        return 1
    for path in built:
        print(f"{path} ({path.stat().st_size / 1e6:.2f} MB)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
