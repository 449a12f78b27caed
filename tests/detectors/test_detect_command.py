"""`rekindle detect`: its objects, its table, and one clear error for each broken file."""

from __future__ import annotations

import io
import json
import math
import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from rekindle.cli.main import main
from rekindle.cli.tools.curves import parse
from rekindle.cli.tools.plot import BAD, CURVE, Mark, draw
from rekindle.detectors.points import Point, Trouble
from tests.detectors.curves import falling, lifted


@pytest.fixture
def curve(tmp_path: Path) -> Path:
    losses = [f"{loss:.6f}" for loss in lifted(falling(300), 200, lambda i: 4.0 * math.exp(-i / 5))]
    losses[280:] = ["NaN"] * 20
    losses[50] = ""
    path = tmp_path / "run.csv"
    path.write_text("step,loss,grad_norm\n" + "".join(f"{i * 2},{loss},1.0\n" for i, loss in enumerate(losses)))
    return path


def test_json_gives_one_object_per_alarm(curve: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["detect", str(curve), "--json"]) == 0
    alarms = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(a["row"], a["step"], a["kind"], a["severity"]) for a in alarms] == [
        (201, 402, "loss_spike", "act"),
        (280, 560, "non_finite", "act"),
    ]
    assert all(set(a) == {"row", "step", "kind", "severity", "evidence"} for a in alarms)
    assert alarms[0]["evidence"]["score"] > alarms[0]["evidence"]["threshold"]
    assert alarms[1]["evidence"]["loss"] == "nan"


def test_what_is_said_of_a_row_does_not_depend_on_later_rows(curve: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["detect", str(curve), "--json"])
    whole = capsys.readouterr().out.splitlines()
    lines = curve.read_text().splitlines(keepends=True)
    curve.write_text("".join(lines[:204]))  # the header and rows 0 to 202
    main(["detect", str(curve), "--json"])
    assert capsys.readouterr().out.splitlines() == whole[:1]


def test_the_table_tells_the_same(curve: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["detect", str(curve)]) == 0
    out = capsys.readouterr().out
    assert "loss_spike" in out
    assert "non_finite" in out
    assert out.endswith("2 alarms in 300 rows\n")


