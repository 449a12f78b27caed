"""Which AWS actions each function can reach, read from the source: `python -m infra.reach` prints them.

From a function in app.py every reference is followed through the types that the code declares: fields and parameters,
return annotations, constructors; a port leads to what bootstrap puts there. Where a boto3 client is called in a class
that bootstrap gave a client, botocore's own model says which operation that is. Nothing is executed.

The result errs to the side of more: a method that is mentioned counts as called, and both sides of every `if` do.
What it cannot see would be a call through a name made at run time; the adapters have none, and `Reach.unsettled` lists
every mention of a port's method on an object whose type stayed unknown, so that a test can insist that there is none.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Final

from botocore import xform_name
from botocore.session import get_session

from infra.functions import FUNCTIONS, Trigger

ROOT: Final = Path(__file__).resolve().parents[1]
# The IAM action of an operation is its own name, but for these. Source: service authorization reference.
_IAM_NAME: Final[Mapping[str, tuple[str, ...]]] = {
    "lambda:Invoke": ("lambda:InvokeFunction",),
    "s3:ListObjectsV2": ("s3:ListBucket",),
    "s3:ListObjects": ("s3:ListBucket",),
    "s3:HeadObject": ("s3:GetObject", "s3:ListBucket", "kms:Decrypt"),
    "s3:HeadBucket": ("s3:ListBucket",),
    "s3:DeleteObjects": ("s3:DeleteObject",),
    "dynamodb:TransactWriteItems": (),  # its parts are authorised one by one: _TRANSACTION
    "dynamodb:TransactGetItems": ("dynamodb:GetItem",),
    # A clone hands over tags and an execution role; volumes under a key of the account's own need a grant on it.
    # Source: SageMaker developer guide, "SageMaker API Permissions: Actions, Permissions, and Resources Reference".
    "sagemaker:CreateTrainingJob": (
        "sagemaker:CreateTrainingJob",
        "sagemaker:AddTags",
        "iam:PassRole",
        "kms:CreateGrant",
    ),
    # An alarm of ours is tagged as it is made.
    "cloudwatch:PutMetricAlarm": ("cloudwatch:PutMetricAlarm", "cloudwatch:TagResource"),
    # Without the permission to list, S3 answers 403 for a key that does not exist, which would read as "not allowed".
    # An object that is encrypted with a key of the account's own is read and written with that key's permission.
    # Source: S3 user guide, "Using server-side encryption with AWS KMS keys", permissions.
    "s3:GetObject": ("s3:GetObject", "s3:ListBucket", "kms:Decrypt"),
    "s3:PutObject": ("s3:PutObject", "kms:GenerateDataKey"),
}
_TRANSACTION: Final[Mapping[str, str]] = {
    "Put": "dynamodb:PutItem",
    "Update": "dynamodb:UpdateItem",
    "Delete": "dynamodb:DeleteItem",
    "ConditionCheck": "dynamodb:ConditionCheckItem",
}
_IAM_SERVICE: Final[Mapping[str, str]] = {"lambda": "lambda", "cloudwatch": "cloudwatch", "logs": "logs"}
# No way leads from here to AWS: import-linter's contract "pure" keeps clients and ports out of these.
_PURE: Final = ("chalicelib.domain", "chalicelib.ingest", "chalicelib.config", "rekindle")
# Methods that lead to an operation named in their argument.
_BY_NAME: Final = frozenset({"get_paginator", "get_waiter"})
_BOOTSTRAP: Final = "chalicelib.bootstrap"  # a module or a package
_NOTHING: Final = ast.Module(body=[], type_ignores=[])
# Names that objects of the standard library have too: an unknown receiver of these is no finding.
_COMMON: Final = frozenset(dir(dict) + dir(list) + dir(str) + dir(set) + dir(bytes)) | {
    "load",
    "now",
    "open",
    "put",
    "read",
}
# Methods of a port that fields of documents and Signals have for names: an unknown object's is a field.
_FIELDS: Final = frozenset({"attempt", "checkpoints", "cluster", "clusters", "nodes", "of", "start"})


@dataclass(frozen=True)
class _Module:
    name: str
    functions: dict[str, ast.FunctionDef]
    classes: dict[str, ast.ClassDef]
    constants: dict[str, ast.expr]
    imports: dict[str, tuple[str, str | None]]  # local name -> (module, member or None for the module itself)


def _is_in(module: str, package: str) -> bool:
    return f"{module}.".startswith(f"{package}.")


@cache
def _parts(node: ast.AST) -> tuple[ast.AST, ...]:
    """The node and all below it; read once, as every entry point comes by."""
    return tuple(ast.walk(node))


@cache
def _methods(node: ast.ClassDef) -> Mapping[str, ast.FunctionDef]:
    """The first method of each name."""
    return {part.name: part for part in reversed(node.body) if isinstance(part, ast.FunctionDef)}


@dataclass(frozen=True)
class _Class:
    module: _Module
    node: ast.ClassDef

    @property
    def name(self) -> str:
        return self.node.name

    def own_method(self, name: str) -> ast.FunctionDef | None:
        """A method that the class itself writes down; Source.method looks in its base classes too."""
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


@dataclass
class Reach:
    """What one entry point reaches."""

    operations: set[tuple[str, str]] = field(default_factory=set)  # (service, operation)
    transaction_parts: set[str] = field(default_factory=set)
    unsettled: set[str] = field(default_factory=set)

    def actions(self) -> frozenset[str]:
        """The IAM actions that these operations need."""
        found: set[str] = set()
        for service, operation in self.operations:
            own = f"{_IAM_SERVICE.get(service, service)}:{operation}"
            found.update(_IAM_NAME.get(own, (own,)))
            if operation == "TransactWriteItems":
                found.update(self.transaction_parts)
        return frozenset(found)


class Source:
    """The parsed source of the service."""

    def __init__(self, root: Path = ROOT) -> None:
        self._modules = dict(_parse(root))
        self._lineages: dict[int, list[_Class]] = {}
        self._made, self._services = self._wiring()
        self._types: dict[int, _Types] = {}
        self._fitting: dict[int, list[_Class]] = {}
        self.port_methods = self._port_methods()

    def types(self, node: ast.AST, module: _Module, owner: _Class | None) -> _Types:
        """The declared types inside one function; read once, as every entry point comes by."""
        if id(node) not in self._types:
            self._types[id(node)] = _Types(self, module, owner, node)
        return self._types[id(node)]

    def of_function(self, name: str, *, module: str = "app") -> Reach:
        """What a top-level function of app.py (or another module) reaches. Raises KeyError when there is none."""
        start = self._modules[module]
        walk = _Walk(self)
        walk.follow(start.functions[name], start, None, frozenset())
        return walk.reach

    def of_class(self, found: _Class) -> Reach:
        """What all methods of one class reach, with the clients that bootstrap hands to it."""
        walk = _Walk(self)
        for method in self.methods_of(found):
            walk.enter(found, method, self.services_of(found, frozenset()))
        return walk.reach

    def lineage(self, found: _Class) -> list[_Class]:
        """The class, then those of the service that it is derived from, nearest first."""
        if id(found.node) not in self._lineages:
            named = [base.id for base in found.node.bases if isinstance(base, ast.Name)]
            bases = [
                one for name in named for base in self.members(name, near=found.module) for one in self.lineage(base)
            ]
            self._lineages[id(found.node)] = [found, *bases]
        return self._lineages[id(found.node)]

    def method(self, found: _Class, name: str) -> tuple[_Class, ast.FunctionDef] | None:
        """A method of a class with the class that writes it down."""
        written = ((one, one.own_method(name)) for one in self.lineage(found))
        return next(((one, method) for one, method in written if method is not None), None)

    def methods_of(self, found: _Class) -> frozenset[str]:
        """The names of a class's methods, inherited ones too."""
        return frozenset(name for one in self.lineage(found) for name in one.own_methods())

    def adapters(self) -> list[_Class]:
        """The classes to which bootstrap hands a client."""
        return [made for made in self._made if self._services.get(made.name)]

    def members(self, name: str, *, near: _Module) -> list[_Class]:
        """The classes a name can mean in a module: its own or the imported one."""
        if name in near.classes:
            return [_Class(near, near.classes[name])]
        if name in near.imports:
            origin, member = near.imports[name]
            there = self._modules.get(origin)
            if there is not None and member is not None:
                return self.members(member, near=there)
        return []

    def behind(self, found: _Class) -> list[_Class]:
        """What stands behind a declared type at run time: for a port, whatever bootstrap makes that fits it."""
        if not found.is_protocol:
            return [found]
        if id(found.node) not in self._fitting:
            wanted = found.own_methods() - found.property_names() - {"__call__"}  # a field may stand for a property
            self._fitting[id(found.node)] = [made for made in self._made if wanted and wanted <= self.methods_of(made)]
        return self._fitting[id(found.node)]

    def services_of(self, found: _Class, otherwise: frozenset[str]) -> frozenset[str]:
        """The AWS services whose clients bootstrap gave this class."""
        return self._services.get(found.name, otherwise)

    def module(self, name: str) -> _Module | None:
        """A module of the service by its dotted name."""
        return self._modules.get(name)

    def _port_methods(self) -> frozenset[str]:
        """Every method name of every port."""
        ports = [one for one in self._modules.values() if f"{one.name}.".startswith("chalicelib.ports.")]
        found = (_Class(one, node) for one in ports for node in one.classes.values())
        return frozenset(name for port in found if port.is_protocol for name in port.own_methods())

    def _wiring(self) -> tuple[list[_Class], dict[str, frozenset[str]]]:
        """The classes that bootstrap makes, and the services of the clients it hands to each."""
        bootstrap = [module for name, module in self._modules.items() if _is_in(name, _BOOTSTRAP)]
        made: list[_Class] = [_Class(module, node) for module in bootstrap for node in module.classes.values()]
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


