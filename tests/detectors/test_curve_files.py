"""`rekindle detect` on what trainers and their tools write: one curve, in every form, gives the same alarms."""

from __future__ import annotations

import csv
import io
import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest

from rekindle.cli.main import main
from rekindle.cli.tools.columns import LOSSES, STEPS
from rekindle.cli.tools.curves import parse
from rekindle.detectors.points import Point
from tests.detectors.curves import falling, lifted

LOSS = [round(loss, 6) for loss in lifted(falling(300), 200, lambda i: 4.0 * math.exp(-i / 5))]


def _csv(header: list[str], rows: list[list[object]], delimiter: str = ",") -> str:
    text = io.StringIO()
    csv.writer(text, delimiter=delimiter, lineterminator="\n").writerows([header, *rows])
    return text.getvalue()


def _plain(step: str = "step", loss: str = "loss") -> str:
    return _csv([step, loss], [[number, value] for number, value in enumerate(LOSS)])


def _trainer_state() -> str:
    history: list[dict[str, object]] = []
    for number, value in enumerate(LOSS):
        history.append({"epoch": number / 100, "grad_norm": 1.0, "learning_rate": 1e-4, "loss": value, "step": number})
        if number % 50 == 49:
            history.append({"epoch": number / 100, "eval_loss": 9.0, "eval_runtime": 1.0, "step": number})
    history.append({"epoch": 3.0, "step": 299, "train_loss": 2.0, "train_runtime": 100.0})
    return json.dumps({"best_metric": None, "global_step": 300, "log_history": history})


FORMS: dict[str, tuple[str, str]] = {
    "plain": ("a.csv", _plain()),
    "tabs": ("a.tsv", _csv(["step", "loss"], [[number, value] for number, value in enumerate(LOSS)], "\t")),
    "trainer state": ("trainer_state.json", _trainer_state()),
    "TensorBoard CSV": (
        "run-.-tag-loss.csv",
        _csv(["Wall time", "Step", "Value"], [[1.7e9 + number, number, value] for number, value in enumerate(LOSS)]),
    ),
    "TensorBoard JSON": (
        "loss.json",
        json.dumps([[1.7e9 + number, number, value] for number, value in enumerate(LOSS)]),
    ),
    "W&B chart": (
        "wandb_export.csv",
        _csv(
            [
                "Step",
                "brave-7 - _step",
                "brave-7 - train/loss",
                "brave-7 - train/loss__MIN",
                "brave-7 - train/loss__MAX",
            ],
            [[number, number, value, value, value] for number, value in enumerate(LOSS)],
        ),
    ),
    "W&B history": (
        "history.jsonl",
        "".join(json.dumps({"_step": number, "train/loss": value}) + "\n" for number, value in enumerate(LOSS)),
    ),
    "list of objects": (
        "log.json",
        json.dumps([{"iteration": number, "lm loss": value} for number, value in enumerate(LOSS)]),
    ),
    "JSON lines without a suffix": (
        "train_log",
        "\n".join(json.dumps({"global_step": number, "loss": value}) for number, value in enumerate(LOSS)),
    ),
}


