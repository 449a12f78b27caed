"""Batch scripts: one fault each, and none where there is none."""

# ruff: noqa: E501 - a table is read by its rows

from __future__ import annotations

import time
from pathlib import Path

import pytest

from rekindle.doctor.batch.options import minutes_of, parse
from rekindle.doctor.examine import layers_at
from rekindle.sbatch.options import arguments
from rekindle.sbatch.shell import read_shell
from tests.doctor.conftest import Doctor
from tests.doctor.given import SCRIPT

STEP = 'srun $AUTO_RESUME --kill-on-bad-exit=1 torchrun "${LAUNCH[@]}" train.py'
LOOP = 'while kill -0 "$step" 2>/dev/null; do wait "$step" || true; done\n'
RENDEZVOUS = "    --rdzv_backend=c10d\n    --rdzv_endpoint=$(hostname):29500\n"


def test_nothing_is_found_where_nothing_is_wrong(doctor: Doctor) -> None:
    assert doctor(script=SCRIPT).findings == []


def line_of(text: str, part: str) -> int:
    return text[: text.index(part)].count("\n") + 1


# Each row: what stands in place of what, which check must say so, how, and in the line of which text (None: no line).
FAULTS: list[tuple[str, str, str, str, str, str | None]] = [
    ("no shebang", "#!/bin/bash\n", "", "batch-shebang", "error", "# A run"),
    ("no interpreter", "#!/bin/bash", "#!", "batch-shebang", "error", "#!"),
    ("DOS line ends", "#!/bin/bash\n", "#!/bin/bash\r\n", "batch-text", "error", "#!"),
    ("a NUL", "set -euo", "set -\0euo", "batch-text", "error", None),
    ("no UTF-8", "A run of", "A r\udcffn of", "batch-text", "warning", "A r"),
    ("a typo", "--exclusive", "--exclusiv3", "batch-options", "error", "#SBATCH --exclusiv3"),
    ("a plug-in's option", "--exclusive", "--exclusive --frobnicate=1", "batch-options", "warning", "--frobnicate"),
    ("an ambiguous option", "--time=", "--no=3 --time=", "batch-options", "error", "--no=3"),
    ("a bare word", "--exclusive", "exclusive", "batch-options", "error", "#SBATCH exclusive"),
    ("letters glued on", "#SBATCH --exclusive", "#SBATCHX --exclusive", "batch-options", "error", "#SBATCHX"),
    ("a colon", "--exclusive", "--exclusive : foo", "batch-options", "error", ": foo"),
    ("an open quote", "--exclusive", '--exclusive "', "batch-options", "error", "--exclusive"),
    ("no value", "--output logs/%x_%j.out", "--output", "batch-options", "error", "#SBATCH --output\n"),
    ("a value too many", "--exclusive", "--exclusive --contiguous=1", "batch-options", "error", "--contiguous"),
    ("an unknown letter", "--exclusive", "--exclusive -Z", "batch-options", "error", "-Z"),
    ("a mode that is none", "--open-mode=append", "--open-mode=both", "batch-options", "error", "--open-mode"),
    ("a time that is none", "--time=2-00:00:00", "--time=2d", "batch-options", "error", "--time"),
    ("a signal that is none", "--exclusive", "--exclusive --signal=B:FOO@60", "batch-options", "error", "--signal"),
    ("no number of nodes", "--nodes=4", "--nodes=four", "batch-options", "error", "--nodes"),
    ("an option too late", "AUTO_RESUME=\"\"\n", "AUTO_RESUME=\"\"\n#SBATCH --mem=0\n", "batch-late-options", "error", "#SBATCH --mem"),
    ("no auto-resume", "$AUTO_RESUME ", "", "batch-auto-resume", "warning", "srun --kill"),
    ("auto-resume 0", '"--auto-resume=1"', '"--auto-resume=0"', "batch-auto-resume", "warning", "srun $AUTO"),
    ("auto-resume for sbatch", "--exclusive", "--exclusive --auto-resume=1", "batch-auto-resume", "error", "--exclusive"),
    ("auto-resume anywhere", "if [ -d /opt/sagemaker_cluster ]; then", "if true; then", "batch-auto-resume-portable", "warning", "srun $AUTO"),
    ("two steps", "trap '", "srun $AUTO_RESUME -K prepare.py\ntrap '", "batch-steps", "warning", "srun $AUTO_RESUME --kill"),
    ("no step", STEP, 'torchrun "${LAUNCH[@]}" train.py', "batch-steps", "warning", "torchrun"),
    ("another script", STEP, "./train.sh", "batch-steps", "unknown", "./train.sh"),
    ("a signal to the shell alone", "trap 'kill", "#trap 'kill", "batch-signal", "error", "#SBATCH --exclusive"),
    ("the comment's signal to the shell alone", "signal=USR1", "signal=B:USR1", "batch-signal", "error", "--comment"),
    ("the comment's signal that is none", "signal=USR1", "signal=1", "batch-comment", "error", "--comment"),
    ("nobody takes a signal", "trap 'kill", "#trap 'kill", "batch-signal", "warning", None),
    ("a trap that never runs", "checkpoints &\n", "checkpoints\n", "batch-trap", "warning", "srun $AUTO"),
    ("nothing waits", LOOP + 'wait "$step"\n', "", "batch-wait", "error", "srun $AUTO"),
    ("no checkpoint path", "--checkpoint-dir /fsx/runs/lm-7b/checkpoints", "--lr 1e-4", "batch-checkpoint", "warning", None),
    ("a checkpoint on the node", "/fsx/runs/lm-7b/", "/tmp/", "batch-checkpoint", "error", "srun $AUTO"),
    ("a checkpoint on NVMe", "/fsx/runs/lm-7b/", "/opt/dlami/nvme/", "batch-checkpoint", "error", "srun $AUTO"),
    ("a relative checkpoint", "/fsx/runs/lm-7b/", "./", "batch-checkpoint", "unknown", "srun $AUTO"),
    ("a checkpoint in a file", "--checkpoint-dir /fsx/runs/lm-7b/checkpoints", "conf.yaml", "batch-checkpoint", "unknown", None),
    ("output begun anew", "#SBATCH --open-mode=append\n", "", "batch-output", "warning", None),
    ("output truncated", "--open-mode=append", "--open-mode=truncate", "batch-output", "warning", "--open-mode"),
    ("shared nodes", "#SBATCH --exclusive\n", "", "batch-exclusive", "warning", None),
    ("HyperPod may cancel a hang", "AUTO_RESUME=\"\"\n", "export HYPERPOD_HANG_RULES=/fsx/rules.json\nAUTO_RESUME=\"\"\n", "batch-hang-rules", "warning", "export HYPERPOD"),
    ("HyperPod may cancel a hang, by an option", "--exclusive", "--exclusive --export=ALL,HYPERPOD_HANG_RULES=/fsx/r.json", "batch-hang-rules", "warning", "--exclusive"),
    ("no requeue", "--exclusive", "--exclusive --no-requeue", "batch-requeue", "warning", "--exclusive"),
    ("localhost", "--rdzv_endpoint=$(hostname)", "--rdzv_endpoint=localhost", "batch-rendezvous", "error", "srun $AUTO"),
    ("127.0.0.1", "--rdzv_endpoint=$(hostname)", "--rdzv_endpoint=127.0.0.1", "batch-rendezvous", "error", "srun $AUTO"),
    ("an address of localhost", "AUTO_RESUME=\"\"\n", "export MASTER_ADDR=localhost\nAUTO_RESUME=\"\"\n", "batch-rendezvous", "error", "export MASTER"),
    ("a fixed host", "--rdzv_endpoint=$(hostname)", "--rdzv_endpoint=ip-10-1-2-3", "batch-rendezvous", "warning", "srun $AUTO"),
    ("a fixed address", "AUTO_RESUME=\"\"\n", "export MASTER_ADDR=10.1.2.3\nAUTO_RESUME=\"\"\n", "batch-rendezvous", "warning", "export MASTER"),
    ("a torchrun for itself", "    --nnodes=$SLURM_JOB_NUM_NODES\n", "", "batch-rendezvous", "error", "srun $AUTO"),
    ("one node of four", "--nnodes=$SLURM_JOB_NUM_NODES", "--nnodes=1", "batch-rendezvous", "error", "srun $AUTO"),
    ("standalone", "--rdzv_backend=c10d", "--standalone", "batch-rendezvous", "error", "srun $AUTO"),
    ("no rendezvous", RENDEZVOUS, "", "batch-rendezvous", "error", "srun $AUTO"),
    ("no rank", RENDEZVOUS, "    --master_addr=$(hostname)\n", "batch-rendezvous", "error", "srun $AUTO"),
    ("the batch shell's rank", RENDEZVOUS, "    --master_addr=$(hostname)\n    --node_rank=$SLURM_NODEID\n", "batch-rendezvous", "error", "srun $AUTO"),
    ("restarts of torchrun's", RENDEZVOUS, RENDEZVOUS + "    --max_restarts=3\n", "batch-torchrun-restarts", "warning", "srun $AUTO"),
    ("a crash loop of torchrun's", RENDEZVOUS, RENDEZVOUS + "    --max-restarts=100\n)\nexport TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1\nLAUNCH+=(\n", "batch-torchrun-restarts", "warning", "srun $AUTO"),
    ("an end of workers in a restart", RENDEZVOUS, RENDEZVOUS + "    --max_restarts=1 --shutdown-timeout=2\n)\nexport TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1\nLAUNCH+=(\n", "batch-torchrun-restarts", "warning", "srun $AUTO"),
    ("a fixed port on shared nodes", "#SBATCH --exclusive\n", "", "batch-port", "warning", "srun $AUTO"),
    ("the list of the start", "trap '", 'head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)\ntrap \'', "batch-nodelist", "warning", "head=$("),
    ("an hour", "--time=2-00:00:00", "--time=01:00:00", "batch-time", "warning", "--time"),
    ("ninety minutes", "--time=2-00:00:00", "-t 90", "batch-time", "warning", "-t 90"),
    ("no comment", "#SBATCH --comment=rekindle:default,signal=USR1\n", "", "batch-comment", "warning", None),
    ("a comment of others", "rekindle:default,signal=USR1", "mine", "batch-comment", "warning", "--comment"),
    ("a comment with a blank", "--comment=rekindle:default,signal=USR1", '"--comment=rekindle: default"', "batch-comment", "error", "--comment"),
    ("a comment's unknown key", "signal=USR1", "sginal=USR1", "batch-comment", "warning", "--comment"),
    ("one task's end", "--kill-on-bad-exit=1 ", "", "batch-bad-exit", "warning", "srun $AUTO"),
    ("a lost exit code", "checkpoints &\n", "checkpoints | tee log &\n", "batch-exit-code", "warning", "srun $AUTO"),
    ("a hidden exit code", "checkpoints &\n", "checkpoints || true\n", "batch-exit-code", "warning", "srun $AUTO"),
    ("a wait that a signal ends", LOOP, "", "batch-trap", "warning", 'wait "$step"'),
    ("a wait that is 0", LOOP + 'wait "$step"\n', "wait\n", "batch-exit-code", "warning", "wait\n"),
    ("an exit that is 0", 'wait "$step"\n', "exit 0\n", "batch-exit-code", "warning", "exit 0"),
    ("no set -e", "set -euo pipefail\n", "", "batch-exit-code", "warning", None),
    ("an array", "--exclusive", "--exclusive --array=0-3", "batch-resubmit", "warning", "--array"),
    ("a heterogeneous job", "#SBATCH --exclusive\n", "#SBATCH --exclusive\n#SBATCH hetjob\n", "batch-resubmit", "warning", "hetjob"),
]  # fmt: skip
ALSO = {
    "the comment's signal to the shell alone": (("trap 'kill", "#trap 'kill"),),
    "a signal to the shell alone": (("#SBATCH --exclusive", "#SBATCH --exclusive --signal=B:USR1@120"),),
    "nobody takes a signal": ((",signal=USR1", ""),),
    "a lost exit code": (("set -euo pipefail", "set -eu"),),
}


