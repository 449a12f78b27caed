"""The walk through the code, on a service small enough to see everything."""

from __future__ import annotations

from pathlib import Path

import pytest

from infra.reach import Source

APP = """
from chalicelib.bootstrap import service

def reads():
    return service().desk.look("a")

def writes():
    return service().desk.change("a")

def dispatches():
    return service().desk.run("look")

def starts():
    return service().desk.start()
"""
PORTS = """
from typing import Protocol

class Store(Protocol):
    def load(self, name: str) -> str: ...
    def save(self, name: str) -> None: ...

class Starter(Protocol):
    def begin(self) -> None: ...
"""
DESK = """
from dataclasses import dataclass
from chalicelib.ports import Starter, Store

@dataclass
class Desk:
    store: Store
    starter: Starter

    def look(self, name: str) -> str:
        return self._checked(name)

    def change(self, name: str) -> None:
        self.store.save(name)

    def run(self, operation: str) -> object:
        return _OPERATIONS[operation](self)

    def start(self) -> None:
        starter = self.starter
        starter.begin()

    def _checked(self, name: str) -> str:
        return self.store.load(name)

_OPERATIONS = {"look": Desk.look}
"""
ADAPTERS = """
import re
from typing import Any

def call(method, **request): ...

class TableStore:
    def __init__(self, client: Any) -> None:
        self._client = client

    def load(self, name: str) -> str:
        re.search("a", name)
        for page in self._client.get_paginator("query").paginate():
            return page
        return fetch(self._client, name)

    def save(self, name: str) -> None:
        call(self._client.transact_write_items, TransactItems=[{"Put": {}}, {"ConditionCheck": {}}])

    def unused(self) -> None:
        self._client.delete_table()

class LambdaStarter:
    def __init__(self, client: Any) -> None:
        self._client = client

    def begin(self) -> None:
        self._client.invoke(FunctionName="x")

def fetch(client: Any, name: str) -> str:
    return client.get_item(Key=name)
"""
BOOTSTRAP = """
from dataclasses import dataclass
from chalicelib.aws import LambdaStarter, TableStore
from chalicelib.desk import Desk

@dataclass
class Service:
    desk: Desk

def service() -> Service:
    clients = make()
    return Service(desk=Desk(store=TableStore(clients("dynamodb")), starter=LambdaStarter(clients("lambda"))))
"""


@pytest.fixture
def source(tmp_path: Path) -> Source:
    files = {"ports": PORTS, "desk": DESK, "aws": ADAPTERS, "bootstrap": BOOTSTRAP}
    (tmp_path / "chalicelib").mkdir()
    (tmp_path / "app.py").write_text(APP, encoding="utf-8")
    for name, text in files.items():
        (tmp_path / "chalicelib" / f"{name}.py").write_text(text, encoding="utf-8")
    return Source(tmp_path)


def test_a_port_leads_to_its_adapter_and_through_helpers_and_paginators(source: Source) -> None:
    assert source.of_function("reads").actions() == {"dynamodb:Query", "dynamodb:GetItem"}


def test_a_transaction_needs_the_rights_of_its_parts(source: Source) -> None:
    assert source.of_function("writes").actions() == {"dynamodb:PutItem", "dynamodb:ConditionCheckItem"}


def test_a_table_of_methods_counts_as_calling_them(source: Source) -> None:
    assert source.of_function("dispatches").actions() == {"dynamodb:Query", "dynamodb:GetItem"}


def test_a_client_belongs_to_the_class_that_was_given_it(source: Source) -> None:
    assert source.of_function("starts").actions() == {"lambda:InvokeFunction"}


def test_a_method_that_nobody_calls_needs_no_right(source: Source) -> None:
    reached = [source.of_function(name).actions() for name in ("reads", "writes", "dispatches", "starts")]
    assert not [action for actions in reached for action in actions if "DeleteTable" in action]


def test_a_port_in_unknown_hands_is_told(source: Source, tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text("def hides(anything):\n    return anything.begin()\n", encoding="utf-8")
    assert Source(tmp_path).of_function("hides").unsettled == {"app: anything.begin"}