class _Walk:
    """One walk from an entry point; every function is visited once per set of clients."""

    def __init__(self, source: Source) -> None:
        self.reach = Reach()
        self._source = source
        self._seen: set[tuple[int, frozenset[str]]] = set()

    def enter(self, found: _Class, name: str, services: frozenset[str]) -> None:
        """A method of a declared type is mentioned: go wherever that may lead."""
        for real in self._source.behind(found):
            written = self._source.method(real, name)
            if written is not None:
                owner, method = written
                self.follow(method, owner.module, owner, self._source.services_of(real, services))

    def follow(self, node: ast.AST, module: _Module, owner: _Class | None, services: frozenset[str]) -> None:
        """Visit a function (or a constant's value) and everything it mentions."""
        if (id(node), services) in self._seen or module.name.startswith(_PURE):
            return
        self._seen.add((id(node), services))
        types = self._source.types(node, module, owner)
        for part in _parts(node):
            if isinstance(part, ast.Attribute):
                self._attribute(part, types, module, services)
            elif isinstance(part, ast.Name) and isinstance(part.ctx, ast.Load):
                self._name(part.id, types, module, services)
            elif isinstance(part, ast.Call) and isinstance(part.func, ast.Attribute) and part.func.attr in _BY_NAME:
                for text in (arg.value for arg in part.args if isinstance(arg, ast.Constant)):
                    self._operation(str(text), services)
            elif isinstance(part, ast.Dict):
                keys = {key.value for key in part.keys if isinstance(key, ast.Constant) and isinstance(key.value, str)}
                self.reach.transaction_parts.update(_TRANSACTION[key] for key in keys & _TRANSACTION.keys())

    def _name(self, name: str, types: _Types, module: _Module, services: frozenset[str]) -> None:
        if types.is_local(name):
            return
        if name in module.functions:
            self.follow(module.functions[name], module, None, services)
        elif name in module.constants:
            self.follow(module.constants[name], module, None, services)
        elif name in module.imports:
            origin, member = module.imports[name]
            there = self._source.module(origin)
            if there is not None and member is not None:
                self._name(member, _Types(self._source, there, None, _NOTHING), there, services)
        for found in self._source.members(name, near=module):
            for made in ("__init__", "__post_init__"):
                self.enter(found, made, services)

    def _attribute(self, part: ast.Attribute, types: _Types, module: _Module, services: frozenset[str]) -> None:
        if isinstance(part.value, ast.Name) and not types.is_local(part.value.id):
            origin, member = module.imports.get(part.value.id, ("", None))
            there = self._source.module(f"{origin}.{member}" if member else origin)
            if there is not None:
                self._name(part.attr, _Types(self._source, there, None, _NOTHING), there, services)
                return
            named = self._source.members(part.value.id, near=module)
            if named:
                for found in named:
                    self.enter(found, part.attr, services)
                return
            if part.value.id in module.imports or part.value.id in module.constants:
                return  # a library's or a constant's own method, such as re.search: no client stands at module level
        known = types.of(part.value)
        for found in known:
            self.enter(found, part.attr, services)
        if not known:
            self._operation(part.attr, services)
            if part.attr in self._source.port_methods - _COMMON - _FIELDS:
                self.reach.unsettled.add(f"{module.name}: {ast.unparse(part)}")

    def _operation(self, name: str, services: frozenset[str]) -> None:
        for service in services:
            operation = _operations(service).get(name)
            if operation is not None:
                self.reach.operations.add((service, operation))


