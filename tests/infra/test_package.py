"""The build: the same bytes every time, everything needed, nothing else."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from infra.functions import RUNTIME
from infra.package import (
    BUNDLE,
    NEEDED,
    PURE,
    ROOT,
    SHARED,
    TEMPLATE,
    PackagingError,
    _compiled,
    _rewrite_bundle,
    build,
    find_compiler,
    main,
)


def _copy_of_the_project(target: Path) -> Path:
    for name in (*NEEDED, "rekindle"):
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, target / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target / name)
    return target


@pytest.mark.long
def test_two_builds_give_the_same_bytes_even_after_every_file_was_touched(package: Path, tmp_path: Path) -> None:
    project = _copy_of_the_project(tmp_path / "project")
    for path in project.rglob("*"):
        if path.is_file():
            os.utime(path, (1_500_000_000, 1_500_000_000))
    build(tmp_path / "again", offline=True, root=project)
    for name in (TEMPLATE, BUNDLE):
        assert (tmp_path / "again" / name).read_bytes() == (package / name).read_bytes()


def test_the_bundle_holds_the_service_and_the_shared_parts_and_nothing_else(package: Path) -> None:
    names = zipfile.ZipFile(package / BUNDLE).namelist()
    assert {name.split("/")[0] for name in names} == {"app.py", "chalice", "chalicelib", "rekindle"}
    assert {name.split("/")[1] for name in names if name.startswith("rekindle/")} == set(SHARED)
    assert not [name for name in names if not name.endswith((".py", ".json", ".typed", ".pem", ".md", ".txt"))]


@pytest.mark.long
def test_the_service_imports_from_the_bundle_without_the_rest_of_the_repository(package: Path, tmp_path: Path) -> None:
    zipfile.ZipFile(package / BUNDLE).extractall(tmp_path)
    # -S and -I leave the checkout (an editable install) out; dependencies come from site-packages by plain path.
    program = (
        "import sys; sys.path[:0] = [sys.argv[1], sys.argv[2]]\n"
        "import importlib, pkgutil, app, chalicelib\n"
        "for found in pkgutil.walk_packages(chalicelib.__path__, 'chalicelib.'):\n"
        "    importlib.import_module(found.name)\n"  # also what is loaded at its first use only
        "names = [m for m in sys.modules if m.split('.')[0] in ('app', 'chalicelib', 'rekindle')]\n"
        "outside = [m for m in names if not (sys.modules[m].__file__ or sys.argv[1]).startswith(sys.argv[1])]\n"
        "assert not outside, outside\n"
        "from rekindle import monitor\n"
    )
    command = [sys.executable, "-I", "-S", "-B", "-c", program, str(tmp_path), sysconfig.get_path("purelib")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert "cannot import name 'monitor'" in done.stderr, done.stderr  # the last line, and nothing before it


def test_a_compiled_file_stops_the_build(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "with.zip", "w") as bundle:
        bundle.writestr("app.py", "")
        bundle.writestr("fast/_speedups.cpython-311-aarch64-linux-gnu.so", b"\x7fELF")
    with pytest.raises(PackagingError, match=r"_speedups.*is compiled"):
        _rewrite_bundle(tmp_path / "with.zip", tmp_path / "without.zip")


def test_an_incomplete_checkout_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(PackagingError, match=r"app\.py is missing"):
        build(tmp_path / "out", offline=True, root=tmp_path)


def test_an_app_that_cannot_be_imported_fails_the_build_with_its_own_error(tmp_path: Path) -> None:
    project = _copy_of_the_project(tmp_path / "project")
    (project / "app.py").write_text("import no_such_module\n", encoding="utf-8")
    with pytest.raises(PackagingError, match="no_such_module"):
        build(tmp_path / "out", offline=True, root=project)


@pytest.mark.long
def test_the_shell_s_own_settings_do_not_reach_the_package(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_DEFAULT_REGION", "cn-north-1")
    monkeypatch.setenv("REKINDLE_TABLE", "somebody-elses")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "chalicelib").mkdir()
    (tmp_path / "chalicelib" / "__init__.py").write_text("raise SystemExit('the wrong one')", encoding="utf-8")
    build(tmp_path / "out", offline=True, root=ROOT)
    assert (tmp_path / "out" / TEMPLATE).read_bytes() == (package / TEMPLATE).read_bytes()


def test_bytecode_is_the_same_each_time_and_is_read_without_a_look_at_its_source(tmp_path: Path) -> None:
    packed, source = tmp_path / "packed.zip", "KINDS = frozenset({'a', 'b', 'c', 'd', 'e'})\n"
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("app.py", source)
        archive.writestr("package/__init__.py", source)
        archive.writestr("package/template.py", "{{ no Python }}")
    env = dict(os.environ)
    made = [_compiled(packed, tmp_path / name, python=sys.executable, env=env) for name in ("one", "two")]
    assert made[0] == made[1]
    assert {name.rpartition("/")[2].partition(".")[0] for name in made[0]} == {"app", "__init__"}
    for content in made[0].values():
        assert content[4:8] == b"\x01\0\0\0"  # PEP 552: by hash, and unchecked
        assert b"/var/task/" in content
        assert str(tmp_path).encode() not in content
    _rewrite_bundle(packed, tmp_path / "bundle.zip", bytecode=made[0])
    with zipfile.ZipFile(tmp_path / "bundle.zip") as archive:
        assert set(archive.namelist()) == {"app.py", "package/__init__.py", "package/template.py", *made[0]}


def test_what_compiles_is_of_the_functions_own_version(tmp_path: Path) -> None:
    """Bytecode of another version would be ignored by Lambda, and a broken shim is none."""
    python = tmp_path / RUNTIME
    python.write_text("#!/bin/sh\nexit 127\n", encoding="utf-8")
    python.chmod(0o755)
    if f"python{sys.version_info.major}.{sys.version_info.minor}" != RUNTIME:
        assert find_compiler({"PATH": str(tmp_path)}) is None
        assert find_compiler({"PATH": str(tmp_path / "empty")}) is None
    python.write_text(f"#!/bin/sh\necho {RUNTIME}\n", encoding="utf-8")
    found = find_compiler({"PATH": str(tmp_path)})
    assert found in (str(python), sys.executable)


def _locked(name: str) -> dict[str, frozenset[str]]:
    """Package and version -> the hashes that its files may have."""
    text = (ROOT / name).read_text(encoding="utf-8")
    blocks = re.findall(r"^([^\s#][^\n]*?==[^\s;]+)([^\n]*(?:\n[ ]+--hash=[^\n]+)*)", text, re.MULTILINE)
    return {pin: frozenset(re.findall(r"sha256:[0-9a-f]{64}", rest)) for pin, rest in blocks}


def test_what_is_downloaded_is_held_to_hashes_and_is_what_the_tests_run_with() -> None:
    everything = _locked("requirements-dev.txt")
    for name in ("requirements.txt", PURE):
        packed = _locked(name)
        assert packed
        assert packed.keys() <= everything.keys()
        for pin, hashes in packed.items():
            assert hashes, f"{name}: {pin} has no hash"
            assert hashes == everything[pin], f"{name}: {pin} has other hashes than requirements-dev.txt"
    assert all(everything.values())


@pytest.mark.parametrize("name", ["requirements-dev", "requirements", "requirements-pure"])
def test_a_lock_holds_what_its_list_asks_for(name: str) -> None:
    asked = re.findall(
        r"^([A-Za-z0-9._-]+)(?:\[[a-z]+\])?==(\S+)", (ROOT / f"{name}.in").read_text(encoding="utf-8"), re.M
    )
    locked = {pin.lower().replace("_", "-") for pin in _locked(f"{name}.txt")}
    assert asked
    assert {f"{package}=={version}".lower().replace("_", "-") for package, version in asked} <= locked


def test_a_file_with_another_hash_is_refused_by_its_package(tmp_path: Path) -> None:
    """Nothing is reached over the network: the file lies in a folder, as a mirror would serve it."""
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    forged = wheels / "tzdata-2026.6-py2.py3-none-any.whl"
    with zipfile.ZipFile(forged, "w") as archive:
        archive.writestr("tzdata/__init__.py", "raise SystemExit('forged')")
        archive.writestr("tzdata-2026.6.dist-info/METADATA", "Metadata-Version: 2.1\nName: tzdata\nVersion: 2026.6\n")
        archive.writestr("tzdata-2026.6.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py2-none-any\nTag: py3-none-any\n")
        archive.writestr("tzdata-2026.6.dist-info/RECORD", "")
    only = "tzdata==2026.6"
    (tmp_path / "requirements.txt").write_text(
        f"{only} {' '.join(f'--hash={one}' for one in sorted(_locked(PURE)[only]))}\n", encoding="utf-8"
    )
    command = [sys.executable, "-m", "pip", "download", "--no-index", "--find-links", str(wheels), "--no-deps"]
    command += ["--dest", str(tmp_path / "out"), "--requirement", str(tmp_path / "requirements.txt")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "tzdata==2026.6" in done.stderr
    assert "HASHES" in done.stderr.upper()


@pytest.fixture
def index(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """A package index within pip's reach; only asked for when these tests are (`-m package`)."""
    if "package" not in (request.config.getoption("markexpr") or ""):
        pytest.skip("needs a package index: run with -m package")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--retries", "0", "six==1.17.0"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"pip reaches no package index: {done.stderr.strip().splitlines()[-1]}")


