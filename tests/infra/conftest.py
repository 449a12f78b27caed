"""The package, built once for all these tests without network, and the template that AWS would make of it."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest
from samtranslator.parser.parser import Parser
from samtranslator.translator.translator import Translator

from infra.functions import FUNCTIONS
from infra.package import ROOT, TEMPLATE, build
from tests.infra.stack_reading import CODE, DEFAULTS, REGION, Template


@pytest.fixture(scope="session")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("package")
    build(out, offline=True, root=ROOT)
    return out


@pytest.fixture(scope="session")
def template(package: Path) -> Template:
    """The packaged template, as `make package` leaves it."""
    return json.loads((package / TEMPLATE).read_text(encoding="utf-8"))


@pytest.fixture(scope="session")
def transformed(template: Template) -> Template:
    """What CloudFormation's SAM transform makes of it."""
    given = copy.deepcopy(template)
    for resource in given["Resources"].values():
        if resource["Type"] == "AWS::Serverless::Function":
            resource["Properties"]["CodeUri"] = dict(CODE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_DEFAULT_REGION", REGION)  # the translator wants one
        return Translator({}, Parser()).translate(given, parameter_values=dict(DEFAULTS))


@pytest.fixture
def aws_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Credentials that open nothing, and no trace of the developer's own."""
    for name in ("AWS_PROFILE", "AWS_REGION", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, "/nonexistent")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    monkeypatch.setenv("AWS_DEFAULT_REGION", REGION)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "function" in metafunc.fixturenames:
        metafunc.parametrize("function", FUNCTIONS, ids=[function.name for function in FUNCTIONS])