class _Types:
    """The declared types of the names inside one function, as far as the service's own classes go."""

    def __init__(self, source: Source, module: _Module, owner: _Class | None, node: ast.AST) -> None:
        self._source = source
        self._module = module
        self._owner = owner
        self._locals: dict[str, list[_Class]] = {}
        for part in _parts(node):
            if isinstance(part, ast.arg):
                self._locals[part.arg] = self._declared(part.annotation)
        if owner is not None:
            self._locals["self"] = [owner]
            self._locals["cls"] = [owner]
        for _ in range(2):  # a name may be assigned from one that is assigned further up
            for part in _parts(node):
                self._learn(part)

    def is_local(self, name: str) -> bool:
        """True for parameters and names assigned here."""
        return name in self._locals

    def of(self, value: ast.expr) -> list[_Class]:
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

    def _bind(self, target: ast.expr, types: list[_Class]) -> None:
        for name in (part.id for part in ast.walk(target) if isinstance(part, ast.Name)):
            if name != "self" and (types or name not in self._locals):
                self._locals[name] = types

    def _returned(self, func: ast.expr) -> list[_Class]:
        match func:
            case ast.Name(id=name):
                made = self._source.members(name, near=self._module)
                if made:
                    return made
                node, near = self._function(name)
                return _declared(self._source, near, node.returns) if node is not None else []
            case ast.Attribute(value=inner, attr=attr):
                found: list[_Class] = []
                for holder in self.of(inner):
                    written = self._source.method(holder, attr)
                    if written is not None:
                        owner, method = written
                        found += _declared(self._source, owner.module, method.returns)
                return found
        return []

    def _function(self, name: str) -> tuple[ast.FunctionDef | None, _Module]:
        if name in self._module.functions:
            return self._module.functions[name], self._module
        origin, member = self._module.imports.get(name, ("", None))
        there = self._source.module(origin)
        if there is not None and member in there.functions:
            return there.functions[member], there
        return None, self._module

    def _member(self, holder: _Class, attr: str) -> list[_Class]:
        """A field's declared type; where only the constructor says it, the parameter's that is assigned to it."""
        found = (self._own_member(one, attr) for one in self._source.lineage(holder))
        return next((types for types in found if types), [])

    def _own_member(self, holder: _Class, attr: str) -> list[_Class]:
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

    def _declared(self, annotation: ast.expr | None) -> list[_Class]:
        return _declared(self._source, self._module, annotation)


