"""Where Chromium and its driver are on this machine, and how they get here: `python -m tests.console.chromium_install
--root .venv/chromium` prints one JSON object, which `make e2e-console` keeps for tests/console.

As root, through apt; otherwise Debian's packages are unpacked under a folder, and run from there by LD_LIBRARY_PATH.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from tests import debian

# fonts-dejavu-core: a picture of a page without any font is empty boxes.
PACKAGES: Final = ("chromium", "chromium-driver", "fonts-dejavu-core")
ENV_FILE: Final = "CHROMIUM_INSTALLATION"  # the file that holds what this module printed
_SAYS_WITHIN_S: Final = 120


class ChromiumMissing(RuntimeError):
    """No usable Chromium here; the message says what is missing and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Installation:
    """One Chromium. `libraries` is empty where it is installed."""

    browser: str
    driver: str
    libraries: str = ""

    def environ(self) -> dict[str, str]:
        """What a process needs in order to start it."""
        return {"LD_LIBRARY_PATH": self.libraries} if self.libraries else {}

    def versions(self) -> list[str]:
        """What both say of themselves. Raises: ChromiumMissing: one of them does not run."""
        lines = []
        for program in (self.browser, self.driver):
            try:
                done = subprocess.run(
                    [program, "--version"],
                    env={**os.environ, **self.environ()},
                    capture_output=True,
                    text=True,
                    check=True,
                    timeout=_SAYS_WITHIN_S,
                )
            except (OSError, subprocess.SubprocessError) as err:
                raise ChromiumMissing(f"{program} does not run: {err}") from err
            lines.append(done.stdout.strip())
        return lines


def find() -> Installation:
    """The one that was found by `make e2e-console`, else the one that is installed. Raises: ChromiumMissing."""
    file = os.environ.get(ENV_FILE)
    if file:
        return Installation(**json.loads(Path(file).read_text()))
    found = _installed()
    if found is None:
        raise ChromiumMissing("neither chromium nor chromedriver is here: run `make e2e-console`, which installs them")
    return found


def _installed() -> Installation | None:
    browser, driver = shutil.which("chromium"), shutil.which("chromedriver")
    return Installation(browser=browser, driver=driver) if browser and driver else None


def _unpacked(root: Path) -> Installation | None:
    browser, driver = root / "usr/lib/chromium/chromium", root / "usr/bin/chromedriver"
    if not (browser.exists() and driver.exists()):
        return None
    folders = [*root.glob("usr/lib/*-linux-gnu*"), *root.glob("lib/*-linux-gnu*"), root / "usr/lib/chromium"]
    return Installation(browser=str(browser), driver=str(driver), libraries=os.pathsep.join(map(str, folders)))


def install(root: Path) -> Installation:
    """Have Chromium, however it can be had. Raises: ChromiumMissing."""
    there = _installed() or _unpacked(root)
    if there is None:
        if shutil.which("apt-get") is None:
            raise ChromiumMissing("neither Chromium nor apt is here: install chromium and chromedriver")
        try:
            if os.geteuid() == 0:
                debian.install(PACKAGES)
                there = _installed()
            else:
                debian.unpack(PACKAGES, root)
                there = _unpacked(root)
        except debian.PackagesMissing as err:
            raise ChromiumMissing(str(err)) from err
    if there is None:
        raise ChromiumMissing(f"the packages {', '.join(PACKAGES)} hold no chromium and chromedriver")
    there.versions()
    return there


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the installation."""
    parser = argparse.ArgumentParser(prog="python -m tests.console.chromium_install", description=__doc__)
    parser.add_argument("--root", type=Path, required=True, help="where to unpack the packages without root")
    options = parser.parse_args(arguments)
    try:
        print(json.dumps(asdict(install(options.root.resolve()))))
    except ChromiumMissing as err:
        print(f"Chromium cannot be had here: {err}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
