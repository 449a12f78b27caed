"""A story's file that cannot be read says which field is wrong; nothing is played."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from simulation.command import main

GOOD: dict[str, Any] = {"seed": 1, "runs": [{"troubles": [{"kind": "crash", "step": 40}]}], "length_s": 600}


@pytest.mark.parametrize(
    ("change", "names"),
    [
        ({"seed": "x"}, "story.seed"),
        ({"seed": True}, "story.seed"),
        ({"length_s": None}, "story.length_s"),
        ({"lengths": 5}, "story.lengths"),
        ({"runs": {}}, "story.runs"),
        ({"runs": [3]}, "story.runs.0"),
        ({"runs": [{"plan": "none"}]}, "story.runs.0.plan"),
        ({"runs": [{"troubles": [{"kind": "flood", "step": 4}]}]}, "story.runs.0.troubles.0.kind"),
        ({"runs": [{"troubles": [{"kind": "crash"}]}]}, "step"),
        ({"source_faults": [{"kind": "white"}]}, "story.source_faults.0.kind"),
        ({"actions": [{"what": "stop", "when": "never"}]}, "story.actions.0.when"),
        ({"policy": []}, "story.policy"),
    ],
)
def test_a_field_that_is_wrong_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], change: dict[str, Any], names: str
) -> None:
    path = tmp_path / "story.json"
    path.write_text(json.dumps(GOOD | change))
    assert main(["--play", str(path)]) == 2
    said = capsys.readouterr()
    assert (said.out, said.err.count("\n")) == ("", 1)
    assert names in said.err


@pytest.mark.parametrize("text", ["", "[]", "{", "null", "{}"])
def test_what_is_no_story_is_not_played(tmp_path: Path, text: str) -> None:
    path = tmp_path / "story.json"
    path.write_text(text)
    assert main(["--play", str(path)]) == 2


def test_a_story_is_played(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "story.json"
    path.write_text(json.dumps(GOOD))
    assert main(["--play", str(path)]) == 0
    assert capsys.readouterr().out == "0 unsafe, 1 Incidents\n"