@pytest.mark.parametrize(
    ("name", "old", "new", "check", "severity", "where"), FAULTS, ids=[row[0].replace(" ", "-") for row in FAULTS]
)
def test_each_fault_of_a_script_is_found(
    doctor: Doctor, name: str, old: str, new: str, check: str, severity: str, where: str | None
) -> None:
    script = SCRIPT
    for one, other in ((old, new), *ALSO.get(name, ())):
        assert one in script
        script = script.replace(one, other, 1)
    said = doctor(script=script)
    path = "job.sbatch" if where is None else f"job.sbatch:{line_of(script, where)}"
    assert path in [finding["path"] for finding in said.of(check, severity)], said.findings
    assert said.code == (1 if said.errors else 0)
    if severity != "error":
        assert said.code == 0, said.errors


# Scripts as people write them, in which there is no error.
RIGHT = {
    "a step in the foreground": "#!/bin/bash\n#SBATCH -N2\n#SBATCH -o%j.out\nsrun hostname\n",
    "options spelled short": "#!/bin/bash -e\n#SBATCH -N 2 -n16 -t 1-0 --exclus --ope append -J x -kv -O\nsrun train\n",
    "options commented out": "#!/bin/bash\n##SBATCH --nodez=2\n# SBATCH --nodez=2\n #SBATCH nonsense\nsrun train\n",
    "an option after a blank line and comments": "#!/bin/bash\n\n# a\n\t\n#SBATCH -N2 # --nodez\nsrun train\n",
    "options quoted": "#!/bin/bash\n#SBATCH --job-name='a b' --comment=\"rekindle\" --mail-user=a\nsrun train\n",
    "another script in a here-document": "#!/bin/bash\n#SBATCH -N2\ncat > x <<EOF\n#SBATCH -N9\nsrun &\nEOF\nsrun train\n",
    "ranks by srun": "#!/bin/bash\n#SBATCH -N2 --ntasks-per-node=8\nsrun python train.py --ckpt /fsx/c\n",
    "one node with localhost": "#!/bin/bash\n#SBATCH -N1\nexport MASTER_ADDR=localhost\nsrun torchrun --standalone t.py\n",
    "localhost of something else": "#!/bin/bash\n#SBATCH -N2\nexport REDIS=localhost:6379\nsrun train\n",
    "launch options from elsewhere": '#!/bin/bash\n#SBATCH -N2\nsource launch.env\nsrun torchrun "${ARGS[@]}" t.py\n',
    "a rank that the task works out": (
        "#!/bin/bash\n#SBATCH -N2\nsrun bash -c 'torchrun --nnodes=2 --node_rank=$SLURM_NODEID --master_addr=$HEAD t.py'\n"
    ),
    "a rank worked out in a function of the task's": (
        "#!/bin/bash\n#SBATCH -N2\nlaunch() {\n  torchrun --nnodes=2 --node_rank=$SLURM_NODEID --master_addr=$A t.py\n}\n"
        "export -f launch\nsrun bash -c launch\n"
    ),
    "another language": "#!/usr/bin/env python3\n#SBATCH -N2\nx = 'srun torchrun --standalone t.py &'\n",
    "elastic by environment": "#!/bin/bash\n#SBATCH -N2\nexport PET_NNODES=2 PET_RDZV_BACKEND=c10d\nsrun torchrun t.py\n",
    "steps side by side": "#!/bin/bash\n#SBATCH -N2\nfor i in 0 1; do srun -N1 train $i &\ndone\nwait\n",
    "a function in the background": "#!/bin/bash\n#SBATCH -N2\nrun() {\n  srun -N1 train\n}\nrun &\nwait\n",
    "local scratch beside shared checkpoints": "#!/bin/bash\nsrun t --ckpt_dir /tmp/c --resume_from /fsx/c\n",
    "a data cache on the node": "#!/bin/bash\nexport HF_DATASETS_CACHE=/tmp/cache\nsrun t --checkpoint_dir=s3://b/c\n",
    "a trap for the end": "#!/bin/bash\ntrap 'rm -f x' EXIT\nsrun t\n",
    "python as an interpreter": "#!/usr/bin/env python3\n#SBATCH -N1\nimport os\nprint('#SBATCH --nodez')\n",
    "a plug-in's options": "#!/bin/bash\n#SBATCH --container-image=/fsx/i.sqsh --container-mount-home\nsrun t\n",
    "a range of nodes": "#!/bin/bash\n#SBATCH --nodes=2-4 --signal=B:10@60\ntrap x USR1\nsrun t &\nwait\n",
    "tabs and windows of quotes": "#!/bin/bash\n#SBATCH\t--nodes=2\necho \"a 'b\" 'c \"d' `srun hostname`\nsrun t\n",
}


