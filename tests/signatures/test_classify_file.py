"""`rekindle classify FILE`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rekindle.cli.main import main

LINES = b"epoch 1\nNVRM: Xid (PCI:0000:10:1c): 79, pid=0, GPU has fallen off the bus.\n\xff\xfe\n"


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_a_file_is_classified_as_standard_input_is(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...]
) -> None:
    log = tmp_path / "train.log"
    log.write_bytes(LINES)
    assert main(["classify", str(log), *options]) == 0
    of_file = capfd.readouterr().out
    with log.open() as stream:
        monkeypatch.setattr("sys.stdin", stream)
        assert main(["classify", *options]) == 0
    assert capfd.readouterr().out == of_file
    assert "xid" in of_file.lower()


@pytest.mark.parametrize("name", ["none.log", ".", "a\0b"])
def test_a_log_that_cannot_be_read_is_named_and_exit_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["classify", name]) == 2
    ended = capsys.readouterr()
    assert (ended.out, ended.err.count("\n")) == ("", 1)
    assert "cannot be read" in ended.err
    assert os.listdir(tmp_path) == []
