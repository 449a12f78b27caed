"""The service's source, parsed: its modules and classes, the types that it declares, and what bootstrap puts together.

Nothing is executed. `infra.reach` follows references through these.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
_BOOTSTRAP: Final = "chalicelib.bootstrap"  # a module or a package
NOTHING: Final = ast.Module(body=[], type_ignores=[])


@dataclass(frozen=True)
class Module:
    """One parsed file: its top-level definitions, and every import in it."""

    name: str
    functions: dict[str, ast.FunctionDef]
    classes: dict[str, ast.ClassDef]
    constants: dict[str, ast.expr]
    imports: dict[str, tuple[str, str | None]]  # local name -> (module, member or None for the module itself)


def _is_in(module: str, package: str) -> bool:
    return f"{module}.".startswith(f"{package}.")


@cache
def parts_of(node: ast.AST) -> tuple[ast.AST, ...]:
    """The node and all below it; read once, as every entry point comes by."""
    return tuple(ast.walk(node))


@cache
def _methods(node: ast.ClassDef) -> Mapping[str, ast.FunctionDef]:
    """The first method of each name."""
    return {part.name: part for part in reversed(node.body) if isinstance(part, ast.FunctionDef)}


@dataclass(frozen=True)
class Class:
    """A class with the module that it stands in."""

    module: Module
    node: ast.ClassDef

    @property
    def name(self) -> str:
        return self.node.name

    def own_method(self, name: str) -> ast.FunctionDef | None:
        """A method that the class itself writes down; ParsedSource.method looks in its base classes too."""
        return _methods(self.node).get(name)

    def own_methods(self) -> frozenset[str]:
        return frozenset(_methods(self.node))

    def property_names(self) -> frozenset[str]:
        """The methods that are read as fields."""
        found = (node for node in self.node.body if isinstance(node, ast.FunctionDef))
        decorated = ((node.name, one) for node in found for one in node.decorator_list)
        return frozenset(name for name, one in decorated if isinstance(one, ast.Name) and one.id == "property")

    @property
    def is_protocol(self) -> bool:
        return any(isinstance(base, ast.Name) and base.id == "Protocol" for base in self.node.bases)


class ParsedSource:
    """The parsed source of the service."""

    def __init__(self, root: Path = ROOT) -> None:
        self._modules = dict(_parse(root))
        self._lineages: dict[int, list[Class]] = {}
        self._made, self._services = self._wiring()
        self._types: dict[int, Types] = {}
        self._fitting: dict[int, list[Class]] = {}
        self.port_methods = self._port_methods()

    def types(self, node: ast.AST, module: Module, owner: Class | None) -> Types:
        """The declared types inside one function; read once, as every entry point comes by."""
        if id(node) not in self._types:
            self._types[id(node)] = Types(self, module, owner, node)
        return self._types[id(node)]

    def lineage(self, found: Class) -> list[Class]:
        """The class, then those of the service that it is derived from, nearest first."""
        if id(found.node) not in self._lineages:
            named = [base.id for base in found.node.bases if isinstance(base, ast.Name)]
            bases = [
                one for name in named for base in self.members(name, near=found.module) for one in self.lineage(base)
            ]
            self._lineages[id(found.node)] = [found, *bases]
        return self._lineages[id(found.node)]

    def method(self, found: Class, name: str) -> tuple[Class, ast.FunctionDef] | None:
        """A method of a class with the class that writes it down."""
        written = ((one, one.own_method(name)) for one in self.lineage(found))
        return next(((one, method) for one, method in written if method is not None), None)

    def methods_of(self, found: Class) -> frozenset[str]:
        """The names of a class's methods, inherited ones too."""
        return frozenset(name for one in self.lineage(found) for name in one.own_methods())

    def adapters(self) -> list[Class]:
        """The classes to which bootstrap hands a client."""
        return [made for made in self._made if self._services.get(made.name)]

    def members(self, name: str, *, near: Module) -> list[Class]:
        """The classes a name can mean in a module: its own or the imported one."""
        if name in near.classes:
            return [Class(near, near.classes[name])]
        if name in near.imports:
            origin, member = near.imports[name]
            there = self._modules.get(origin)
            if there is not None and member is not None:
                return self.members(member, near=there)
        return []

    def behind(self, found: Class) -> list[Class]:
        """What stands behind a declared type at run time: for a port, whatever bootstrap makes that fits it."""
        if not found.is_protocol:
            return [found]
        if id(found.node) not in self._fitting:
            wanted = found.own_methods() - found.property_names() - {"__call__"}  # a field may stand for a property
            self._fitting[id(found.node)] = [made for made in self._made if wanted and wanted <= self.methods_of(made)]
        return self._fitting[id(found.node)]

    def services_of(self, found: Class, otherwise: frozenset[str]) -> frozenset[str]:
        """The AWS services whose clients bootstrap gave this class."""
        return self._services.get(found.name, otherwise)

    def module(self, name: str) -> Module | None:
        """A module of the service by its dotted name."""
        return self._modules.get(name)

    def _port_methods(self) -> frozenset[str]:
        """Every method name of every port."""
        ports = [one for one in self._modules.values() if f"{one.name}.".startswith("chalicelib.ports.")]
        found = (Class(one, node) for one in ports for node in one.classes.values())
        return frozenset(name for port in found if port.is_protocol for name in port.own_methods())

    def _wiring(self) -> tuple[list[Class], dict[str, frozenset[str]]]:
        """The classes that bootstrap makes, and the services of the clients it hands to each."""
        bootstrap = [module for name, module in self._modules.items() if _is_in(name, _BOOTSTRAP)]
        made: list[Class] = [Class(module, node) for module in bootstrap for node in module.classes.values()]
        services: dict[str, frozenset[str]] = {}
        for module in bootstrap:
            for part in (*module.functions.values(), *module.classes.values()):
                for call in (node for node in ast.walk(part) if isinstance(node, ast.Call)):
                    if not isinstance(call.func, ast.Name):
                        continue
                    found = self.members(call.func.id, near=module)
                    made += [one for one in found if one not in made]
                    handed = frozenset(_client_names(call))
                    for one in found:
                        services[one.name] = services.get(one.name, frozenset()) | handed
        return made, services