@pytest.mark.parametrize("script", RIGHT.values(), ids=[name.replace(" ", "-") for name in RIGHT])
def test_what_works_is_no_error(doctor: Doctor, script: str) -> None:
    said = doctor(script=script)
    assert said.errors == []
    assert said.code == 0


def test_the_options_of_a_line_are_cut_as_sbatch_cuts_them() -> None:
    """Tried on sbatch 22.05 with -vvv, which prints each argument it has found."""
    assert arguments(" --job-name=a#b --nodes=2") == (["--job-name=a"], None)
    assert arguments(' -N3 --comment="hello world" # c') == (["-N3", "--comment=hello world"], None)
    assert arguments("X --account=glued") == (["X", "--account=glued"], None)
    assert arguments(r" -J 'a \' b' c") == (["-J", "a ' b", "c"], None)
    assert arguments(r' -J "a \" b"') == (["-J", 'a " b'], None)
    assert arguments(r" -J a\ b a\#b 'a # b'") == (["-J", "a", "b", "a#b", "a # b"], None)
    assert arguments(' -J "" -N2') == (["-J"], None)
    assert arguments(' -J unterminated" x') == (["-J"], '"')


def test_short_and_long_options_are_read_alike() -> None:
    for words in (["-N2"], ["-N", "2"], ["--nodes=2"], ["--nodes", "2"], ["--nod=2", "-N2"]):
        options, troubles = parse(1, words)
        if words[0] == "--nod=2":
            assert troubles[0].is_refused  # --nodefile, --nodelist, --nodes
        else:
            assert [(option.name, option.value) for option in options] == [("nodes", "2")]
            assert troubles == []


