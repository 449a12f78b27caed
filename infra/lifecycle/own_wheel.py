"""The wheel of the very code that runs now: built from a checkout, or put together again from what was installed.

What the agent on a head node runs is then never another version than the operator's, and no index needs to hold it.
"""

from __future__ import annotations

import base64
import calendar
import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path
from typing import Final

from infra.lifecycle import LifecycleError
from infra.sources import copy_package, is_checkout

# pip writes these when it installs. Source: PyPA, Recording installed projects. RECORD is made anew.
_OF_PIP: Final = frozenset({"INSTALLER", "REQUESTED", "RECORD", "direct_url.json"})
_EPOCH: Final = (1980, 1, 1, 0, 0, 0)  # the oldest date that a zip can hold


def own_wheel(folder: Path) -> Path:
    """Write the wheel into `folder`. Raises: LifecycleError."""
    return _built(folder) if is_checkout() else _restored(folder)


def _built(folder: Path) -> Path:
    source = folder / "source"  # a copy: building in place would leave its own folder behind
    copy_package(source)
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "-q", "wheel", "--no-deps"]
    command += ["--wheel-dir", str(folder), str(source)]
    # The same source is the same wheel, so that installing it again changes nothing. Source: reproducible-builds.org.
    same = os.environ | {"SOURCE_DATE_EPOCH": str(calendar.timegm((*_EPOCH, 0, 0, 0)))}
    done = subprocess.run(command, env=same, capture_output=True, text=True, check=False)
    shutil.rmtree(source)
    if done.returncode != 0:
        raise LifecycleError(f"pip wheel failed: {done.stderr.strip()[-500:]}")
    return next(folder.glob("rekindle-*.whl"))


def _restored(folder: Path) -> Path:
    """From the files that the installation recorded. Raises: LifecycleError."""
    try:
        found = metadata.distribution("rekindle")
    except metadata.PackageNotFoundError as err:
        raise LifecycleError("rekindle is not installed: pip install rekindle") from err
    content: dict[str, bytes] = {}
    for file in found.files or ():
        name = file.as_posix()
        if not name.startswith(("rekindle/", "rekindle-")) or "__pycache__" in name or file.name in _OF_PIP:
            continue
        try:
            content[name] = Path(str(file.locate())).read_bytes()
        except OSError as err:
            raise LifecycleError(f"{name} of the installed package cannot be read: {err.strerror}") from err
    info = sorted({name.split("/")[0] for name in content if ".dist-info/" in name})
    if len(info) != 1 or "rekindle/__init__.py" not in content:
        raise LifecycleError("the installed package does not list its own files: install it from a wheel")
    content[f"{info[0]}/RECORD"] = _record(content, f"{info[0]}/RECORD")
    wheel = folder / f"rekindle-{found.version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w", compression=zipfile.ZIP_DEFLATED) as zipped:
        for name in sorted(content):
            entry = zipfile.ZipInfo(name, date_time=_EPOCH)
            entry.external_attr = 0o644 << 16
            zipped.writestr(entry, content[name], compress_type=zipfile.ZIP_DEFLATED)
    return wheel


def _record(content: dict[str, bytes], itself: str) -> bytes:
    """Source: PyPA, Binary distribution format: path, urlsafe base64 of the SHA-256 without padding, size."""
    lines = []
    for name, data in sorted(content.items()):
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        lines.append(f"{name},sha256={digest},{len(data)}\n")
    return "".join([*lines, f"{itself},,\n"]).encode()