class Types:
    """The declared types of the names inside one function, as far as the service's own classes go."""

    def __init__(self, source: ParsedSource, module: Module, owner: Class | None, node: ast.AST) -> None:
        self._source = source
        self._module = module
        self._owner = owner
        self._locals: dict[str, list[Class]] = {}
        for part in parts_of(node):
            if isinstance(part, ast.arg):
                self._locals[part.arg] = self._declared(part.annotation)
        if owner is not None:
            self._locals["self"] = [owner]
            self._locals["cls"] = [owner]
        for _ in range(2):  # a name may be assigned from one that is assigned further up
            for part in parts_of(node):
                self._learn(part)

    def is_local(self, name: str) -> bool:
        """True for parameters and names assigned here."""
        return name in self._locals

    def of(self, value: ast.expr) -> list[Class]:
        """The classes an expression's value may have; none when that is not declared."""
        match value:
            case ast.Name(id=name):
                return self._locals.get(name, [])
            case ast.Attribute(value=inner, attr=attr):
                return [one for holder in self.of(inner) for one in self._member(holder, attr)]
            case ast.Call(func=func):
                return self._returned(func)
            case ast.Await(value=inner) | ast.Starred(value=inner) | ast.NamedExpr(value=inner):
                return self.of(inner)
            case ast.BoolOp(values=values):
                return [one for part in values for one in self.of(part)]
            case ast.IfExp(body=body, orelse=orelse):
                return self.of(body) + self.of(orelse)
            case ast.Subscript(value=inner):
                return self.of(inner)
        return []

    def _learn(self, part: ast.AST) -> None:
        match part:
            case ast.AnnAssign(target=ast.Name(id=name), annotation=annotation):
                self._locals[name] = self._declared(annotation)
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    self._bind(target, self.of(value))
            case ast.NamedExpr(target=ast.Name(id=name), value=value):
                self._locals[name] = self.of(value)
            case ast.For(target=target, iter=value) | ast.comprehension(target=target, iter=value):
                self._bind(target, self.of(value))
            case ast.withitem(context_expr=value, optional_vars=ast.expr() as target):
                self._bind(target, self.of(value))

    def _bind(self, target: ast.expr, types: list[Class]) -> None:
        for name in (part.id for part in ast.walk(target) if isinstance(part, ast.Name)):
            if name != "self" and (types or name not in self._locals):
                self._locals[name] = types

    def _returned(self, func: ast.expr) -> list[Class]:
        match func:
            case ast.Name(id=name):
                made = self._source.members(name, near=self._module)
                if made:
                    return made
                node, near = self._function(name)
                return _declared(self._source, near, node.returns) if node is not None else []
            case ast.Attribute(value=inner, attr=attr):
                found: list[Class] = []
                for holder in self.of(inner):
                    written = self._source.method(holder, attr)
                    if written is not None:
                        owner, method = written
                        found += _declared(self._source, owner.module, method.returns)
                return found
        return []

    def _function(self, name: str) -> tuple[ast.FunctionDef | None, Module]:
        if name in self._module.functions:
            return self._module.functions[name], self._module
        origin, member = self._module.imports.get(name, ("", None))
        there = self._source.module(origin)
        if there is not None and member in there.functions:
            return there.functions[member], there
        return None, self._module

    def _member(self, holder: Class, attr: str) -> list[Class]:
        """A field's declared type; where only the constructor says it, the parameter's that is assigned to it."""
        found = (self._own_member(one, attr) for one in self._source.lineage(holder))
        return next((types for types in found if types), [])

    def _own_member(self, holder: Class, attr: str) -> list[Class]:
        for node in holder.node.body:
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id == attr:
                return _declared(self._source, holder.module, node.annotation)
        method = holder.own_method(attr)
        if method is not None:  # a property
            return _declared(self._source, holder.module, method.returns)
        init = holder.own_method("__init__")
        if init is None:
            return []
        for assigned in ast.walk(init):
            match assigned:
                case ast.Assign(targets=[ast.Attribute(attr=name)], value=value) if name == attr:
                    return self._source.types(init, holder.module, holder).of(value)
        return []

    def _declared(self, annotation: ast.expr | None) -> list[Class]:
        return _declared(self._source, self._module, annotation)


