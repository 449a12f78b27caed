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
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Final

from botocore import xform_name
from botocore.session import get_session

from infra.declared import NOTHING, ROOT, Class, Module, ParsedSource, Types, parts_of
from infra.functions import FUNCTIONS, Trigger
from infra.options import no_options

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


class Source(ParsedSource):
    """The parsed source of the service, followed from an entry point."""

    def of_function(self, name: str, *, module: str = "app") -> Reach:
        """What a top-level function of app.py (or another module) reaches. Raises KeyError when there is none."""
        start = self._modules[module]
        walk = _Walk(self)
        walk.follow(start.functions[name], start, None, frozenset())
        return walk.reach

    def of_class(self, found: Class) -> Reach:
        """What all methods of one class reach, with the clients that bootstrap hands to it."""
        walk = _Walk(self)
        for method in self.methods_of(found):
            walk.enter(found, method, self.services_of(found, frozenset()))
        return walk.reach


class _Walk:
    """One walk from an entry point; every function is visited once per set of clients."""

    def __init__(self, source: Source) -> None:
        self.reach = Reach()
        self._source = source
        self._seen: set[tuple[int, frozenset[str]]] = set()

    def enter(self, found: Class, name: str, services: frozenset[str]) -> None:
        """A method of a declared type is mentioned: go wherever that may lead."""
        for real in self._source.behind(found):
            written = self._source.method(real, name)
            if written is not None:
                owner, method = written
                self.follow(method, owner.module, owner, self._source.services_of(real, services))

    def follow(self, node: ast.AST, module: Module, owner: Class | None, services: frozenset[str]) -> None:
        """Visit a function (or a constant's value) and everything it mentions."""
        if (id(node), services) in self._seen or module.name.startswith(_PURE):
            return
        self._seen.add((id(node), services))
        types = self._source.types(node, module, owner)
        for part in parts_of(node):
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

    def _name(self, name: str, types: Types, module: Module, services: frozenset[str]) -> None:
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
                self._name(member, Types(self._source, there, None, NOTHING), there, services)
        for found in self._source.members(name, near=module):
            for made in ("__init__", "__post_init__"):
                self.enter(found, made, services)

    def _attribute(self, part: ast.Attribute, types: Types, module: Module, services: frozenset[str]) -> None:
        if isinstance(part.value, ast.Name) and not types.is_local(part.value.id):
            origin, member = module.imports.get(part.value.id, ("", None))
            there = self._source.module(f"{origin}.{member}" if member else origin)
            if there is not None:
                self._name(part.attr, Types(self._source, there, None, NOTHING), there, services)
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
    no_options("infra.reach", __doc__)
    sys.exit(main())
