"""Build the deployable package: `python -m infra.package [--offline] --out DIR` writes `sam.json` and `deployment.zip`.

Chalice runs in a clean copy that holds nothing but what belongs into the bundle. The result is the same byte for byte
on every rebuild: the zip is written anew in a fixed order with fixed dates, and dependencies come at the versions that
requirements-dev.txt pins. `--offline` leaves the dependencies out: the same template, without network, for the tests.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from infra.merge import merge_template

ROOT: Final = Path(__file__).resolve().parent.parent
TEMPLATE: Final = "sam.json"
BUNDLE: Final = "deployment.zip"
PURE: Final = "requirements-pure.txt"  # packages of which only the wheel for any platform may be taken (ADR 0030)
# All that goes into the copy. Chalice packs what lies in vendor/: the parts of rekindle/ that both sides share.
NEEDED: Final = ("app.py", "chalicelib", ".chalice/config.json", "infra/policies", "requirements.txt", PURE)
SHARED: Final = (
    "__init__.py",
    "checkpoints",
    "detectors",
    "headnode",
    "keys.py",
    "mailbox.py",
    "manifests.py",
    "orders.py",
    "quantities.py",
    "reports.py",
    "signatures",
    "wire.py",
)
# Lambda's limit on the unzipped package. Source: Lambda guide, gettingstarted-limits.
MAX_UNZIPPED_BYTES: Final = 250 * 1024 * 1024
_COMPILED: Final = (".so", ".pyd", ".dylib", ".dll")
_EPOCH: Final = (1980, 1, 1, 0, 0, 0)  # the oldest date that a zip can hold
# Settings of the person's own shell must not reach the build; pip's own (index, proxy, certificates) must.
_FOREIGN: Final = ("AWS_", "REKINDLE_", "PYTHON", "CHALICE_", "POWERTOOLS_")


class PackagingError(Exception):
    """The package cannot be built; the message says what to do."""


def build(out: Path, *, offline: bool = False, root: Path = ROOT) -> None:
    """Write the template and the bundle of the project at `root` into `out`.

    Raises:
        PackagingError: Chalice failed, or the bundle would not run on Lambda.
    """
    with tempfile.TemporaryDirectory(prefix="rekindle-package-") as scratch:
        project, packed = Path(scratch, "project"), Path(scratch, "packed")
        _copy(root, project)
        if offline:
            (project / "requirements.txt").write_text("", encoding="utf-8")
        merge = project / "merge.json"
        merge.write_text(json.dumps(merge_template()), encoding="utf-8")
        env = _environment(project, offline=offline)
        if not offline:
            _install_pure(project, env=env)
        _chalice(project, packed, merge=merge, env=env)
        out.mkdir(parents=True, exist_ok=True)
        _rewrite_bundle(packed / BUNDLE, out / BUNDLE)
        template = json.loads((packed / TEMPLATE).read_text(encoding="utf-8"))
        (out / TEMPLATE).write_text(json.dumps(template, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _copy(root: Path, project: Path) -> None:
    skipped = shutil.ignore_patterns("__pycache__", "*.pyc")
    places = [(name, name) for name in NEEDED] + [(f"rekindle/{name}", f"vendor/rekindle/{name}") for name in SHARED]
    for name, place in places:
        source, target = root / name, project / place
        if not source.exists():
            raise PackagingError(f"{name} is missing: run this from a whole checkout")
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, ignore=skipped)
        else:
            shutil.copyfile(source, target)


def _environment(project: Path, *, offline: bool) -> dict[str, str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith(_FOREIGN)}
    env["AWS_DEFAULT_REGION"] = "us-east-1"  # Chalice wants one to name service principals; none is called
    env["AWS_EC2_METADATA_DISABLED"] = "true"
    env["PYTHONDONTWRITEBYTECODE"] = "1"
    # Before site-packages, so that app.py is imported with the shared parts that are packed, not with the checkout's.
    env["PYTHONPATH"] = str(project / "vendor")
    if offline:
        env["PIP_NO_INDEX"] = "1"
    else:
        env["PIP_REQUIRE_HASHES"] = "1"  # nothing comes into the bundle that the two lists do not hold the hash of
    return env


def _install_pure(project: Path, *, env: Mapping[str, str]) -> None:
    """Into vendor/, which Chalice packs as it is. Chalice by itself takes a compiled wheel wherever there is one."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile"]
    command += ["--no-deps", "--only-binary=:all:", "--implementation", "py", "--abi", "none", "--platform", "any"]
    command += ["--target", str(project / "vendor"), "--requirement", str(project / PURE)]
    done = subprocess.run(command, cwd=project, env=dict(env), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        said = f"{done.stdout}{done.stderr}".strip()
        raise PackagingError(f"the packages of {PURE} are missing; is a package index reachable?\n{said}")
    shutil.rmtree(project / "vendor" / "bin", ignore_errors=True)  # their command line tools


def _chalice(project: Path, packed: Path, *, merge: Path, env: Mapping[str, str]) -> None:
    command = [sys.executable, "-c", "import sys; from chalice.cli import main; sys.exit(main())", "package"]
    command += ["--stage", "prod", "--merge-template", str(merge), str(packed)]
    done = subprocess.run(command, cwd=project, env=dict(env), capture_output=True, text=True, check=False)
    said = f"{done.stdout}{done.stderr}".strip()
    if done.returncode != 0:
        raise PackagingError(f"chalice package failed:\n{said}")
    if "Could not install dependencies" in said:  # Chalice only warns, and would pack without them
        raise PackagingError(f"dependencies are missing; is a package index reachable?\n{said}")


def _rewrite_bundle(source: Path, target: Path) -> None:
    """The same files in a fixed order, with fixed dates and modes: two builds give the same bytes."""
    size = 0
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
        for name in sorted(old.namelist()):
            if name.endswith(("/", ".pyc")) or "__pycache__/" in name:
                continue
            if name.endswith(_COMPILED) or ".so." in name:
                raise PackagingError(f"{name} is compiled: the bundle must suit every CPU and Python (ADR 0004)")
            content = old.read(name)
            size += len(content)
            entry = zipfile.ZipInfo(name, date_time=_EPOCH)
            entry.create_system = 3  # Unix, whatever packs
            entry.external_attr = 0o644 << 16
            new.writestr(entry, content, compress_type=zipfile.ZIP_DEFLATED, compresslevel=9)
    if size > MAX_UNZIPPED_BYTES:
        raise PackagingError(f"the bundle unpacks to {size} bytes; Lambda takes {MAX_UNZIPPED_BYTES}")


def main(argv: Sequence[str] | None = None) -> int:
    """Command line. 0 when the package stands, 1 with the reason on stderr."""
    parser = argparse.ArgumentParser(prog="python -m infra.package", description="Build the template and the bundle.")
    parser.add_argument("--out", type=Path, required=True, help="where sam.json and deployment.zip go")
    parser.add_argument("--offline", action="store_true", help="leave dependencies out: no network, same template")
    args = parser.parse_args(argv)
    try:
        build(args.out, offline=args.offline)
    except PackagingError as err:
        print(f"error: {err}", file=sys.stderr)
        return 1
    size = (args.out / BUNDLE).stat().st_size / 1e6
    print(f"{args.out / TEMPLATE} and {args.out / BUNDLE} ({size:.1f} MB{', no dependencies' if args.offline else ''})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
