"""The README's recording: it is small, moves without scripts, and shows what the demo shows today."""

from __future__ import annotations

import io
import os
import re
import sys
import xml.etree.ElementTree as ElementTree
from datetime import UTC, datetime
from pathlib import Path

import pytest
from rich.console import Console

from infra.recording.__main__ import MOST_BYTES, TITLE, main
from infra.recording.film import film_of
from infra.recording.screens import Screen, screens_of
from infra.recording.terminal import COLUMNS, LINES, Output, TerminalRecording, read, record
from localcloud.demo.fleet import LABEL
from localcloud.demo.story import TITLES, Fault
from localcloud.demo.view import DemoState, fleet_figures, render, results

ROOT = Path(__file__).resolve().parents[2]
SVG = "{http://www.w3.org/2000/svg}"
PICTURE = (ROOT / "docs" / "demo.svg").read_text(encoding="utf-8")


def parsed(text: str) -> ElementTree.Element:
    return ElementTree.fromstring(text)  # noqa: S314  ours


def frames(text: str) -> list[list[str]]:
    """The lines of each screen of a film, from the top."""
    root = parsed(text)
    height = int(root.attrib["height"])
    rows = {
        one.attrib["id"]: " ".join(run.text or "" for run in one) for one in root.iter(f"{SVG}g") if "id" in one.attrib
    }
    found: dict[int, list[str]] = {}
    for use in root.iter(f"{SVG}use"):
        found.setdefault(int(use.attrib["y"]) // height, []).append(rows[use.attrib["href"].removeprefix("#")])
    return [found.get(number, []) for number in range(max(found) + 1)]


def words(text: str) -> set[str]:
    return set(re.findall(r"[A-Za-z][A-Za-z-]{2,}", text))


def printed(*shown: object) -> set[str]:
    stream = io.StringIO()
    console = Console(file=stream, width=COLUMNS)
    for one in shown:
        console.print(one)
    return words(stream.getvalue())


def test_the_picture_is_small_and_asks_for_nothing_from_anywhere() -> None:
    assert len(PICTURE.encode()) <= MOST_BYTES
    root = parsed(PICTURE)
    assert {one.tag.removeprefix(SVG) for one in root.iter()} == {
        *("svg", "title", "style", "defs", "g", "text", "clipPath", "path", "rect", "circle", "use"),
    }
    links = [value for one in root.iter() for name, value in one.attrib.items() if name.endswith("href")]
    assert all(one.startswith("#") for one in links)
    assert "url(" not in (root.findtext(f"{SVG}style") or "")
    assert "http" not in PICTURE.replace("http://www.w3.org/2000/svg", "").replace("http://127.0.0.1:", "")
    assert "/open/…" in PICTURE  # the key of the recorded console
    assert (root.findtext(f"{SVG}title") or "") == TITLE
    assert "docs/demo.svg" in (ROOT / "README.md").read_text(encoding="utf-8")


def test_it_shows_what_the_demo_draws_today() -> None:
    shown = frames(PICTURE)
    assert shown[0][0] == "$ make demo"
    assert len(shown) > 30
    now = datetime(2035, 1, 1, tzinfo=UTC)
    live = printed(render(DemoState(started_at=now, at=now, act="")))
    first_live = next(one for one in shown if any("timeline" in line for line in one))
    assert live <= words("\n".join(first_live))
    last = words("\n".join(shown[-1]))
    assert printed(results((), width=COLUMNS)) <= last
    ledger = dict.fromkeys(
        ("mttd_s", "mttr_s", "steps_lost", "steps_saved", "lost_s", "gpu_hours_lost", "gpu_hours_saved"), 1.0
    ) | {"dollars_lost": 1.0, "dollars_saved": 1.0}
    spared = dict.fromkeys(("spared_gpu_hours", "spared_dollars"), 1.0)
    assert printed(fleet_figures({**ledger, "counterfactual": spared})) <= last
    assert any(LABEL in line for line in shown[-1])
    for fault in (Fault.KILL, Fault.FREEZE, Fault.NAN):
        assert words(TITLES[fault]) <= last
    assert sum("recovered" in line for line in shown[-1]) == 3


def test_every_act_of_the_recording_is_one_of_the_directors() -> None:
    """The act stands right below the demo's first line, after the seconds."""
    source = words((ROOT / "localcloud" / "demo" / "director.py").read_text(encoding="utf-8"))
    source |= {word for title in TITLES.values() for word in words(title)} | words(LABEL)
    acts = {
        found[1] for one in frames(PICTURE) for line in one if (found := re.match(r" ?[0-9.]+s (.+)", line.strip()))
    }
    assert len(acts) >= 7
    for act in acts:
        assert words(act) <= source, act


def cast(*outputs: tuple[float, str]) -> TerminalRecording:
    return TerminalRecording(tuple(Output(at, text) for at, text in outputs), 0)


def lines(screen: Screen) -> list[str]:
    return [line for line in screen.lines if line]


def test_a_screen_is_kept_where_something_new_is_told_and_never_half_redrawn() -> None:
    found = screens_of(
        cast(
            (0, "one 1\r\n"), (1, "\x1b[Aone 2\r\n"), (2, "\x1b[31mtwo"), (2.01, "\x1b[0m three\r\n"), (9, "\x1b[Aend")
        )
    )
    assert [lines(one) for one in found] == [["one 1"], ["one 2", "two three"], ["one 2", "end three"]]
    assert [(run.text, run.colour) for run in found[1].rows[1]] == [("two", "red"), ("three", "default")]


def test_a_film_shows_its_screens_one_after_the_other_and_stands_still_on_the_last() -> None:
    found = screens_of(cast((0, "a <b> & 'c'\r\n"), (1, "second\r\n"), (2, "third\r\n")))
    text = film_of(found, title="a & b")
    assert frames(text) == [["a <b> & 'c'"], ["a <b> & 'c'", "second"], ["a <b> & 'c'", "second", "third"]]
    height = int(parsed(text).attrib["height"])
    assert f".film{{transform:translateY(-{2 * height}px)" in text
    assert "prefers-reduced-motion" in text


@pytest.mark.process
def test_a_command_is_recorded_in_a_terminal_of_the_agreed_size(tmp_path: Path) -> None:
    code = (
        "import os,sys; print(*os.get_terminal_size()); print('http://h/open/k3y'); print(sys.stdout.isatty()); exit(3)"
    )
    made = record([sys.executable, "-c", f"import time; time.sleep(0.2); {code}"], shown="see", environ=os.environ)
    (*_, last) = screens_of(made)
    assert lines(last) == ["$ see", f"{COLUMNS} {LINES}", "http://h/open/…", "True"]
    assert made.status == 3
    made.write(tmp_path / "one.cast")
    assert [one.text for one in read(tmp_path / "one.cast").outputs] == [one.text for one in made.outputs]
    assert main(["--cast", str(tmp_path / "one.cast"), "--out", str(tmp_path / "one.svg")]) == 0
    assert frames((tmp_path / "one.svg").read_text())[-1] == lines(last)
