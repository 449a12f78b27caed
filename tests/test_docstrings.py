"""What docstrings and comments refer to is there: a module, a class, a member, a file, a field of the record.

A name that has changed stays in prose unless something looks for it there.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

from tests.test_house import HOUSES, ROOT, trees

# References to other people's code: where they begin, or the whole path within their distribution.
OTHERS: Final = (
    "torch.",
    "torch/",
    "multiprocessing.",
    "distributed/elastic/",
    "concurrency/executor.py",
    "retries/standard.py",
    "runtime/engine.py",
    "trainer/connectors/",
    "utils/fsdp_utils.py",
    "eventbridge.",
    "sagemaker.",
    "module.",
    "Accelerator.",
    "Event.",
    "Thread.",
    "threading.",
)
# Words in a record's docstring that stand for other people's members or files.
WORDS: Final = {
    ("rekindle/integrations/accelerate.py", "prepare"),
    ("rekindle/integrations/accelerate.py", "total_limit"),
    ("rekindle/integrations/deepspeed.py", "latest"),
    ("rekindle/slurm_agent/base/ports.py", "pass_fds"),
    ("rekindle/slurm_agent/base/ports.py", "subprocess"),
    ("localcloud/slurm/lab.py", "spare"),
}
DOTTED: Final = (
    re.compile(r"\b[Ss]ee `?((?:[a-z_]+\.)+[A-Za-z_]+)\b(?!\()"),
    re.compile(r"`((?:[a-z_]+\.)+[A-Z][A-Za-z]+(?:\.[a-z_]+)?)(?:\(\))?`"),
    re.compile(r"`([A-Z][A-Za-z]+\.[a-z_]+)(?:\(\))?`"),
    re.compile(rf"\b((?:ports|channels|services|domain|{'|'.join(HOUSES)})(?:\.[a-z_]+)*\.[A-Z][A-Za-z]+)\b"),
)
FILE: Final = re.compile(r"\b((?:[a-z_]+/)+[a-z_]+\.py)\b")
WORD: Final = re.compile(r"`([a-z_][a-z0-9_]*)`")

Members = dict[str, set[str]]  # class or other name -> its members


@cache
def modules() -> dict[tuple[str, ...], Members]:
    """A module's path in parts -> the names at its top level, imported ones too."""
    found = {}
    for path, tree in trees().items():
        parts = Path(path).with_suffix("").parts
        found[parts[:-1] if parts[-1] == "__init__" else parts] = names_of(tree)
    return found


def names_of(tree: ast.Module) -> Members:
    names: Members = {}
    for node in tree.body:
        match node:
            case ast.ClassDef(name=name):
                names[name] = members_of(node)
            case ast.FunctionDef(name=name):
                names[name] = set()
            case ast.ImportFrom() | ast.Import():
                names |= {(alias.asname or alias.name): set() for alias in node.names}
            case ast.Assign() | ast.AnnAssign():
                names |= {one: set() for one in stored(node)}
    return names


def members_of(node: ast.ClassDef) -> set[str]:
    """Methods, fields, and what its methods put into `self`."""
    found = {one.name for one in node.body if isinstance(one, ast.FunctionDef | ast.ClassDef)}
    found |= fields_of(node)
    found |= {
        one.attr
        for one in ast.walk(node)
        if isinstance(one, ast.Attribute) and isinstance(one.value, ast.Name) and one.value.id == "self"
    }
    return found | stored(node)


def stored(node: ast.AST) -> set[str]:
    return {one.id for one in ast.walk(node) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)}


def fields_of(node: ast.ClassDef) -> set[str]:
    return {one.target.id for one in node.body if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)}


@cache
def resolves(reference: str) -> bool:
    """It names a module, or what a module or a package's modules hold, or a member of a class."""
    parts = tuple(reference.split("."))
    for module, names in modules().items():
        inner = names.get(parts[-2], set()) if len(parts) > 1 else set()
        if len(parts) == 2 and parts[-1] in inner:  # Class.member
            return True
        for lead, is_there in ((parts[:-1], parts[-1] in names), (parts[:-2], parts[-1] in inner), (parts, True)):
            # The leading parts are the module's last ones, or a package above it.
            if is_there and lead and (module[-len(lead) :] == lead or holds(module[:-1], lead)):
                return True
    return False


def holds(packages: tuple[str, ...], lead: tuple[str, ...]) -> bool:
    """One after the other, `lead` stands among the packages; never for a module's own name."""
    return any(packages[start : start + len(lead)] == lead for start in range(len(packages)))


def prose(path: str) -> Iterator[str]:
    """A file's docstrings and comments."""
    for node in ast.walk(trees()[path]):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            yield ast.get_docstring(node) or ""
    for line in (ROOT / path).read_text(encoding="utf-8").splitlines():
        yield line.partition("#")[2]


def test_what_prose_refers_to_is_there() -> None:
    missing = [
        f"{path}: {reference}"
        for path in trees()
        for text in prose(path)
        for reference in references(text)
        if not reference.startswith(OTHERS) and not is_there(reference)
    ]
    assert missing == []


def references(text: str) -> set[str]:
    return {one for pattern in (*DOTTED, FILE) for one in pattern.findall(text)}


@cache
def is_there(reference: str) -> bool:
    if not reference.endswith(".py"):
        return resolves(reference)
    return any(f"/{known}".endswith(f"/{reference}") for known in (*trees(), *test_files()))


@cache
def test_files() -> tuple[str, ...]:
    return tuple(file.relative_to(ROOT).as_posix() for file in (ROOT / "tests").rglob("*.py"))


def test_a_records_docstring_speaks_of_fields_that_it_has() -> None:
    """Or of a value of an enum, a module, a trigger, or a name in the same file."""
    values = {
        one.value
        for tree in trees().values()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and any("Enum" in ast.unparse(base) for base in node.bases)
        for one in ast.walk(node)
        if isinstance(one, ast.Constant) and isinstance(one.value, str)
    }
    anywhere = values | {part for module in modules() for part in module} | names_of(trees()["app.py"]).keys()
    missing = []
    for path, tree in trees().items():
        near = anywhere | identifiers(tree)
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and fields_of(node):
                words = sorted(set(WORD.findall(ast.get_docstring(node) or "")) - near)
                missing += [f"{path}: {node.name}: {one}" for one in words if (path, one) not in WORDS]
    assert missing == []


def identifiers(tree: ast.Module) -> set[str]:
    """Every name in code, and every word of its texts but docstrings."""
    found: set[str] = set()
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name) | ast.arg(arg=name) | ast.Attribute(attr=name):
                found.add(name)
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                found.add(name)
            case ast.keyword(arg=str(name)):
                found.add(name)
            case ast.Constant(value=str(text)) if id(node) not in docstrings:
                found |= set(re.findall(r"\w+", text))
    return found
