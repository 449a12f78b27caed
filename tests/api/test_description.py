"""The OpenAPI document, the table of operations and the routes of app.py are one and the same."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from chalice.config import Config
from chalice.local import LocalGateway
from jsonschema import Draft202012Validator
from openapi_spec_validator import validate

import app as app_module
from app import app
from chalicelib.api.fields import read_body
from chalicelib.api.openapi import PROBLEMS
from chalicelib.api.operation import PREFIX
from chalicelib.api.operations.routes import BY_NAME, OPERATIONS, answers, description
from chalicelib.api.problems import TITLES, ApiResponse, from_error, ok
from chalicelib.bootstrap import install, operations
from chalicelib.domain.model import errors
from rekindle.client import api as client

HOOKS = "/hooks/"  # other people's: not signed, described in docs/slack.md and docs/notifications.md
COMPONENTS = {**PROBLEMS, **answers()}
DOCS = Path(__file__).resolve().parents[2] / "docs" / "reference" / "api.md"


def test_the_document_is_valid_openapi_3_1() -> None:
    made = description(base="/api/v1")
    validate(made)
    assert made["openapi"].startswith("3.1")
    assert made["servers"] == [{"url": "/api/v1"}]
    json.dumps(made, allow_nan=False)


def test_every_schema_is_valid_json_schema() -> None:
    for schema in COMPONENTS.values():
        Draft202012Validator.check_schema(schema)


def test_the_routes_of_the_app_are_the_operations_of_the_table() -> None:
    routes = {
        (method, path, entry.view_name)
        for path, methods in app.routes.items()
        for method, entry in methods.items()
        if not path.startswith(HOOKS)
    }
    assert routes == {(operation.method, operation.address, operation.name) for operation in OPERATIONS}


class Called:
    """Stands for the whole service: notes which operation was called, and with which names."""

    def __init__(self) -> None:
        self.api = self
        self.clients = SimpleNamespace(deadline=SimpleNamespace(during=lambda _context: nullcontext()))
        self.seen: list[tuple[str, dict[str, str], bytes]] = []

    def answer(self, operation: str, names: dict[str, str], _event: Any, raw: bytes) -> ApiResponse:
        self.seen.append((operation, names, raw))
        return ok({"operation": operation})


def test_every_route_runs_its_own_operation_with_the_names_in_its_path_and_the_body() -> None:
    called: Any = Called()
    install(called)
    try:
        gateway = LocalGateway(app, Config())
        for operation in OPERATIONS:
            names = {name: f"{name}-1" for name in operation.names}
            body = b"" if operation.method == "GET" else b'{"a": 1}'
            headers = {"Content-Type": "application/json"} if body else {}
            answer = gateway.handle_request(operation.method, operation.address.format(**names), headers, body)
            assert (answer["statusCode"], json.loads(answer["body"])) == (200, {"operation": operation.name})
            assert called.seen.pop() == (operation.name, names, body)
    finally:
        install(None)


def test_a_function_that_is_not_the_apis_registers_no_operation(monkeypatch: pytest.MonkeyPatch) -> None:
    for handler, count in (("app.app", len(OPERATIONS)), ("app.sweep", 0)):
        monkeypatch.setenv("_HANDLER", handler)
        assert len(operations()) == count


def test_the_command_line_calls_the_version_that_the_service_answers() -> None:
    assert client.VERSION == PREFIX


def test_no_route_is_public() -> None:
    for path, methods in app.routes.items():
        if not path.startswith(HOOKS):
            assert all(entry.authorizer is app_module.SIGNED for entry in methods.values()), path


def test_every_reference_leads_somewhere_and_every_schema_is_used() -> None:
    used = set(re.findall(r"#/components/schemas/(\w+)", json.dumps(description())))
    assert used <= set(COMPONENTS)
    assert set(COMPONENTS) - used == set()


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda one: one.name)
def test_an_example_fits_its_own_schema(operation: Any) -> None:
    if operation.forms and operation.example is not None:
        read_body(operation.body_form(operation.example), dict(operation.example))


def _all_errors(kind: type[Exception]) -> Iterator[type[Exception]]:
    yield kind
    for below in kind.__subclasses__():
        if below.__module__ == errors.__name__:
            yield from _all_errors(below)


def _made(kind: type[Exception]) -> errors.RecoveryError:
    for arguments in (("x",), ("x", "y")):
        try:
            return kind(*arguments)  # type: ignore[return-value]
        except TypeError:
            continue
    return errors.Outdated("x", present=1)


def test_every_error_of_the_domain_has_an_answer_with_a_documented_status() -> None:
    statuses = {kind.__name__: from_error(_made(kind)).status for kind in _all_errors(errors.RecoveryError)}
    assert set(statuses.values()) <= set(TITLES)
    assert [name for name, status in statuses.items() if status == 500] == ["RecoveryError"]


def test_the_page_of_the_api_names_every_operation() -> None:
    text = DOCS.read_text(encoding="utf-8")
    for operation in BY_NAME.values():
        assert f"`{operation.method} {operation.path}`" in text, operation.name
