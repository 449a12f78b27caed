"""A service to speak to, and a shell whose environment holds nothing of the developer's own."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from rekindle.cli.main import main
from tests.cli.service import FakeService, serve


@dataclass
class Ended:
    """How a command ended."""

    code: int
    out: str
    err: str


Run = Callable[..., Ended]


@pytest.fixture(autouse=True)
def _clean_shell(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in list(os.environ):
        if name.startswith(("AWS_", "REKINDLE_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "no-config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "no-credentials"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def service() -> Iterator[FakeService]:
    fake = FakeService()
    with serve(fake) as url:
        fake.url = url
        yield fake


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def call(*argv: str) -> Ended:
        try:
            code = main(list(argv))
        except SystemExit as end:  # argparse's way out
            code = int(end.code or 0)
        said = capsys.readouterr()
        return Ended(code, said.out, said.err)

    return call


@pytest.fixture
def rekindle(run: Run, service: FakeService) -> Run:
    """`rekindle` against the service."""

    def call(*argv: str) -> Ended:
        return run("--api", service.url, *argv)

    return call
