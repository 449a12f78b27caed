"""The command on files of a test's own, in a shell that holds no credentials."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from rekindle.cli.main import main


@dataclass(frozen=True)
class Said:
    """How a run ended. `findings` are the objects of --json."""

    code: int
    findings: list[dict[str, str]]
    err: str = ""

    def of(self, check: str, severity: str | None = None) -> list[dict[str, str]]:
        return [
            finding
            for finding in self.findings
            if finding["check"] == check and severity in (None, finding["severity"])
        ]

    @property
    def errors(self) -> list[dict[str, str]]:
        return [finding for finding in self.findings if finding["severity"] == "error"]


Doctor = Callable[..., Said]


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
def doctor(capsys: pytest.CaptureFixture[str]) -> Doctor:
    """`rekindle doctor cluster --json` on what is given: texts, bytes or objects, each put into its file."""

    def call(
        *argv: str,
        config: Any = None,
        provisioning: Any = None,
        script: Any = None,
    ) -> Said:
        given = list(argv)
        for option, name, content in (
            ("--config", "create_cluster.json", config),
            ("--provisioning", "provisioning_parameters.json", provisioning),
            ("--script", "job.sbatch", script),
        ):
            if content is not None:
                text = content if isinstance(content, str | bytes) else json.dumps(content)
                Path(name).write_bytes(text if isinstance(text, bytes) else text.encode("utf-8", "surrogateescape"))
                given += [option, name]
        try:
            code = main(["doctor", "cluster", "--json", *given])
        except SystemExit as end:
            code = int(end.code or 0)
        said = capsys.readouterr()
        return Said(code, [json.loads(line) for line in said.out.splitlines()], said.err)

    return call
