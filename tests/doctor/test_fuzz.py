"""Whatever a file holds, the command ends by its own rule: 1 where there is an error, else 0; never a crash."""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from botocore.exceptions import ClientError
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rekindle.cli.tools.doctor import register
from rekindle.doctor.aws.account import Account
from rekindle.doctor.base.checks import CHECKS
from rekindle.doctor.examine import ExamineInputs, examine
from tests.doctor.given import SCRIPT, continuous, legacy, provisioning
from tests.sizes import examples

SEVERITIES = {"error", "warning", "unknown"}

SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=12,
)


def paths(value: Any, at: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    found = [at] if at else []
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        found += paths(inner, (*at, key))
    return found


@st.composite
def spoiled(draw: st.DrawFn, base: Any) -> Any:
    """A right file with one to three places replaced, dropped, doubled or renamed."""
    wire = json.loads(json.dumps(base))
    for _ in range(draw(st.integers(1, 3))):
        every = paths(wire)
        if not every:
            break
        path = draw(st.sampled_from(every))
        where = wire
        for step in path[:-1]:
            where = where[step]
        match draw(st.sampled_from(["replace", "drop", "double", "rename"])):
            case "replace":
                where[path[-1]] = draw(JSON)
            case "drop":
                del where[path[-1]]
            case "double" if isinstance(where, list):
                where.append(where[path[-1]])
            case "rename" if isinstance(where, dict):
                where[draw(st.text(max_size=8))] = where.pop(path[-1])
            case _:
                pass
    return wire


PARSER = argparse.ArgumentParser()
register(PARSER.add_subparsers())


def run(**files: bytes) -> None:
    """The rule, for any files."""
    with tempfile.TemporaryDirectory() as folder:
        argv = ["doctor", "cluster", "--offline", "--json"]
        for option, content in files.items():
            name = Path(folder) / option
            name.write_bytes(content)
            argv += [f"--{option}", str(name)]
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            args = PARSER.parse_args(argv)
            code = args.run(args)
    findings = [json.loads(line) for line in out.getvalue().splitlines()]
    for one in findings:
        assert set(one) == {"check", "severity", "message", "path"}
        assert one["check"] in CHECKS
        assert one["severity"] in SEVERITIES
        assert one["path"]
        assert 0 < len(one["message"]) <= 600
    assert code == (1 if any(finding["severity"] == "error" for finding in findings) else 0)
    assert err.getvalue() == ""


def dumped(value: Any) -> bytes:
    return json.dumps(value).encode()


@settings(max_examples=examples(80), suppress_health_check=[HealthCheck.too_slow])
@given(config=JSON, provisioning=JSON)
def test_any_json(config: Any, provisioning: Any) -> None:
    run(config=dumped(config), provisioning=dumped(provisioning))


@settings(max_examples=examples(120), suppress_health_check=[HealthCheck.too_slow])
@given(config=spoiled(legacy()) | spoiled(continuous()), provisioning=spoiled(provisioning()))
def test_right_files_with_something_spoiled(config: Any, provisioning: Any) -> None:
    run(config=dumped(config), provisioning=dumped(provisioning))


@settings(max_examples=examples(60))
@given(config=st.binary(max_size=200), script=st.binary(max_size=400))
def test_any_bytes(config: bytes, script: bytes) -> None:
    run(config=config, script=script)


PIECES = st.sampled_from(
    [
        *"\n;&|()<>{}\"'`$\\#= \t\0\r",
        "#SBATCH ",
        "#!/bin/bash\n",
        "--nodes=2 ",
        "--exc",
        "-N",
        "srun ",
        "torchrun ",
        "--rdzv_endpoint=localhost ",
        "--node_rank=$SLURM_NODEID ",
        "--checkpoint-dir /tmp/x ",
        "$(", "${", "$((", "${A[@]}", "A=(", "A=$A$A\n", "<<EOF\n", "EOF\n", "<(", "&>", "trap x USR1\n", "wait\n",
        "--comment=rekindle,", "--time=", "--signal=B:USR1@60 ",
    ]
)  # fmt: skip


@settings(max_examples=examples(200))
@given(pieces=st.lists(PIECES | st.text(max_size=6), max_size=60))
def test_any_text_made_of_what_shells_care_about(pieces: list[str]) -> None:
    run(script="".join(pieces).encode("utf-8", "surrogatepass"))


@settings(max_examples=examples(80))
@given(st.data())
def test_a_right_script_with_something_cut_out_or_put_in(data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(SCRIPT)))
    end = data.draw(st.integers(start, min(start + 40, len(SCRIPT))))
    put = data.draw(PIECES | st.text(max_size=5))
    run(script=(SCRIPT[:start] + put + SCRIPT[end:]).encode("utf-8", "surrogatepass"))


class Hollow:
    """A client that answers every question with nothing, or refuses it: what AWS left out must not be missed."""

    def __init__(self, code: str | None) -> None:
        self._code = code

    def __getattr__(self, operation: str) -> Any:
        def answer(**_: Any) -> dict[str, Any]:
            if self._code is not None:
                raise ClientError({"Error": {"Code": self._code}}, operation)
            return {"Body": io.BytesIO(b"")} if operation == "get_object" else {}

        return answer


@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.too_slow])
@given(
    config=spoiled(legacy()) | spoiled(continuous()),
    code=st.sampled_from([None, "AccessDenied", "NoSuchEntity", "Throttling"]),
)
def test_spoiled_files_in_an_account_that_says_nothing(config: Any, code: str | None) -> None:
    with tempfile.TemporaryDirectory() as folder:
        name = Path(folder) / "c.json"
        name.write_bytes(dumped(config))
        now = datetime(2026, 11, 20, tzinfo=UTC)
        account = Account(clients=lambda _: Hollow(code))
        for finding in examine(ExamineInputs(now=now, config=name, live="pretrain"), account):
            assert finding.check in CHECKS


def test_variables_that_grow_without_end_do_not() -> None:
    """Each doubles the one before: 2^200 characters, if anybody wrote them out."""
    lines = ["#!/bin/bash", "V0=xxxxxxxxxx"]
    lines += [f"V{index + 1}=$V{index}$V{index}" for index in range(200)]
    run(script="\n".join([*lines, "srun torchrun $V200 $V200 train.py"]).encode())


def test_brackets_that_never_close_are_read_once() -> None:
    for opening in ("$(", "${", "`", '"', "'", "A=(", "<(", "$((", "<<X\n"):
        run(script=("#!/bin/bash\nsrun " + opening * 20_000).encode())