@pytest.mark.parametrize(
    ("text", "minutes"),
    [("90", 90), ("90:30", 90.5), ("1:30:00", 90), ("1-0", 1440), ("1-2:30", 1590), ("1-2:30:30", 1590.5)],
)
def test_times_are_read_as_slurm_writes_them(text: str, minutes: float) -> None:
    found = minutes_of(text)
    assert found is not None
    assert found.total_seconds() == minutes * 60


@pytest.mark.parametrize("text", ["", "1d", "1:2:3:4", "-1", "UNLIMITED", "1-2-3", "٣"])
def test_what_is_no_time_is_none(text: str) -> None:
    assert minutes_of(text) is None


def test_a_variable_has_every_value_that_it_is_given() -> None:
    shell = read_shell(
        'A=""\nif x; then A="--one --two"; fi\nB=($A three)\n: "${C:=/fsx/c}"\nsrun $A "${B[@]}" $C $D \'$A\'\n'
    )
    words = shell.expanded(shell.commands[-1].words)
    assert words[:6] == ["srun", "--one", "--two", "--one", "--two", "three"]
    assert words[6:8] == ["/fsx/c", "$D"]


def test_commands_are_told_apart() -> None:
    shell = read_shell('X=1 srun a & wait; { exec srun b | tee c; } # srun d\nY=$(srun e)\necho "`srun f`" > g 2>&1\n')
    steps = [
        (command.words[1], command.end, command.is_inner) for command in shell.commands if command.program == "srun"
    ]
    assert steps == [("a", "&", False), ("b", "|", False), ("e", "", True), ("f", "", True)]
    assert shell.values["X"] == ["1"]