def _declared(source: ParsedSource, module: Module, annotation: ast.expr | None) -> list[Class]:
    """Every class of the service that an annotation names, whatever container it stands in."""
    if annotation is None:
        return []
    names = [part.id for part in ast.walk(annotation) if isinstance(part, ast.Name)]
    return [found for name in names for found in source.members(name, near=module)]


def _client_names(call: ast.Call) -> Iterator[str]:
    """The services in `clients("…")` and `self.clients("…")` among the arguments of a constructor call."""
    for argument in [*call.args, *(keyword.value for keyword in call.keywords)]:
        for part in ast.walk(argument):
            match part:
                case ast.Call(
                    func=ast.Name(id="clients") | ast.Attribute(attr="clients"), args=[ast.Constant(value=name)]
                ):
                    yield str(name)


def _parse(root: Path) -> Iterator[tuple[str, Module]]:
    files = [root / "app.py", *sorted((root / "chalicelib").rglob("*.py")), *sorted((root / "rekindle").rglob("*.py"))]
    for path in files:
        dotted = path.relative_to(root).with_suffix("").as_posix().replace("/", ".").removesuffix(".__init__")
        tree = ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
        yield (
            dotted,
            Module(
                name=dotted,
                functions={node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)},
                classes={node.name: node for node in tree.body if isinstance(node, ast.ClassDef)},
                constants=dict(_constants(tree)),
                imports=dict(_imports(tree)),
            ),
        )


def _constants(tree: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    for node in tree.body:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                yield name, value
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                yield name, value


def _imports(tree: ast.Module) -> Iterator[tuple[str, tuple[str, str | None]]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                yield alias.asname or alias.name, (node.module, alias.name)
        elif isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.asname or alias.name.split(".")[0], (alias.name, None)
