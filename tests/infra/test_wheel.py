"""A wheel in an environment that holds nothing else: what a person without a clone has."""

from __future__ import annotations

import os
import shutil
import site
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from infra.release import MAX_WHEEL_BYTES, ReleaseError, build, check_service_wheel, check_wheel, main

pytestmark = pytest.mark.long
# Python 3.10 lacks what the service is written in; 3.9 lacks a boto3 that is still kept up (docs/install.md).
TRAINING_PYTHONS = ("3.10", "3.12", "3.13")
CURVE = "step,loss\n" + "".join(f"{step},{2.0 if step < 40 else 'nan'}\n" for step in range(60))
XID_79 = "NVRM: Xid (PCI:0000:10:1c): 79, pid=1, GPU has fallen off the bus\n"
RUN = """
import pathlib, sys
import rekindle.monitor as rekindle
mailbox = pathlib.Path(sys.argv[1])
def save(step, kind):
    path = mailbox.parent / f"{kind}-{step}.bin"
    path.write_bytes(b"x" * 64)
    return str(path)
mon = rekindle.start(save=save)
for step in range(1, 6):
    mon.step(step, loss=1.0 / step)
mon.saved(save(5, "periodic"), 5)
mon.finish()
names = sorted(path.name for path in mailbox.rglob("*.json"))
assert any("manifest" in str(path) for path in mailbox.rglob("*")), names
print(len(names), "documents")
"""


@dataclass(frozen=True, slots=True)
class Installed:
    """The wheel in its environment."""

    python: Path
    cwd: Path

    def rekindle(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self._run([str(self.python.with_name("rekindle")), *arguments])

    def run(self, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
        return self._run([str(self.python), *arguments], **environ)

    def _run(self, command: Sequence[str], **environ: str) -> subprocess.CompletedProcess[str]:
        kept = {
            name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "AWS_", "REKINDLE_"))
        }
        kept |= {"AWS_EC2_METADATA_DISABLED": "true", "AWS_CONFIG_FILE": "/dev/null", **environ}
        kept["AWS_SHARED_CREDENTIALS_FILE"] = "/dev/null"
        return subprocess.run(command, cwd=self.cwd, env=kept, capture_output=True, text=True, check=False, timeout=300)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ...]:
    return build(tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="module")
def wheel(made: tuple[Path, ...]) -> Path:
    return made[1]


@pytest.fixture(scope="module")
def of_service(made: tuple[Path, ...]) -> Path:
    return made[3]


@pytest.fixture
def empty(wheel: Path, tmp_path: Path) -> Installed:
    return _installed([wheel], tmp_path, sys.executable)


def _installed(
    wheels: Sequence[Path], tmp_path: Path, interpreter: str, *, with_dependencies: bool = False
) -> Installed:
    folder = tmp_path / "env"
    # This environment's pip installs into that one: a pip for each environment would take longer than all else.
    without_pip = [interpreter, "-I", "-m", "venv", "--without-pip", str(folder)]
    subprocess.run(without_pip, check=True, capture_output=True)
    python = folder / "bin" / "python"
    install = [sys.executable, "-I", "-m", "pip", "--python", str(python), "install", "-q", "--no-deps", "--no-index"]
    install += map(str, wheels)
    subprocess.run(install, check=True, capture_output=True, cwd=tmp_path)
    if with_dependencies:
        # The packages of this environment, behind the wheel's own: what pip would fetch for the extras.
        (own,) = (folder / "lib").glob("python3.*/site-packages")
        behind = [path for path in site.getsitepackages() if Path(path).is_dir()]
        (own / "dependencies.pth").write_text("\n".join(behind) + "\n")
    cwd = tmp_path / "cwd"
    cwd.mkdir()
    (cwd / "app.py").write_text("raise SystemExit('a file of the user')\n")
    return Installed(python, cwd)


def test_a_wheel_that_would_install_other_packages_beside_ours_is_not_released(wheel: Path, tmp_path: Path) -> None:
    spoilt = tmp_path / wheel.name
    shutil.copy(wheel, spoilt)
    with zipfile.ZipFile(spoilt, "a") as zipped:
        zipped.writestr("chalicelib/__init__.py", "")
    with pytest.raises(ReleaseError, match="would install chalicelib beside rekindle"):
        check_wheel(spoilt)


def test_a_wheel_that_has_grown_past_what_training_images_carry_is_not_released(wheel: Path, tmp_path: Path) -> None:
    grown = tmp_path / wheel.name
    shutil.copy(wheel, grown)
    with zipfile.ZipFile(grown, "a") as zipped:
        zipped.writestr("rekindle/grown", os.urandom(MAX_WHEEL_BYTES - wheel.stat().st_size))
    with pytest.raises(ReleaseError, match="each training image carries it"):
        check_wheel(grown)


def test_the_two_wheels_of_a_release_belong_to_each_other(wheel: Path, of_service: Path) -> None:
    check_service_wheel(of_service, check_wheel(wheel))
    with pytest.raises(ReleaseError, match=r"asks for rekindle==0\..*has version 99"):
        check_service_wheel(of_service, "99.0.0")


def test_a_tag_that_names_another_version_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--out", str(tmp_path), "--tag", "v99.0.0"]) == 1
    assert "--tag: v99.0.0 is not v" in capsys.readouterr().err
    assert not list(tmp_path.glob("*.whl"))


