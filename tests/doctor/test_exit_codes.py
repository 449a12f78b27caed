"""The doctor says that a failed run looks complete exactly where a real bash ends the script with 0."""

from __future__ import annotations

import os
import random
import subprocess
import time
from pathlib import Path
from typing import Final

import pytest

from rekindle.doctor.batch.ending import lost_failure
from rekindle.doctor.batch.exit_code import exit_code
from rekindle.doctor.batch.script import read_batch

IN_THE_BACKGROUND: Final = "srun train &\nPID=$!\n"
SCRIPTS: Final[tuple[str, ...]] = (
    "srun train",
    "srun train\necho done",
    "srun train; exit $?",
    "srun train\necho done\nexit $?",
    "srun train\nrc=$?\necho $rc\nexit $rc",
    "srun train\nrc=$?\n[ $rc -eq 0 ] && echo good\nexit ${rc}",
    "srun train\nif [ $? -ne 0 ]; then exit 1; fi\necho good",
    "srun train\nif [ $? -ne 0 ]; then echo bad; fi",
    "srun train\nrc=$?\n(( rc != 0 )) && exit $rc\necho good",
    "srun train\nrc=$?\ncase $rc in 0) echo good ;; *) echo bad; exit $rc ;; esac",
    "set -e\nsrun train\necho done",
    "set -euo pipefail\nrc=0\nsrun train || rc=$?\nif [ $rc -ne 0 ]; then echo bad; exit $rc; fi\necho good",
    "rc=0\nsrun train || rc=$?\necho rc=$rc",
    "set -e\nset +e\nsrun train\nset -e\necho done",
    '( eval "exit 1" )\n' * 12 + "srun train\necho done",
    "srun train || true",
    "srun train || exit 1\necho good",
    "srun train || { echo bad; exit 1; }\necho good",
    "cd . && srun train && echo good || true",
    "set -e\nsrun train && echo good\necho done",
    "! srun train",
    "if srun train; then echo good; fi",
    "if ! srun train; then echo bad; exit 1; fi\necho good",
    "if [ 1 = 1 ]; then\n  srun train\nfi",
    "case x in x) srun train ;; esac\necho done",
    "for i in 1 2; do\n  srun train\ndone",
    "for i in 1 2 3; do\n  srun train && break\n  echo again\ndone",
    "for i in 1 2 3; do\n  srun train && exit 0\ndone\nexit 1",
    "n=0\nuntil srun train; do n=$((n+1)); [ $n -ge 3 ] && exit 1; done",
    "n=0\nuntil srun train; do n=$((n+1)); [ $n -ge 3 ] && break; done",
    "srun train | tee log",
    "set -o pipefail\nsrun train 2>&1 | tee log",
    "set -o pipefail\nsrun train | tee log\necho done",
    "srun train | tee log\nexit ${PIPESTATUS[0]}",
    "run() {\n  srun train\n}\nrun",
    "run() {\n  srun train\n  local rc=$?\n  echo $rc\n  return $rc\n}\nrun",
    "run() {\n  srun train\n  echo over\n}\nrun",
    'launch() { srun --nodes=1 "$@"; }\nlaunch train\necho done',
    "set -e\nmain() {\n  srun train\n  echo over\n}\nmain || exit 1",
    "(cd . ; srun train)",
    "{ srun train; } 2>&1 | tee log",
    "CMD='srun train'\n$CMD\necho done",
    'cmd=(srun train)\n"${cmd[@]}"',
    "bash -c 'srun train; echo done'",
    "exec srun train\necho never",
    "timeout 1h srun train\necho done",
    "OUT=$(srun train)",
    "set -e\nexport OUT=$(srun train)\necho done",
    "trap 'exit 0' EXIT\nsrun train",
    "clean() { rc=$?; rm -f log; exit $rc; }\ntrap clean EXIT\nsrun train",
    "trap 'exit 1' ERR\nsrun train\necho done",
    "srun bash <<'EOF'\necho done\nexit 0\nEOF",
    "cat > run.sh <<EOF\nsrun other\nexit 0\nEOF\nsrun bash run.sh",
    f"{IN_THE_BACKGROUND}wait",
    f"{IN_THE_BACKGROUND}wait $PID",
    f"{IN_THE_BACKGROUND}wait $PID\necho done",
    f"{IN_THE_BACKGROUND}while kill -0 $PID 2>/dev/null; do wait $PID || true; done\nwait $PID",
    f"{IN_THE_BACKGROUND}if wait $PID; then echo good; else echo bad; exit 1; fi",
    "for i in 1 2; do srun train & done\nfor i in 1 2; do wait -n || exit 1; done",
    'pids=()\nfor i in 1 2; do srun train &\npids+=($!); done\nfor p in "${pids[@]}"; do wait $p || echo bad; done',
    "pids=()\nrc=0\nfor i in 1 2; do srun train &\npids+=($!); done\n"
    'for p in "${pids[@]}"; do wait $p || rc=1; done\nexit $rc',
    'FAIL=0\nfor i in 1 2; do srun train & done\nfor j in $(jobs -p); do wait $j || let "FAIL+=1"; done\n'
    'if [ "$FAIL" == "0" ]; then echo good; else exit 1; fi',
    "{ srun train; echo over; } &\nwait $!",
    "mpirun -np 16 train\necho done",
    "set -e\ntorchrun train.py\necho done",
    "END='exit 0'\nsrun train\n$END",
    "conda run -n lm --no-capture-output torchrun train.py\necho done",
    "conda run -n lm torchrun train.py",
    "uv run --frozen torchrun train.py; echo done",
    "echo 1 2 | xargs -n1 -P2 srun train\necho done",
    "echo 1 2 | xargs -n1 srun train",
    "parallel -j2 srun train ::: 1 2\necho done",
)


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """srun and the launchers, which all fail."""
    folder = tmp_path_factory.mktemp("bin")
    for name in ("srun", "torchrun", "mpirun", "conda", "uv", "parallel"):
        (folder / name).write_text("#!/bin/sh\nexit 3\n")
        (folder / name).chmod(0o755)
    return folder


