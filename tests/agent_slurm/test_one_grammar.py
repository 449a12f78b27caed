"""The agent, the command line and the doctor read sbatch's options alike."""

from __future__ import annotations

from pathlib import Path

import pytest

from rekindle.cli.tools.sbatch import read_command
from rekindle.doctor.batch.script import read_batch
from rekindle.sbatch.options import of_script
from rekindle.sbatch.table import OPTIONS, Known, TakesValue
from rekindle.slurm_agent.reading.line import of_line

LINES = [
    ("-N2 -n 8 --gres=gpu:8", {"nodes": "2", "ntasks": "8", "gres": "gpu:8"}),
    ("-HN 2 --requeue", {"hold": None, "nodes": "2", "requeue": None}),
    ("--exclusive --time 4:00:00", {"exclusive": None, "time": "4:00:00"}),
    ("--exclusive=user --com=rekindle", {"exclusive": "user", "comment": "rekindle"}),
    ("--signal B:USR1@60 -J=lm", {"signal": "B:USR1@60", "job-name": "lm"}),
    ("--container-image img --no-container-mount-home", {"container-image": "img", "no-container-mount-home": None}),
    ("-k --nodes 2", {"no-kill": None, "nodes": "2"}),
]


@pytest.mark.parametrize(("line", "options"), LINES)
def test_a_line_means_the_same_wherever_it_is_read(line: str, options: dict[str, str | None], tmp_path: Path) -> None:
    script = f"#!/bin/bash\n#SBATCH {line}\nsrun true\n#SBATCH --qos=late\n"
    assert of_script(script) == options
    batch = read_batch(script.encode(), "x.sh")
    assert batch.troubles == ()
    assert {option.name: option.value for option in batch.options} == options
    assert of_line(f"sbatch {line} x.sh a b", ("/x.sh", "a", "b")) == options
    empty = tmp_path / "x.sh"
    empty.write_text(script)
    command = read_command(["sbatch", *line.split(), str(empty), "--not-ours"], {})
    assert command.options == {name: value or "" for name, value in options.items()} == command.in_script
    assert command.words[command.script_at] == str(empty)


def test_what_ends_the_options_of_a_command_line_is_no_option(tmp_path: Path) -> None:
    script = tmp_path / "-x.sh"
    script.write_text("#!/bin/sh\n")
    command = read_command(["sbatch", "-N2", "--", str(script), "-n8"], {})
    assert command.options == {"nodes": "2"}
    assert command.with_options(["--requeue"]) == ["sbatch", "-N2", "--requeue", "--", str(script), "-n8"]


def test_a_plug_ins_option_may_have_a_value_of_its_own() -> None:
    assert of_script("#!/bin/sh\n#SBATCH --of-a-plug-in x --other\n") == {"of-a-plug-in": "x", "other": None}


def test_every_letter_stands_for_one_option_and_an_older_name_is_no_option_of_today() -> None:
    letters = [spec.letter for spec in OPTIONS.values() if spec.letter]
    assert len(letters) == len(set(letters))
    assert {spec.takes for spec in OPTIONS.values()} == set(TakesValue)
    older = next(name for name, spec in OPTIONS.items() if spec.known is Known.OLDER)
    assert read_batch(f"#!/bin/sh\n#SBATCH --{older}=x\n".encode(), "x").troubles
