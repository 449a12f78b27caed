"""`rekindle classify`: one object per line in order, a table for people, and input that means harm."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rekindle.cli.main import main
from rekindle.cli.tools.classify import CHUNK_BYTES, MAX_LINE_BYTES, print_objects, read_lines, summary
from rekindle.client.table import Style
from rekindle.signatures import Classifier
from tests.signatures.corpus_benign import BENIGN_LINES
from tests.signatures.corpus_faults import FAULTS

LINES = [
    line.replace("\n", " ") for line in (*BENIGN_LINES, *(text for texts in FAULTS.values() for text in texts)) if line
]


class Dripping(io.RawIOBase):
    """A stream that gives its bytes in pieces of the sizes told, and then the rest."""

    def __init__(self, data: bytes, sizes: list[int]) -> None:
        self._data, self._sizes = data, sizes

    def read1(self, size: int) -> bytes:
        """The next piece."""
        size = min(size, self._sizes.pop(0)) if self._sizes else size
        piece, self._data = self._data[:size], self._data[size:]
        return piece


def command(data: bytes, *args: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "rekindle.cli.main", "classify", *args], input=data, capture_output=True
    )


def objects(data: bytes) -> list[dict[str, str | None]]:
    out = io.StringIO()
    print_objects(read_lines(io.BytesIO(data)), out)
    *lines, cause = [json.loads(line) for line in out.getvalue().splitlines()]
    assert set(cause) == {"root_cause"}
    return lines


def test_one_object_per_line_in_order_for_the_process_itself() -> None:
    done = command("\n".join(LINES).encode() + b"\n", "--json")
    assert (done.returncode, done.stderr) == (0, b"")
    *found, last = [json.loads(line) for line in done.stdout.splitlines()]
    classifier = Classifier()
    for number, (item, line) in enumerate(zip(found, LINES, strict=True), start=1):
        text = item.pop("text", None)
        assert (text is None) is (item["label"] == "benign")
        assert item == {"line": number, **classifier.classify(line).to_json()}
    assert found[last["root_cause"]["line"] - 1]["label"] == last["root_cause"]["label"]


def test_the_last_object_is_the_root_cause_with_its_line_and_text() -> None:
    log = (
        b"step 1\n[rank3]: RuntimeError: NCCL error: remote process exited or there was a network error\n"
        b"Exited with exit code 1\n"
    )
    cause = json.loads(command(log, "--json").stdout.splitlines()[-1])["root_cause"]
    assert (cause["label"], cause["line"], cause["rank"]) == ("nccl_remote_error", 2, 3)
    assert cause["first_response"] == "find_cause"
    assert cause["text"].startswith("[rank3]: RuntimeError")
    assert json.loads(command(b"ok\n", "--json").stdout.splitlines()[-1])["root_cause"]["label"] == "benign"


def test_an_empty_input_and_a_last_line_without_its_end() -> None:
    assert objects(b"") == []
    assert [item["label"] for item in objects(b"ok\nCUDA out of memory")] == ["benign", "cuda_oom"]
    assert len(objects(b"\n\n\n")) == 3


@given(st.lists(st.integers(1, 60), max_size=40), st.integers(0, len(LINES) - 8))
def test_the_lines_are_the_same_however_the_stream_is_cut(sizes: list[int], start: int) -> None:
    data = "\n".join(LINES[start : start + 8]).encode()
    whole = [line for chunk in read_lines(io.BytesIO(data)) for line in chunk]
    assert [line for chunk in read_lines(Dripping(data, sizes)) for line in chunk] == whole  # type: ignore[arg-type]


def test_for_people_there_is_a_table_and_a_root_cause() -> None:
    lines = [
        f"[rank{rank}]:[E ProcessGroupNCCL.cpp:607] [Rank {rank}] Watchdog caught collective operation timeout"
        for rank in range(511)
    ]
    lines.insert(200, "gpu-9:71:99 [1] CUDA failure 'uncorrectable ECC error encountered'")
    done = command("\n".join([*lines, *BENIGN_LINES[:30]]).encode())
    text = done.stdout.decode()
    assert done.returncode == 0
    assert "512 of them say that something is wrong" in text
    assert "root cause: ecc_uncorrectable on gpu-9 is the cause" in text
    assert "nccl_timeout (511" in text
    assert "asks for:   reset_gpu (gpu-9)" in text


def test_an_ordinary_log_needs_no_table() -> None:
    text = command("\n".join(BENIGN_LINES).encode()).stdout.decode()
    assert text.strip().endswith("0 of them say that something is wrong")


def test_a_terminal_escape_in_a_line_does_not_reach_the_terminal() -> None:
    done = command(b"\x1b]0;owned\x07 Segmentation fault (core dumped) \x1b[2J\n")
    assert b"\x1b" not in done.stdout
    assert b"segfault" in done.stdout


@pytest.mark.parametrize(
    "data",
    [
        b"a" * 10_000_000 + b"\nCUDA out of memory",
        b"nan in loss " * 800_000 + b"\nCUDA out of memory",
        b"\x00\xff\xfe\x80" * 100_000 + b"\nCUDA out of memory",
        b"\x1b[31m\x1b[" * 200_000 + b"\nCUDA out of memory",
        b"\r" * 1_000_000 + b"\nCUDA out of memory",
        b"{" * 1_000_000 + b"\nCUDA out of memory",
        b'{"log": "' + b"x" * 1_000_000 + b'"}\nCUDA out of memory',
        b"(a+)+$" * 100_000 + b"!\nCUDA out of memory",
    ],
    ids=["long", "literal", "binary", "ansi", "returns", "braces", "json", "bomb"],
)
def test_a_hostile_line_is_one_line_and_the_next_one_is_read(data: bytes) -> None:
    assert [item["label"] for item in objects(data)][1:] == ["cuda_oom"]


def test_what_is_kept_of_a_line_without_an_end_is_bounded() -> None:
    def endless() -> Iterator[bytes]:
        for _ in range(200):
            yield b"x" * CHUNK_BYTES
        yield b" CUDA out of memory"

    pieces = endless()

    class Endless(io.RawIOBase):
        def read1(self, _: int) -> bytes:
            return next(pieces, b"")

    (chunk,) = list(read_lines(Endless()))  # type: ignore[arg-type]
    assert len(chunk) == 1
    assert len(chunk[0]) <= MAX_LINE_BYTES
    assert chunk[0].endswith(b"CUDA out of memory")


def test_the_table_is_bounded_whoever_speaks() -> None:
    lines = [
        f"host{number}:1:2 [0] NCCL WARN NET/IB : Got completion with status=12".encode() for number in range(5000)
    ]
    text = summary(iter([lines]), Style())
    assert "ib_network_error (rule" not in text
    assert "5000" in text
    assert len(text) < 4000


def test_a_reader_who_has_seen_enough_is_no_error() -> None:
    writer = subprocess.Popen(
        [sys.executable, "-m", "rekindle.cli.main", "classify", "--json"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert writer.stdin is not None
    assert writer.stdout is not None
    assert writer.stderr is not None
    writer.stdin.write(b"ok\n")
    writer.stdin.flush()
    assert writer.stdout.readline().startswith(b'{"line": 1')
    writer.stdout.close()
    writer.stdin.write(b"ok\n" * 1000)
    writer.stdin.close()
    assert writer.wait(timeout=120) == 0
    assert writer.stderr.read() == b""
    writer.stderr.close()


def test_an_echo_said_once_early_and_often_late_does_not_hide_the_cause(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is counted together lies together in the log: each stretch has its own place in the order."""
    echo, cause = "ncclRemoteError: A call failed", "NVRM: Xid (PCI:0:2): 79, GPU has fallen off the bus."
    path = tmp_path / "run.log"
    path.write_text("\n".join([echo, *["ok"] * 5000, cause, *[echo] * 8]) + "\n")
    assert main(["classify", str(path)]) == 0
    out = capsys.readouterr().out
    assert "xid_79_fallen_off_bus is the cause" in out
    assert "its echoes: nccl_remote_error (8)" in out
    assert "another cause, by its time: nccl_remote_error (1)" in out