@pytest.mark.package
def test_the_full_bundle_is_pure_python_and_has_the_offline_template(
    package: Path, tmp_path: Path, index: None
) -> None:
    for out in ("first", "second"):
        assert main(["--out", str(tmp_path / out)]) == 0
    first, second = tmp_path / "first", tmp_path / "second"
    assert (first / BUNDLE).read_bytes() == (second / BUNDLE).read_bytes()
    assert json.loads((first / TEMPLATE).read_text()) == json.loads((package / TEMPLATE).read_text())
    names = zipfile.ZipFile(first / BUNDLE).namelist()
    tops = {name.split("/")[0] for name in names}
    assert {"boto3", "botocore", "aws_lambda_powertools", "aws_durable_execution_sdk_python", "apprise"} <= tops
    assert not tops & {"moto", "numpy", "pydantic", "pytest", "localcloud", "yaml", "oauthlib", "bin"}
    zipfile.ZipFile(first / BUNDLE).extractall(tmp_path / "unpacked")
    program = "import sys; sys.path.insert(0, sys.argv[1]); import app; print(sorted(app.app.handler_map))"
    command = [sys.executable, "-I", "-S", "-B", "-c", program, str(tmp_path / "unpacked")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "recover" in done.stdout
    # Apprise works from the bundle alone, and the names of time zones are known without the machine's own.
    program = (
        "import sys, zoneinfo\n"
        "sys.path.insert(0, sys.argv[1])\n"
        "zoneinfo.reset_tzpath([])\n"
        "from chalicelib.domain.notices.channels import AppriseConfig, ChannelKind\n"
        "from chalicelib.channels.apprise_channel import AppriseChannel\n"
        "class Secrets:\n"
        "    def secret(self, name): return 'pagerduty://' + 'a' * 32 + '@' + 'b' * 32\n"
        "config = AppriseConfig(name='x', kind=ChannelKind.APPRISE, url_secret='x')\n"
        "AppriseChannel(config, Secrets(), clock=None)\n"
        "print(zoneinfo.ZoneInfo('Europe/Zurich'))\n"
    )
    command[command.index("-c") + 1] = program
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "Europe/Zurich", done.stderr