@pytest.mark.parametrize("body", SCRIPTS)
def test_what_bash_ends_with(body: str, programs: Path, tmp_path: Path) -> None:
    text = f"#!/bin/bash\n{body}\n"
    script = tmp_path / "job.sh"
    script.write_text(text)
    path = f"{programs}:{os.environ['PATH']}"
    ended = subprocess.run(
        ["/bin/bash", script], cwd=tmp_path, env={"PATH": path}, capture_output=True, timeout=60, check=False
    )
    said = [
        finding.message
        for finding in exit_code(read_batch(text.encode(), "job.sh"))
        if "looks complete" in finding.message
    ]
    assert bool(said) == (ended.returncode == 0), said


@pytest.mark.parametrize(
    ("body", "line", "words"),
    [
        ("srun a &\nsrun b &\nwait $!", 1, "`wait`"),
        ("srun a & one=$!\nsrun b & two=$!\nwait $one $two", 1, "`wait`"),
        ("srun train\nexit 0", 1, "`exit 0`"),
        ("srun train |\n  tee log", 1, "the pipe"),
    ],
)
def test_it_says_how_it_is_lost(body: str, line: int, words: str) -> None:
    """Also where one of several in the background fails alone, which a script that was run once does not show."""
    said = [finding.message for finding in exit_code(read_batch(body.encode(), "job.sh"))]
    assert any(f"when line {line} fails" in message and words in message for message in said), said


def test_whatever_the_script_is_it_is_followed_in_bounded_time() -> None:
    chance = random.Random(7)
    parts = [part for body in SCRIPTS for part in body.replace("\n", " \n ").split(" ")]
    texts = [" ".join(chance.choices(parts, k=chance.randrange(1, 60))) for _ in range(400)]
    texts += ["(" * 50_000, "$(" * 20_000, "if " * 20_000, "[ $x ] && " * 20_000 + "srun a", "f() { f; f; }\nf\nsrun a"]
    texts.append("for a in 1 2 3 4; do " * 12 + "[ $x ] && srun a" + "; done" * 12)
    texts.append("x=$x$x$x$x$x$x\n" * 2000 + "srun $x")
    began = time.process_time()
    for text in texts:
        lost_failure(text, lambda words: words[0] == "srun")
    assert time.process_time() - began < 60