@pytest.mark.parametrize(
    ("text", "in_background"),
    [
        ("a; b & c\n", "b"),
        ("a && b | c &\nd\n", "abc"),
        ("a\n( b; c ) & d\n", "bc"),
        ("a; { b; if c; then d; fi & e; }\n", "cd"),
        ("for i in 1 2; do a & b; done; c\n", "a"),
        ("case $x in\n  yes) a & b ;;\nesac\nc &\n", "ac"),
        ("a) ) } fi done & b\n", "a"),
        ("f() { a; }\nb &&\n\n c &\n", "bc"),
    ],
)
def test_a_list_runs_in_the_background_as_a_whole(text: str, in_background: str) -> None:
    commands = read_shell(text).commands
    assert {
        command.program
        for command in commands
        if command.is_background and command.program.isalpha() and len(command.program) == 1
    } == {*in_background}


def test_groups_without_end_are_read_in_bounded_time() -> None:
    began = time.process_time()
    read_shell("(a;" * 20_000 + ")&" * 20_000 + "{ b & " * 20_000)
    assert time.process_time() - began < 10


@pytest.mark.parametrize(
    "body",
    [
        'srun train --checkpoint-dir "/tmp/my first run/ckpt"\n',
        "srun train --checkpoint-dir='/tmp/my first run/ckpt'\n",
        'D="/tmp/my first run"\nsrun train --checkpoint-dir "$D/ckpt"\n',
        'D="/tmp/my first run"\nsrun train --a 1 save_dir=$D/ckpt\n',
        'CKPT_DIR="/tmp/my first run/ckpt"\nsrun train\n',
    ],
)
def test_no_text_is_cut_at_a_blank(doctor: Doctor, body: str) -> None:
    (finding,) = doctor(script=HEAD + body).of("batch-checkpoint")
    assert "'/tmp/my first run/ckpt'" in finding["message"]


