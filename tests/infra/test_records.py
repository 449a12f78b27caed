"""The methods of records come compiled with the bundle: no cold start compiles what was compiled at packing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import MAGIC_NUMBER
from pathlib import Path

import pytest

from chalicelib import records

ROOT = Path(__file__).parents[2]
# Python tells of every text that it compiles (sys.addaudithook), whoever asks for it.
COUNT = """
import json, sys
texts = []
def heard(event, args):
    if event == "compile" and args[1] == "<string>" and args[0] is not None:
        texts.append(args[0] if isinstance(args[0], str) else bytes(args[0]).decode())
sys.addaudithook(heard)
from pathlib import Path
from chalicelib import records
used = records.use(Path(sys.argv[1]))
import app
from chalicelib.domain.model.signal import Signal, SignalKind, SignalSource
from datetime import datetime, UTC
one = Signal(kind=SignalKind.STALL, source=SignalSource.MONITOR, occurred_at=datetime(2026, 1, 1, tzinfo=UTC),
             dedupe_key="k", summary="s")
try:
    one.summary = "changed"
    frozen = False
except AttributeError:
    frozen = True
methods = [text for text in texts if text.startswith("def __create_fn__")]
print(json.dumps([used, len(methods), repr(one), frozen, str(Signal.__init__.__annotations__)]))
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("records") / "records.bin"
    command = [sys.executable, "-P", str(ROOT / "infra" / "records.py"), str(ROOT), str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return out


def _start(path: Path) -> tuple[bool, int, list[object]]:
    environ = {f"REKINDLE_{one}": "x" for one in ("TABLE", "BUS", "BUCKET", "QUARANTINE_URL", "RECOVER_FUNCTION")}
    environ |= {"AWS_LAMBDA_FUNCTION_NAME": "x", "_HANDLER": "app.monitor_event", "AWS_REGION": "us-west-2"}
    environ |= {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x", "PATH": os.environ["PATH"]}
    command = [sys.executable, "-c", COUNT, str(path)]
    done = subprocess.run(command, env=environ, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    used, count, *same = json.loads(done.stdout)
    return used, count, same


def test_a_function_compiles_no_methods_of_records_and_its_records_are_the_same(made: Path, tmp_path: Path) -> None:
    assert _start(made)[:2] == (True, 0)
    without = _start(tmp_path / "none")
    assert without[0] is False
    assert without[1] > 100
    assert _start(made)[2] == without[2]


def test_a_file_of_another_python_is_not_used_and_what_it_lacks_is_compiled(made: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.bin"
    other.write_bytes(b"\0\0\0\0" + made.read_bytes()[len(MAGIC_NUMBER) :])
    assert _start(other)[0] is False
    empty = tmp_path / "empty.bin"
    empty.write_bytes(records.written({}))
    used, count, same = _start(empty)
    assert (used, count > 100, same) == (True, True, _start(made)[2])


def test_the_same_codes_are_the_same_bytes_in_any_order() -> None:
    codes = {records.digest(text): records.compiled(text) for text in ("a = 1", "b = 'two'")}
    assert records.written(codes) == records.written(dict(reversed(codes.items())))
