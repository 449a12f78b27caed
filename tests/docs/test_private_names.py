"""What the guest in the training process touches of other packages is in a table of docs/integrations.md, and no more.

The code of `rekindle.integrations` and `rekindle.monitor` is walked: private attributes of objects that are not
Rekindle's own, stack frames, private imports, ctypes, and attributes that are set on other packages' objects.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("rekindle/integrations", "rekindle/monitor")
PAGE = ROOT / "docs" / "integrations.md"
FRAMES = {"f_back", "f_locals", "f_globals", "tb_frame"}
FOREIGN = {"ctypes", "cffi"}  # what they reach is checked by nothing
# What `base.guard` asks of the objects whose methods it decorates; a value of a thread's own.
OURS = {"_is_asleep", "_inner", "guarded_as", "held"}
BY_NAME = {"getattr", "hasattr", "setattr", "delattr"}


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__")


def is_own(value: ast.expr) -> bool:
    return isinstance(value, ast.Name) and value.id in ("self", "cls")


def fields(tree: ast.AST) -> set[str]:
    """What a file gives its own objects: annotated fields, attributes of self, methods."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and is_own(node.value):
            names.add(node.attr)
        elif isinstance(node, ast.FunctionDef) and is_private(node.name):
            names.add(node.name)
        elif isinstance(node, ast.ClassDef):
            values = (target for line in node.body if isinstance(line, ast.Assign) for target in line.targets)
            names |= {target.id for target in values if isinstance(target, ast.Name)}
    return names


def touched(tree: ast.AST, of_file: set[str], of_all: set[str]) -> Iterator[tuple[str, str]]:
    """("read" or "set", name) of every attribute of another package's object that is private, or that is set."""
    modules = {
        alias.asname or alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and not is_own(node.value):
            is_modules = isinstance(node.value, ast.Name) and node.value.id in modules
            if node.attr in FRAMES or (is_private(node.attr) and (is_modules or node.attr not in of_file | OURS)):
                yield "read", node.attr
            elif not isinstance(node.ctx, ast.Load) and (is_modules or node.attr not in of_all | OURS):
                yield "set", node.attr
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in BY_NAME:
            name = node.args[1]
            if node.func.id in ("setattr", "delattr") and not is_own(node.args[0]):
                yield "set", ast.unparse(name)
            elif isinstance(name, ast.Constant) and is_private(str(name.value)):
                yield "read", str(name.value)
        elif isinstance(node, ast.Import):
            yield from (("read", alias.name) for alias in node.names if alias.name in FOREIGN)
        elif isinstance(node, ast.ImportFrom) and not (node.module or "").startswith("rekindle"):
            for part in (*(node.module or "").split("."), *(alias.name for alias in node.names)):
                if is_private(part):
                    yield "read", part


def found_in(folder: str) -> dict[tuple[str, str], set[str]]:
    """(how, name) → the files in which."""
    trees = {path: ast.parse(path.read_text()) for path in sorted((ROOT / folder).rglob("*.py"))}
    of_all = set().union(*map(fields, trees.values()))
    found: dict[tuple[str, str], set[str]] = {}
    for path, tree in trees.items():
        for touch in touched(tree, fields(tree), of_all):
            found.setdefault(touch, set()).add(str(path.relative_to(ROOT / "rekindle")))
    return found


def rows(heading: str) -> list[str]:
    """Of the table under a heading."""
    section = PAGE.read_text().split(f"## {heading}\n", 1)[1].split("\n## ", 1)[0]
    return [line for line in section.splitlines() if line.startswith("| `")]


def listed(heading: str) -> set[str]:
    """The names in the table's first column."""
    return {name for row in rows(heading) for name in re.findall(r"`([^`]+)`", row.split("|")[1])}


def test_what_is_private_to_another_package_is_in_the_table_with_its_reason() -> None:
    found = {name for folder in FOLDERS for how, name in found_in(folder) if how == "read"}
    assert found == listed("Private names of other packages")
    assert len(rows("Private names of other packages")) <= 6


def test_what_is_set_on_another_packages_objects_is_in_the_table() -> None:
    found = {name for folder in FOLDERS for how, name in found_in(folder) if how == "set"}
    assert found == listed("What is set on other packages' objects")


def test_a_walk_sees_each_way_to_a_private_name() -> None:
    code = """
from os import _exit
import ctypes, torch
class A:
    def one(self, trainer, name):
        self._mine = trainer._save
        torch.save = name
        trainer.training_step = self.one
        getattr(trainer, "_engine", None)
        setattr(trainer, name, 1)
        del trainer.gone
        return trainer.__dict__, frame.f_back, self._mine, other._mine
"""
    tree = ast.parse(code)
    names = fields(tree)
    assert set(touched(tree, names, names)) == {
        ("read", "_exit"), ("read", "ctypes"), ("read", "_save"), ("set", "training_step"), ("read", "_engine"),
        ("set", "name"),
        ("set", "gone"), ("read", "f_back"), ("set", "save"),
    }  # fmt: skip