def _declared(source: Source, module: _Module, annotation: ast.expr | None) -> list[_Class]:
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


def _parse(root: Path) -> Iterator[tuple[str, _Module]]:
    files = [root / "app.py", *sorted((root / "chalicelib").rglob("*.py")), *sorted((root / "rekindle").rglob("*.py"))]
    for path in files:
        dotted = path.relative_to(root).with_suffix("").as_posix().replace("/", ".").removesuffix(".__init__")
        tree = ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
        yield (
            dotted,
            _Module(
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


@cache
def _operations(service: str) -> Mapping[str, str]:
    """boto3's method names of a service -> its operations."""
    model = get_session().get_service_model(service)
    return {xform_name(operation): operation for operation in model.operation_names}


OPERATION: Final = "_operation"  # in app.py: makes the route of each row of the API's table


def actions_of_functions(root: Path = ROOT) -> dict[str, Reach]:
    """Each deployed function -> what it reaches. The API's function reaches what all routes together do."""
    source = Source(root)
    app = source.module("app")
    assert app is not None  # noqa: S101  for the type checker: _parse always reads app.py
    found: dict[str, Reach] = {}
    for function in FUNCTIONS:
        if function.trigger is not Trigger.HTTP:
            found[function.name] = source.of_function(function.name)
            continue
        api = Reach()
        for name, node in app.functions.items():
            is_hook = any(".route(" in ast.unparse(decorator) for decorator in node.decorator_list)
            if is_hook or name == OPERATION:
                route = source.of_function(name)
                api.operations |= route.operations
                api.transaction_parts |= route.transaction_parts
                api.unsettled |= route.unsettled
        found[function.name] = api
    return found


def main() -> int:
    """Print each function's actions, one per line."""
    for name, reach in actions_of_functions().items():
        print(name)
        for action in sorted(reach.actions()):
            print(f"  {action}")
        for mention in sorted(reach.unsettled):
            print(f"  unsettled: {mention}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
