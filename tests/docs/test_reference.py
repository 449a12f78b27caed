"""docs/reference is written from the code. Stale: `python -m infra.site` writes it anew."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from chalicelib import observability
from chalicelib.api.operations.routes import OPERATIONS
from infra.functions import FUNCTIONS, INFRA
from infra.site import reference_api, reference_cli, reference_iam, reference_metrics
from infra.site.reference import PAGES
from rekindle import prometheus

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("path", sorted(PAGES))
def test_a_reference_page_is_what_the_code_says(path: str) -> None:
    assert (ROOT / path).read_text(encoding="utf-8") == PAGES[path](), "python -m infra.site writes it again"


def test_no_other_page_stands_in_the_folder() -> None:
    pages = {page.relative_to(ROOT).as_posix() for page in (ROOT / "docs" / "reference").iterdir()}
    by_hand = {"docs/reference/grafana.json"}  # held to the code by tests/infra/test_grafana.py
    assert pages == {page for page in PAGES if page.startswith("docs/reference/")} | by_hand


@pytest.mark.parametrize("columns", ["40", "250"])
def test_the_terminal_does_not_matter(monkeypatch: pytest.MonkeyPatch, columns: str) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    assert (ROOT / reference_cli.PAGE).read_text(encoding="utf-8") == reference_cli.page_text()


def test_every_operation_and_every_schema_has_a_section() -> None:
    text = reference_api.page_text()
    for operation in OPERATIONS:
        assert f"### `{operation.method} {operation.path}`\n" in text


def test_every_metric_that_the_service_sends_has_a_meaning_and_no_other() -> None:
    """Its metrics are the texts in capitals (tests/infra/test_dashboard.py)."""
    words = {value for name, value in vars(observability).items() if name.isupper() and isinstance(value, str)}
    assert set(observability.MEANINGS) == words - {observability.NAMESPACE}


def test_every_metric_that_the_monitor_sends_has_a_meaning_and_no_other() -> None:
    assert {name for name, _ in reference_metrics.sent_by_monitor()} == set(reference_metrics.MEANINGS)


def test_every_metric_of_the_prometheus_page_is_told() -> None:
    tree = ast.parse(Path(prometheus.__file__).read_text(encoding="utf-8"))
    names = {
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith("rekindle_")
    }
    told = reference_metrics.page_text()
    assert len(names) > 15
    assert [name for name in names if f"| `{name}` |" not in told] == []


def test_every_packaged_policy_is_told() -> None:
    files = {path.relative_to(INFRA).as_posix() for path in INFRA.glob("policies/*.json")}
    assert files <= reference_iam.named()
    assert all(f"## `{function.name}`\n" in reference_iam.page_text() for function in FUNCTIONS)
