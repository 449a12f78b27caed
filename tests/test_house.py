"""The house rules that no linter knows."""

from __future__ import annotations

import ast
import graphlib
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Final

import pytest

from chalicelib.domain.faults.failure_reasons import REASONS
from chalicelib.domain.policy.playbooks import PLAYBOOKS
from chalicelib.ingest.hyperpod_catalogue import CATALOGUE
from rekindle.signatures.xids import XID_FAULTS

ROOT: Final = Path(__file__).parents[1]
HOUSES: Final = ("benchmarks", "chalicelib", "fleets", "infra", "localcloud", "rekindle", "simulation")
APP: Final = ast.parse((ROOT / "app.py").read_text())
TRIGGERS: Final = [node for node in APP.body if isinstance(node, ast.FunctionDef) and node.decorator_list]
# Written in parts, so that this file does not hold what it looks for.
HOSTS: Final = "|".join(
    (r"py" + r"pi\.org", r"files\.python" + "hosted", r"registry\.npm" + "js", r"index\.crates" + r"\.io")
)
FOLDERS: Final = r"(?<![\w.}$-])/(?:" + "|".join(("ho" + "me", "Us" + "ers", "wo" + "rk", "ro" + "ot")) + r")/[\w.-]+"
# Anywhere in a file, for types or at run time; read as text, because to parse every file takes ten times as long.
IMPORT: Final = re.compile(r"^[ \t]*(?:from ([\w.]+) import (\([^)]*\)|[^\n#(]+)|import ([\w.]+))", re.MULTILINE)
OF_A_MACHINE: Final = re.compile(f"{HOSTS}|{FOLDERS}")


@cache
def trees() -> dict[str, ast.Module]:
    """Path -> its syntax tree, of all product code."""
    files = [ROOT / "app.py", *(file for house in HOUSES for file in sorted((ROOT / house).rglob("*.py")))]
    return {file.relative_to(ROOT).as_posix(): ast.parse(file.read_text(encoding="utf-8")) for file in files}


@pytest.mark.parametrize("trigger", TRIGGERS, ids=lambda node: str(node.name))
def test_a_trigger_is_three_to_eight_lines(trigger: ast.FunctionDef) -> None:
    first = trigger.decorator_list[0].lineno
    assert 3 <= (trigger.end_lineno or 0) - first + 1 <= 8
    assert ast.get_docstring(trigger)


