"""Build the deployable package: `python -m infra.package [--offline] --out DIR` writes `sam.json` and `deployment.zip`.

Chalice runs in a clean copy that holds only what belongs into the bundle. Rebuilds are byte-identical: the zip is
written in a fixed order with fixed dates, and dependencies have the versions and hashes of requirements.txt and
requirements-pure.txt. Where this machine has the functions' version of Python, every module's bytecode is included.
`--offline` leaves dependencies and bytecode out: the same template, without network, for tests.
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

import rekindle
from infra.functions import RUNTIME

ROOT: Final = Path(__file__).resolve().parent.parent  # a checkout, or `rekindle_service` of an installation
PACKAGE: Final = Path(rekindle.__file__).resolve().parent
TEMPLATE: Final = "sam.json"
BUNDLE: Final = "deployment.zip"
PURE: Final = "requirements-pure.txt"  # packages of which only the wheel for any platform may be taken (ADR 0004)
# All that goes into the copy. Chalice packs what lies in vendor/: the parts of rekindle/ that both sides share.
NEEDED: Final = ("app.py", "chalicelib", ".chalice/config.json", "infra/policies", "requirements.txt", PURE)
SHARED: Final = (
    "__init__.py",
    "checkpoints",
    "compat.py",
    "detectors",
    "drawing",
    "protocol",
    "signatures",
)
# Lambda's limit on the unzipped package. Source: Lambda guide, gettingstarted-limits.
MAX_UNZIPPED_BYTES: Final = 250 * 1024 * 1024
_ON_LAMBDA: Final = "/var/task"  # Source: Lambda guide, "Define Lambda function handler in Python"
_COMPILED: Final = (".so", ".pyd", ".dylib", ".dll")
_EPOCH: Final = (1980, 1, 1, 0, 0, 0)  # the oldest date that a zip can hold
# Settings of the person's own shell must not reach the build; pip's own (index, proxy, certificates) must.
_FOREIGN: Final = ("AWS_", "REKINDLE_", "PYTHON", "CHALICE_", "POWERTOOLS_")


class PackagingError(Exception):
    """The package cannot be built; the message says what to do."""


def build(out: Path, *, offline: bool = False, root: Path = ROOT) -> bool:
    """Write the template and the bundle of the project at `root` into `out`; True where the bundle holds bytecode.

    Raises:
        PackagingError: Chalice failed, or the bundle would not run on Lambda.
    """
    from infra.merge import merge_template  # only here: it needs PyYAML, which `rekindle` itself does without

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
        compiler = None if offline else find_compiler(env)
        bytecode: dict[str, bytes] = {}
        if compiler is not None:
            unpacked = Path(scratch, "compiled")
            bytecode = _compiled(packed / BUNDLE, unpacked, python=compiler, env=env)
        _rewrite_bundle(packed / BUNDLE, out / BUNDLE, bytecode=bytecode)
        template = json.loads((packed / TEMPLATE).read_text(encoding="utf-8"))
        (out / TEMPLATE).write_text(json.dumps(template, indent=2, sort_keys=True) + "\n", encoding="utf-8")
        return bool(bytecode)


def _copy(root: Path, project: Path) -> None:
    skipped = shutil.ignore_patterns("__pycache__", "*.pyc")
    package = root / "rekindle" if (root / "rekindle").is_dir() else PACKAGE
    places = [(root / name, name) for name in NEEDED]
    places += [(package / name, f"vendor/rekindle/{name}") for name in SHARED]
    for source, place in places:
        target = project / place
        if not source.exists():
            raise PackagingError(f"{source} is missing: run this from a whole checkout, or install rekindle again")
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
    """Install pure-Python dependencies into vendor/, which Chalice packs unchanged; Chalice itself prefers compiled
    wheels.
    """
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile"]
    command += ["--no-deps", "--only-binary=:all:", "--implementation", "py", "--abi", "none", "--platform", "any"]
    command += ["--target", str(project / "vendor"), "--requirement", str(project / PURE)]
    done = subprocess.run(command, cwd=project, env=dict(env), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        text = f"{done.stdout}{done.stderr}".strip()
        raise PackagingError(f"the packages of {PURE} are missing; is a package index reachable?\n{text}")
    shutil.rmtree(project / "vendor" / "bin", ignore_errors=True)  # their command line tools


def _chalice(project: Path, packed: Path, *, merge: Path, env: Mapping[str, str]) -> None:
    command = [sys.executable, "-c", "import sys; from chalice.cli import main; sys.exit(main())", "package"]
    command += ["--stage", "prod", "--merge-template", str(merge), str(packed)]
    done = subprocess.run(command, cwd=project, env=dict(env), capture_output=True, text=True, check=False)
    text = f"{done.stdout}{done.stderr}".strip()
    if done.returncode != 0:
        raise PackagingError(f"chalice package failed:\n{text}")
    if "Could not install dependencies" in text:  # Chalice only warns, and would pack without them
        raise PackagingError(f"dependencies are missing; is a package index reachable?\n{text}")


def find_compiler(env: Mapping[str, str]) -> str | None:
    """A Python of the version that the functions run under; None where this machine has none.

    Only that version reads the bytecode. The functions' own folder is read-only, so that without bytecode each cold
    start compiles every module again.
    """
    for candidate in (sys.executable, shutil.which(RUNTIME, path=env.get("PATH"))):
        if candidate is None:
            continue
        command = [
            candidate,
            "-I",
            "-c",
            "import sys; print(f'python{sys.version_info.major}.{sys.version_info.minor}')",
        ]
        done = subprocess.run(command, env=dict(env), capture_output=True, text=True, check=False)
        if done.returncode == 0 and done.stdout.strip() == RUNTIME:
            return candidate
    return None


def _compiled(bundle: Path, scratch: Path, *, python: str, env: Mapping[str, str]) -> dict[str, bytes]:
    """Bytecode for every module of the bundle, by its name in the bundle.

    Unchecked: neither dates nor hashes of sources are compared at a cold start. Source: PEP 552. Tracebacks name the
    files as they lie on Lambda. A fixed hash seed gives the same bytes for the same source.
    """
    with zipfile.ZipFile(bundle) as archive:
        archive.extractall(scratch)
    command = [python, "-s", "-P", "-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash"]
    command += ["-s", str(scratch), "-p", _ON_LAMBDA, str(scratch)]
    # The bundle's own modules, and the same order of sets each time.
    own = {name: value for name, value in env.items() if name != "PYTHONPATH"} | {"PYTHONHASHSEED": "0"}
    # Packages carry templates that are no modules of this Python: compileall says so by its exit status, and continues.
    subprocess.run(command, env=own, capture_output=True, check=False)
    made = {path.relative_to(scratch).as_posix(): path.read_bytes() for path in scratch.rglob("__pycache__/*.pyc")}
    if not any(name.startswith("__pycache__/app.") for name in made):
        raise PackagingError(f"{python} compiles no bytecode; is it a whole installation?")
    return made


def _rewrite_bundle(source: Path, target: Path, *, bytecode: Mapping[str, bytes] | None = None) -> None:
    """The same files in a fixed order, with fixed dates and modes: two builds give the same bytes.

    `bytecode` is added; what Chalice may have packed of it is left out.
    """
    size = 0
    added = bytecode or {}
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
        names = [name for name in old.namelist() if not name.endswith(("/", ".pyc")) and "__pycache__/" not in name]
        for name in sorted([*names, *added]):
            if name.endswith(_COMPILED) or ".so." in name:
                raise PackagingError(f"{name} is compiled: the bundle must suit every CPU and Python (ADR 0004)")
            content = added[name] if name in added else old.read(name)
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
        is_compiled = build(args.out, offline=args.offline)
    except PackagingError as err:
        print(f"error: {err}", file=sys.stderr)
        return 1
    size = (args.out / BUNDLE).stat().st_size / 1e6
    if not is_compiled and not args.offline:
        print(
            f"note: {RUNTIME} is not on this machine: the bundle holds no bytecode, and cold starts take twice as long"
        )
    print(f"{args.out / TEMPLATE} and {args.out / BUNDLE} ({size:.1f} MB{', no dependencies' if args.offline else ''})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