def test_standard_input_is_read(
    curve: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(curve.read_text()))
    assert main(["detect", "-", "--json"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2


@pytest.mark.parametrize("content", [b"\xef\xbb\xbfstep,loss\r1,2\r2,nan\r", b"step,loss\n1,\xff\n"])
def test_standard_input_is_read_as_a_file_is(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "run.csv"
    path.write_bytes(content)
    command = [sys.executable, "-m", "rekindle.cli.main", "detect", "--json"]
    named = subprocess.run([*command, str(path)], capture_output=True)
    piped = subprocess.run([*command, "-"], input=content, capture_output=True, env={**os.environ, "LC_ALL": "C"})
    assert (piped.returncode, piped.stdout) == (named.returncode, named.stdout)
    assert piped.stderr == named.stderr.replace(bytes(path), b"standard input")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is empty"),
        ("\n\n", "is empty"),
        ("step,loss\n", "no rows"),
        ("step,lost\n1,2\n", "column 'loss' is missing"),
        ("loss\n2\n", "column 'step' is missing"),
        ("step,loss\n1,2\n2,high\n", "row 1, column 'loss': 'high' is not a number"),
        ("step,loss\n1,2\n2,1_0\n", "row 1, column 'loss': '1_0' is not a number"),
        ("step,loss,seconds\n1,2,x\n", "row 0, column 'seconds'"),
        ("step,loss\n,2\n", "row 0, column 'step': '' is not a step"),
        ("step,loss\nnan,2\n", "row 0, column 'step': 'nan' is not a step"),
        ("step,loss\n1.5,2\n", "row 0, column 'step': '1.5' is not a step"),
        ("step,loss\n1e400,2\n", "is not a step"),
        ("step,loss\n1,2\n2\n", "row 1: 1 cells, where the header has 2"),
        ("step,loss\n1,2,3\n", "row 0: 3 cells"),
        ("step,loss,loss\n1,2,3\n", "'loss' is there twice"),
        ("step,loss,eval_since_prev\n1,2,maybe\n", "column 'eval_since_prev': 'maybe' is not 0 or 1"),
        ('step,loss\n1,"2\n', "row 0: cannot be read as CSV"),
        ('step,"loss\n', "header: cannot be read as CSV"),
        ("step,loss\n1,\x1b[31m\n", "'\\x1b[31m' is not a number"),
    ],
)
def test_a_broken_file_gets_one_clear_error(
    text: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "broken.csv"
    path.write_text(text)
    assert main(["detect", str(path), "--json"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert len(err.splitlines()) == 1
    assert "broken.csv" in err
    assert said in err


@pytest.mark.parametrize(
    "content", [b"step,loss\n1,\xff\n", b"step,loss\n1,2\x00\n", b"step,loss\n1," + b"9" * 200_000]
)
def test_bytes_that_are_no_table_get_one_clear_error(
    content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "broken.csv"
    path.write_bytes(content)
    assert main(["detect", str(path)]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_a_file_that_is_not_there_or_is_a_folder_is_said_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path in (tmp_path / "none.csv", tmp_path):
        assert main(["detect", str(path)]) == 2
        assert "cannot be read" in capsys.readouterr().err


def test_every_spelling_of_a_value_that_is_no_number_is_understood() -> None:
    text = "step,loss\r\n1,nan\r\n2,NaN\r\n3,inf\r\n4,-inf\r\n5,Infinity\r\n6,\r\n\r\n7, 1.5 \r\n"
    points = list(parse(io.StringIO(text, newline=""), "a file"))
    assert [str(point.loss) for point in points] == ["nan", "nan", "inf", "-inf", "inf", "None", "1.5"]


def test_a_byte_order_mark_and_further_columns_are_no_trouble(tmp_path: Path) -> None:
    text = "\ufefflr, step ,loss\n0.1,1,2\n"
    assert [point.step for point in parse(io.StringIO(text), "a file")] == [1]


def _shapes(svg: str) -> list[ElementTree.Element]:
    """Every shape of a picture that is whole and has its size."""
    picture = ElementTree.fromstring(svg)  # noqa: S314  our own
    assert (picture.get("width"), picture.get("height")) == ("1280", "640")
    shapes = list(picture.iter())
    assert not [shape for shape in shapes if "nan" in str(shape.attrib) or "inf" in str(shape.attrib)]
    return shapes


@pytest.mark.parametrize(
    "losses",
    [
        [1.0],
        [None, None],
        [math.nan, math.inf, -math.inf],
        [0.0, 0.0],
        [-5.0, 5.0, -1e308, 1e308],
        [5e-324, 1e300, 1.0],
        [1.0, 1.0 + 1e-15],
    ],
)
def test_every_curve_can_be_drawn(losses: list[float | None]) -> None:
    points = [Point(step=row, loss=loss) for row, loss in enumerate(losses)]
    _shapes(draw(points, [Mark(0, Trouble.LOSS_SPIKE)], "a \u2603 curve " * 20))


def test_a_lone_value_and_a_value_that_is_not_finite_can_be_seen() -> None:
    alone = [Point(step=row, loss=loss) for row, loss in enumerate([math.nan, None, 2.0, None])]
    fills = [shape.get("fill") for shape in _shapes(draw(alone, [], "alone"))]
    assert (fills.count(CURVE), fills.count(BAD)) == (1, 1)
    empty = [Point(step=row, loss=None) for row in range(4)]
    assert not {CURVE, BAD} & {shape.get("fill") for shape in _shapes(draw(empty, [], "empty"))}


def test_a_plot_that_cannot_be_written_is_said_so(
    curve: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["detect", str(curve), "--plot", str(tmp_path / "none" / "run.svg")]) == 1
    assert "cannot be written" in capsys.readouterr().err


def test_watch_tells_also_what_is_worth_a_look_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bump = lifted(falling(400, noise=0.01), 200, lambda i: 0.12 if i < 6 else 0.0)
    losses = lifted(bump, 300, lambda i: 4.0 * math.exp(-i / 5))
    path = tmp_path / "run.csv"
    path.write_text("step,loss\n" + "".join(f"{i},{loss}\n" for i, loss in enumerate(losses)))
    assert main(["detect", str(path), "--json"]) == 0
    acts = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert main(["detect", str(path), "--json", "--watch"]) == 0
    both = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [told for told in both if told["severity"] == "act"] == acts
    assert [told["severity"] for told in both] == ["watch", "act"]
    assert main(["detect", str(path), "--watch"]) == 0
    assert capsys.readouterr().out.endswith("1 alarm and 1 watch in 400 rows\n")


def test_a_kind_of_loss_that_is_declared_is_only_watched(curve: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["detect", str(curve), "--json", "--loss-kind", "surrogate"]) == 0
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [event["kind"] for event in told] == ["non_finite"]