@pytest.mark.parametrize(
    ("option", "severity"),
    [
        ("--partition=${PARTITION}", "warning"),
        ("--nodes=$NODES", "error"),
        ("--account=<account>", "warning"),
        ('--job-name="{{ name }}"', "warning"),
    ],
)
def test_what_was_not_filled_in_is_called_that(doctor: Doctor, option: str, severity: str) -> None:
    (finding,) = doctor(script=f"#!/bin/bash\n#SBATCH {option}\nsrun python train.py\n").of("batch-options")
    assert (finding["severity"], "was not filled in" in finding["message"]) == (severity, True)


def test_a_script_too_large_to_be_read_is_unknown_not_an_error(doctor: Doctor) -> None:
    said = doctor(script=SCRIPT + "# filling\n" * 40_000)
    assert said.of("batch-steps", "unknown")
    assert said.code == 0


HEAD = "#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --exclusive\n"


@pytest.mark.parametrize(
    ("body", "check"),
    [
        ("srun python train.py\necho done\n", "batch-exit-code"),
        ("if srun python train.py; then echo good; fi\n", "batch-exit-code"),
        ("set -e\npython train.py &\n", "batch-wait"),
        ("cd /fsx && python train.py &\n", "batch-wait"),
        ("(cd /fsx && srun python train.py) &\n", "batch-wait"),
        ("{ module load cuda; srun python train.py; } &\n", "batch-wait"),
        ("srun python train.py 2>&1 | tee log &\n", "batch-wait"),
        ("srun python train.py ||\n  echo failed &\n", "batch-wait"),
        ("if true; then srun python train.py; fi &\n", "batch-wait"),
        ("while true; do srun python train.py; done | tee log &\n", "batch-wait"),
        ("bash train.sh &\n", "batch-wait"),
        ("trap 'scontrol requeue $SLURM_JOB_ID' USR1\npython train.py\n", "batch-trap"),
        ("trap 'touch stop' USR1\ntimeout 23h srun python train.py\n", "batch-trap"),
        ("trap h USR1\nwhile [ ! -f ready ]; do sleep 1; done\nsrun python train.py &\nwait $!\n", "batch-trap"),
        ("#SBATCH --signal=B:USR1@60\ntrap 'echo x' TERM\nsrun python train.py & wait $!\n", "batch-signal"),
        ("#SBATCH --signal=B:USR1@60\ntrap '' USR1\nsrun python train.py & wait $!\n", "batch-signal"),
        ("#SBATCH --signal=B:USR1@60\ntrap 'echo x' EXIT\nsrun python train.py & wait $!\n", "batch-signal"),
    ],
)
def test_slurm_would_say_completed_or_the_signal_is_not_handled(doctor: Doctor, body: str, check: str) -> None:
    assert check in {finding["check"] for finding in doctor(script=HEAD + body).findings}