@pytest.fixture
def alarms(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., list[dict[str, object]]]:
    def read(name: str, text: str, *options: str) -> list[dict[str, object]]:
        (tmp_path / name).write_text(text)
        assert main(["detect", str(tmp_path / name), "--json", *options]) == 0
        return [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    return read


@pytest.mark.parametrize("form", sorted(FORMS))
def test_every_form_of_one_curve_gives_the_same_alarms(
    alarms: Callable[..., list[dict[str, object]]], form: str
) -> None:
    said = [(alarm["step"], alarm["kind"]) for alarm in alarms(*FORMS[form])]
    assert said == [(alarm["step"], alarm["kind"]) for alarm in alarms(*FORMS["plain"])]
    assert said[0][1] == "loss_spike"


@pytest.mark.parametrize("form", ["TensorBoard JSON", "trainer state", "plain", "tabs", "W&B history"])
def test_standard_input_is_told_by_its_first_character(form: str) -> None:
    found = list(parse(io.StringIO(FORMS[form][1]), "standard input"))
    assert [point.loss for point in found if point.loss is not None] == LOSS


@pytest.mark.parametrize("step", [name for name, _ in STEPS])
@pytest.mark.parametrize("loss", [name for name, _ in LOSSES])
def test_every_known_name_of_a_column_is_found(step: str, loss: str) -> None:
    assert [point.step for point in parse(io.StringIO(_plain(step, loss)), "a")] == list(range(300))


def test_columns_of_any_name_are_chosen_by_the_options(alarms: Callable[..., list[dict[str, object]]]) -> None:
    text = _csv(["Batch", "loss", "ce"], [[number, 1.0, value] for number, value in enumerate(LOSS)])
    assert alarms("a.csv", text, "--step-column", "Batch", "--loss-column", "ce")[0]["kind"] == "loss_spike"


def test_what_an_evaluation_logs_is_no_row_and_is_told_to_the_detectors() -> None:
    state = {"log_history": [{"step": 1, "loss": 2.0}, {"step": 1, "eval_loss": 2.5}, {"step": 2, "loss": 1.9}]}
    found = list(parse(io.StringIO(json.dumps(state)), "a", suffix=".json"))
    assert found == [Point(step=1, loss=2.0), Point(step=2, loss=1.9, is_after_evaluation=True)]


def test_entries_without_a_loss_and_lines_that_are_no_json_are_passed_over() -> None:
    state = {"log_history": [{"step": 1, "loss": 2.0}, {"test_loss": 2.5, "test_runtime": 1}, {"step": 2, "lr": 1}]}
    assert [point.loss for point in parse(io.StringIO(json.dumps(state)), "a", suffix=".json")] == [2.0]
    lines = '{"step": 1, "loss": 2.0}\nWARNING: slow\n{"step": 2, "loss": 1.5}\n{"step": 3, "lo'
    assert [point.loss for point in parse(io.StringIO(lines), "a", suffix=".jsonl")] == [2.0, 1.5]


def test_rows_that_tell_only_an_epoch_are_counted() -> None:
    text = "epoch,accuracy,loss\n0,0.1,3.0\n0,0.2,2.9\n1,0.3,2.8\n"
    assert [point.step for point in parse(io.StringIO(text), "a")] == [0, 1, 2]


def test_a_loss_that_json_writes_as_nan_is_one() -> None:
    (point,) = parse(io.StringIO('[{"step": 1, "loss": NaN}]'), "a", suffix=".json")
    assert point.loss is not None
    assert math.isnan(point.loss)


@pytest.mark.parametrize(
    ("name", "text", "options", "said"),
    [
        (
            "a.csv",
            "step,loss\n1,2\n",
            ("--loss-column", "los"),
            "--loss-column: there is no column 'los'; did you mean loss?",
        ),
        (
            "a.csv",
            "step,loss\n1,2\n",
            ("--step-column", "zz"),
            "--step-column: there is no column 'zz'; the header has: step, loss",
        ),
        (
            "a.csv",
            "Step,a - loss,b - loss\n1,2,3\n",
            (),
            "2 columns may be the loss (a - loss, b - loss): choose with --loss-column",
        ),
        (
            "a.csv",
            "batch,loss\n1,2\n",
            (),
            "the column 'step' is missing; the header has: batch, loss; choose with --step-column",
        ),
        ("a.csv", "Step,Value\nx,2\n", (), "row 0, column 'Step': 'x' is not a number"),
        ("a.json", "{", (), "looked for a table"),
        ("a.json", "3", (), "looked for a table"),
        ("a.json", "[]", (), "looked for a table"),
        ("a.json", "[[1, 2]]", (), "row 0: is not [wall time, step, value]"),
        ("a.json", "[1]", (), "row 0: is not an object"),
        ("a.json", '[{"step": 1, "loss": "x"}]', (), "row 0, column 'loss': 'x' is not a number"),
        ("a.json", '[{"step": 1, "loss": {}}]', (), "row 0, column 'loss': '{}' is not a number"),
        ("a.json", '[{"step": 1, "loss": true}]', (), "row 0, column 'loss': 'true' is not a number"),
        ("a.json", "[" * 100_000, (), "is nested too deeply"),
        ("a.json", '{"log_history": []}', (), "looked for a table"),
        ("a.json", f'[{{"step": 1, "loss": 1{"0" * 400}}}]', (), "row 0: a number is too large"),
    ],
)
def test_a_curve_that_cannot_be_read_gets_one_error_and_exit_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, text: str, options: tuple[str, ...], said: str
) -> None:
    (tmp_path / name).write_text(text)
    assert main(["detect", str(tmp_path / name), *options]) == 2
    ended = capsys.readouterr()
    assert said in ended.err
    assert (ended.out, ended.err.count("\n")) == ("", 1)


def test_event_files_need_tensorboards_own_reader(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "events.out.tfevents.17.host").write_text("\0")
    reader = "tensorboard.backend.event_processing.event_file_loader"
    monkeypatch.setitem(sys.modules, reader, None)  # as where it is not installed
    assert main(["detect", str(tmp_path / "events.out.tfevents.17.host")]) == 2
    assert "pip install tensorboard" in capsys.readouterr().err


@pytest.mark.parametrize("suffix", ["svg", "SVG"])
def test_the_plot_is_one_svg_document(tmp_path: Path, capsys: pytest.CaptureFixture[str], suffix: str) -> None:
    (tmp_path / "a<b>.csv").write_text(_plain())
    assert main(["detect", str(tmp_path / "a<b>.csv"), "--plot", str(tmp_path / f"out.{suffix}")]) == 0
    picture = ElementTree.fromstring((tmp_path / f"out.{suffix}").read_bytes())  # noqa: S314  our own
    words = [text.text for text in picture.iter("{http://www.w3.org/2000/svg}text")]
    assert "a<b>.csv" in words
    assert "1 loss spike" in words
    (curve,) = picture.iter("{http://www.w3.org/2000/svg}polyline")
    assert len(curve.get("points", "").split()) > 100
    capsys.readouterr()


@pytest.mark.parametrize("name", ["out.png", "out", "out.svg.txt", ".svg"])
def test_a_plot_of_another_suffix_is_refused_before_anything_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["detect", str(tmp_path / "none.csv"), "--plot", str(tmp_path / name)])
    assert ended.value.code == 2
    assert "--plot: must end in .svg" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
