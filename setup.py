"""The wheel's one peculiarity: the service's sources go into it as files below `rekindle/service` (ADR 0003).

All else stands in pyproject.toml. An editable installation leaves them where they are.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

from setuptools import setup
from setuptools.command.build_py import build_py

# What `rekindle stack`, `demo`, `replay`, `plan` and `slurm-agent` need besides the package itself.
SERVICE: Final = Path("infra", "service-files.txt").read_text(encoding="utf-8").split()


class BuildPy(build_py):
    """build_py, and the service's sources beside the package's own."""

    def run(self) -> None:
        if self.editable_mode:
            super().run()
            return
        package = Path(self.build_lib, "rekindle")
        shutil.rmtree(package, ignore_errors=True)  # what an earlier build left there would be packed again
        super().run()
        for name in SERVICE:
            source, target = Path(name), package / "service" / name
            target.parent.mkdir(parents=True, exist_ok=True)
            if source.is_dir():
                shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__", "*.pyc"))
            else:
                shutil.copyfile(source, target)


setup(cmdclass={"build_py": BuildPy})