@pytest.mark.parametrize(
    "body",
    [
        "command -v torchrun\n",
        "export TORCHRUN=/opt/venv/bin/torchrun\n",
        "readonly TORCHRUN=/opt/venv/bin/torchrun\n",
        "declare TORCHRUN=/opt/venv/bin/torchrun\n",
        "which torchrun\n[ -x /opt/venv/bin/torchrun ]\n",
        "#SBATCH --signal=B:USR1@60\ntrap 'kill -USR1 $PID' SIGUSR1\n",
        "#SBATCH --signal=B:USR1@60\nSIGNAL=USR1\ntrap h $SIGNAL\n",
        '#SBATCH --signal=B:USR1@60\nfor s in USR1 TERM; do trap "h $s" $s; done\n',
        "srun --overlap ray start --head --block &\npython driver.py\n",
    ],
)
def test_what_starts_nothing_and_what_handles_the_signal_is_no_error(doctor: Doctor, body: str) -> None:
    run = "srun torchrun --nnodes=2 --rdzv_backend=c10d --rdzv_endpoint=$H:29500 train.py --save /scratch/ckpt\n"
    assert [finding for finding in doctor(script=HEAD + body + run).findings if finding["severity"] == "error"] == []


def test_the_layers_that_may_act_are_told_in_their_order(tmp_path: Path) -> None:
    def named(text: str) -> list[str]:
        file = tmp_path / "train.sbatch"
        file.write_text(text)
        return [line.partition(":")[0] for line in layers_at(file)]

    assert named(SCRIPT) == ["HyperPod's auto-resume", "Slurm", "Rekindle"]
    more = SCRIPT.replace(RENDEZVOUS, RENDEZVOUS + "    --max_restarts=3\n").replace(
        'AUTO_RESUME=""\n', 'export HYPERPOD_HANG_RULES=/fsx/rules.json\nAUTO_RESUME=""\n'
    )
    assert named(more) == [
        "torchrun",
        "HyperPod's hung-job detection",
        "HyperPod's auto-resume",
        "Slurm",
        "Rekindle",
    ]
    assert "Slurm" not in named(SCRIPT.replace("--exclusive", "--exclusive --no-requeue"))
    assert named("") == []