def test_every_trigger_hangs_on_the_app_itself_and_none_on_a_blueprint() -> None:
    """On Lambda a Blueprint's handler would be named after its module, and bypass app.py's middleware."""
    assert TRIGGERS
    for trigger in TRIGGERS:
        (decorator,) = trigger.decorator_list
        assert isinstance(decorator, ast.Call)
        assert isinstance(decorator.func, ast.Attribute)
        assert isinstance(decorator.func.value, ast.Name)
        assert decorator.func.value.id == "app"
    names = {node.id for node in ast.walk(APP) if isinstance(node, ast.Name)}
    names |= {alias.name for node in ast.walk(APP) if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert "Blueprint" not in names
    for path in (ROOT / "chalicelib").rglob("*.py"):
        assert "Blueprint(" not in path.read_text(), path


@pytest.mark.parametrize(
    ("name", "sources"),
    [
        ("playbooks", [row.source for row in PLAYBOOKS]),
        ("failure reasons", [row.source for row in REASONS]),
        ("HyperPod catalogue", [row.source for row in CATALOGUE]),
    ],
)
def test_every_row_of_a_table_names_its_source(name: str, sources: list[str]) -> None:
    assert sources
    assert all(source.strip() for source in sources), name


def test_every_xid_is_backed_by_an_authority() -> None:
    for row in XID_FAULTS.values():
        assert {row.nvidia, row.eks, row.kit, row.health_check} != {"-"}, row.xid


def _imports() -> dict[str, set[str]]:
    """By module of ours: the modules of ours that it imports, anywhere in its text, for types or at run time."""
    paths: dict[str, Path] = {}
    for house in HOUSES:
        for path in (ROOT / house).rglob("*.py"):
            parts = path.relative_to(ROOT).with_suffix("").parts
            paths[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    found: dict[str, set[str]] = {}
    for module, path in paths.items():
        named: set[str] = set()
        for base, names, whole in IMPORT.findall(path.read_text(encoding="utf-8")):
            inner = {f"{base}.{name.split()[0]}" for name in names.strip("()").split(",") if name.split()}
            named |= (inner & paths.keys()) or {base or whole}
        found[module] = (named & paths.keys()) - {module}
    return found


def _folder(module: str) -> str:
    place = ROOT.joinpath(*module.split("."))
    return (place if place.is_dir() else place.parent).relative_to(ROOT).as_posix()


def _has_no_circle(imports: Mapping[str, set[str]]) -> None:
    try:
        graphlib.TopologicalSorter(imports).prepare()
    except graphlib.CycleError as err:
        pytest.fail(f"an import circle: {' -> '.join(err.args[1])}")


def test_no_module_and_no_folder_imports_itself_through_others() -> None:
    """A folder is what its own modules import, without the folders in it."""
    imports = _imports()
    _has_no_circle(imports)
    by_folder: dict[str, set[str]] = {}
    for module, named in imports.items():
        own = _folder(module)
        by_folder.setdefault(own, set()).update({_folder(one) for one in named} - {own})
    _has_no_circle(by_folder)


@pytest.mark.parametrize(
    ("text", "is_found"),
    [
        ("/" + "home/ada/rekindle", True),
        ('"/' + 'work/main"', True),
        ("https://py" + "pi.org/simple", True),
        ("/opt/ml/checkpoints", False),
        ("s3://bucket/" + "work/lm", False),
        ("docs/" + "work/notes", False),
    ],
)
def test_what_belongs_to_one_machine_is_recognised(text: str, is_found: bool) -> None:
    assert bool(OF_A_MACHINE.search(text)) is is_found


def test_no_tracked_file_names_a_machines_folder_or_a_registry() -> None:
    git = shutil.which("git")
    if git is None or not (ROOT / ".git").exists():
        pytest.skip("not a clone")
    listed = subprocess.run([git, "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    found = []
    for name in listed.decode().split("\0"):
        path = ROOT / name
        if not name or not path.is_file() or path.is_symlink():
            continue
        text = path.read_text(errors="replace")
        found += [f"{name}: {match[0]}" for match in OF_A_MACHINE.finditer(text)]
    assert found == []


def test_what_runs_beside_the_training_imports_nothing_that_python_3_10_lacks() -> None:
    """`make check` asks mypy for all of it; this is the part that a new module gets wrong first."""
    newer = {"UTC", "StrEnum", "Self", "assert_never"}
    for path in (ROOT / "rekindle").rglob("*.py"):
        if path.name == "compat.py" or "service" in path.parts:
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module in ("datetime", "enum", "typing"):
                found = newer & {alias.name for alias in node.names}
                assert not found, f"{path}: import {', '.join(found)} from rekindle.compat"


# Named by nothing of ours: what a framework calls by a name of its own, or what is looked up by its name.
CALLED_BY_NAME: Final = (
    "app.py",
    "benchmarks/healthy_kinds.py",
    "infra/site/hooks.py",
    "localcloud/engine/lambdas.py",
    "localcloud/platforms/hyperpod.py",
)
OVERRIDES: Final = {"deserialize", "create_event", "_create_execution", "_generate_next_value_", "_action"}


def test_every_function_and_class_is_named_somewhere_else() -> None:
    """Counted by name alone: what is found is certain, and what has a common name may hide."""
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True)
    words: Counter[str] = Counter()
    for path in listed.stdout.splitlines():
        if (ROOT / path).is_file():
            words.update(re.findall(r"\w+", (ROOT / path).read_text(encoding="utf-8", errors="ignore")))
    unused = [
        f"{path}: {node.name}"
        for path, tree in trees().items()
        if path not in CALLED_BY_NAME
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and words[node.name] == 1 and node.name not in OVERRIDES
    ]
    assert unused == []