def test_without_any_dependency_local_files_are_read_and_the_rest_names_its_extra(empty: Installed) -> None:
    (empty.cwd / "curve.csv").write_text(CURVE)
    (empty.cwd / "train.log").write_text(XID_79)
    assert "non_finite" in empty.rekindle("detect", "curve.csv").stdout
    assert "xid_79_fallen_off_bus" in empty.rekindle("classify", "train.log").stdout
    (empty.cwd / "store").mkdir()
    needs = {
        ("demo", "--seed", "1"): "local",
        ("stack", "deploy"): "deploy",
        ("deploy",): "deploy",
        ("init",): "cli",
        ("plan", "--gpus", "64"): "cli",
        ("status",): "cli",
        ("console",): "console",
        ("status", "--store", "store"): "local",
        ("completion", "bash"): "completion",
    }
    for command, extra in needs.items():
        ended = empty.rekindle(*command)
        assert (ended.returncode, f"pip install 'rekindle[{extra}]'" in ended.stderr) == (2, True), ended.stderr
        assert "Traceback" not in ended.stderr
    agent = empty.run(str(empty.python.with_name("rekindle-agent")), "--check")
    assert (agent.returncode, "pip install 'rekindle[monitor]'" in agent.stderr) == (2, True), agent.stderr


def test_with_its_extras_the_demo_the_deployment_and_the_agents_folder_come_from_the_wheels(
    wheel: Path, of_service: Path, tmp_path: Path
) -> None:
    here = _installed([wheel, of_service], tmp_path, sys.executable, with_dependencies=True)
    demo = here.rekindle("demo", "--fault", "kill")
    assert demo.returncode == 0, demo.stderr
    assert "recovered" in here.rekindle("incidents", "--all", "--store", "build/demo").stdout
    pages = Path(here.rekindle("--help").stdout.split(" is below ")[1].strip())
    assert (pages / "docs" / "runbook" / "sweep-silent.md").is_file()
    refused = here.rekindle("deploy", "--region", "eu-west-1")
    assert (refused.returncode, "no AWS credentials" in refused.stderr) == (4, True)
    built = here.run(
        "-c",
        "from rekindle.cli.service.files import make_importable; make_importable()\n"
        "import pathlib; from infra.package import build; build(pathlib.Path('package'), offline=True)",
    )
    assert built.returncode == 0, built.stderr
    assert {path.name for path in (here.cwd / "package").iterdir()} == {"sam.json", "deployment.zip"}


def test_the_wheel_that_goes_to_the_head_node_is_the_one_that_was_installed(
    wheel: Path, of_service: Path, tmp_path: Path
) -> None:
    here = _installed([wheel, of_service], tmp_path, sys.executable, with_dependencies=True)
    made = here.run(
        "-c",
        "from rekindle.cli.service.files import make_importable; make_importable()\n"
        "import pathlib; from infra.lifecycle.own_wheel import own_wheel; own_wheel(pathlib.Path('.'))",
    )
    assert made.returncode == 0, made.stderr
    (restored,) = here.cwd.glob("*.whl")
    with zipfile.ZipFile(wheel) as ours, zipfile.ZipFile(restored) as again:
        assert sorted(ours.namelist()) == sorted(again.namelist())
        for name in ours.namelist():
            assert name.endswith("RECORD") or ours.read(name) == again.read(name), name
    check_wheel(restored)
    install = ["-m", "pip", "install", "-q", "--no-deps", "--no-index", "--force-reinstall", restored.name]
    assert here.run(*install).returncode == 0


@pytest.mark.parametrize("version", TRAINING_PYTHONS)
def test_monitor_and_agent_run_on_the_pythons_of_training_images(wheel: Path, tmp_path: Path, version: str) -> None:
    here = _installed([wheel], tmp_path, _interpreter(version), with_dependencies=True)
    mailbox = tmp_path / "mailbox"
    ran = here.run("-c", RUN, str(mailbox), REKINDLE_MAILBOX=mailbox.as_uri(), REKINDLE_JOB_ID="lm-7")
    assert ran.returncode == 0, ran.stderr
    assert "documents" in ran.stdout
    agent = here.run("-m", "rekindle.slurm_agent", "--check", "--state-dir", str(tmp_path / "state"), "--cluster", "c1")
    assert agent.returncode in (1, 2), agent.stderr
    assert "Traceback" not in agent.stderr
    imported = here.run("-c", "import rekindle.cli.main, rekindle.console.site, rekindle.doctor.aws.gather")
    assert imported.returncode == 0, imported.stderr
    (here.cwd / "curve.csv").write_text(CURVE)
    assert "non_finite" in here.rekindle("detect", "curve.csv").stdout
    if version == "3.10":
        refused = here.rekindle("demo")
        assert (refused.returncode, refused.stderr.strip()) == (
            2,
            "rekindle: `rekindle demo` needs Python 3.11 or newer",
        )


def _interpreter(version: str) -> str:
    """One on the path, or one of pyenv's; skips the test where there is none."""
    found = shutil.which(f"python{version}")
    candidates = [found] if found else []
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    candidates += [str(path) for path in sorted(root.glob(f"versions/{version}.*/bin/python"))]
    for candidate in candidates:
        if (
            subprocess.run([candidate, "-c", "import venv, ensurepip"], capture_output=True, check=False).returncode
            == 0
        ):
            return candidate
    pytest.skip(f"no Python {version} on this machine")
