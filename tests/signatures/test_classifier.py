"""The engine: precedence, Xids, what the prefilter may leave out, and input that means harm."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rekindle.signatures import BENIGN, Classifier, FaultClass, FirstResponse, Label, classify
from rekindle.signatures.classifier import HEAD_BYTES, TAIL_BYTES
from rekindle.signatures.harmless import HARMLESS
from rekindle.signatures.prefilter import MAX_SHAPES, Prefilter, needs
from rekindle.signatures.rule import skeleton
from rekindle.signatures.rules import RULES
from tests.signatures.corpus_benign import BENIGN_LINES
from tests.signatures.corpus_faults import FAULTS

ALL_LINES = (*BENIGN_LINES, *(text for texts in FAULTS.values() for text in texts))
OF_RULES = Prefilter(RULES, extra=("xid",))


@pytest.mark.parametrize(
    ("text", "label", "fault", "response"),
    [
        ("NVRM: Xid (PCI:0:1): 63, Row Remapper: x", Label.XID_63_64_ROW_REMAP, FaultClass.NODE_HARDWARE, "monitor"),
        ("NVRM: Xid (PCI:0:1): 64, Row Remapper: x", Label.XID_63_64_ROW_REMAP, FaultClass.NODE_HARDWARE, "replace"),
        ("NVRM: Xid (PCI:0:1): 94, Contained", Label.ECC_UNCORRECTABLE, FaultClass.SOFTWARE_CRASH, "restart_app"),
        ("NVRM: Xid (PCI:0:1): 109, x", Label.CUDA_CONTEXT_TIMEOUT, FaultClass.NODE_HARDWARE, "reset_gpu"),
        ("NVRM: Xid (PCI:0:1): 62, x", Label.XID_GPU_FAULT, FaultClass.NODE_HARDWARE, "reset_gpu"),
        ("NVRM: Xid (PCI:0:1): 54, x", Label.XID_GPU_FAULT, FaultClass.NODE_HARDWARE, "replace"),
        ("NVRM: Xid (PCI:0:1): 99, x", Label.XID_APPLICATION_FAULT, FaultClass.SOFTWARE_CRASH, "restart_app"),
        ("NVRM: Xid (PCI:0:1): 43, x", Label.BENIGN, None, "leave_alone"),
        ("NVRM: Xid (PCI:0:1): 999, x", Label.BENIGN, None, "leave_alone"),
    ],
)
def test_an_xid_is_filed_under_a_label_and_keeps_its_own_response(
    text: str, label: Label, fault: FaultClass | None, response: str
) -> None:
    verdict = classify(text)
    assert (verdict.label, verdict.fault, verdict.first_response) == (label, fault, response)


def test_the_most_telling_xid_of_a_text_decides() -> None:
    text = "Xid (PCI:0:1): 45, x\nXid (PCI:0:1): 31, y\nXid (PCI:0:1): 79, z\nXid (PCI:0:1): 43, w"
    assert classify(text).rule == "xid_79"


def test_xid_154s_own_text_wins_over_the_table() -> None:
    record = "NVRM: Xid (PCI:0:1): 154, GPU recovery action changed from 0x0 (None) to {}"
    assert classify(record.format("0x2 (Node Reboot Required)")).first_response is FirstResponse.REBOOT
    both = "NVRM: Xid (PCI:0:1): 31, MMU Fault\n" + record.format("0x1 (GPU Reset Required)")
    verdict = classify(both)
    assert (verdict.label, verdict.first_response) == (Label.XID_31_MMU_FAULT, FirstResponse.RESET_GPU)
    assert verdict.fault is FaultClass.NODE_HARDWARE
    drained = "NVRM: Xid (PCI:0:1): 79, x\n" + record.format("0x3 (Drain P2P)")
    assert classify(drained).first_response is FirstResponse.MONITOR


@pytest.mark.parametrize(
    ("text", "label"),
    [
        ("Watchdog caught collective operation timeout\nCUDA error: uncorrectable ECC error", Label.ECC_UNCORRECTABLE),
        ("Traceback (most recent call last):\n  x\ntorch.OutOfMemoryError: CUDA out of memory.", Label.CUDA_OOM),
        ("KeyError: 'x'\nDataLoader worker (pid 3) exited unexpectedly", Label.DATALOADER_CRASH),
        ("OSError: [Errno 28] No space left on device\nPytorchStreamReader failed", Label.DISK_FULL),
        ("NET/IB : Got completion with status=12\nncclRemoteError: x", Label.IB_NETWORK_ERROR),
        ("loss: nan\nWatchdog caught collective operation timeout", Label.NAN_LOSS),
        ("ncclUnhandledCudaError\nCuda failure 'an illegal memory access was encountered'", Label.CUDA_ILLEGAL_MEMORY),
    ],
)
def test_a_cause_stands_before_its_echo_in_one_excerpt(text: str, label: Label) -> None:
    assert classify(text).label is label


@pytest.mark.parametrize("filter_", [OF_RULES, Prefilter(HARMLESS)], ids=["rules", "harmless"])
def test_the_prefilter_leaves_out_nothing_that_the_plain_search_finds(filter_: Prefilter) -> None:
    for text in ALL_LINES:
        shape = skeleton(text.encode())
        assert filter_.candidates(shape) == filter_.search_all(shape)
        assert filter_.candidates(shape) == filter_.search_all(shape)  # remembered


@given(st.lists(st.sampled_from(sorted({word for line in ALL_LINES for word in line.split()})), max_size=30))
def test_the_prefilter_leaves_out_nothing_of_any_mixture_of_words(words: list[str]) -> None:
    shape = skeleton(" ".join(words).encode())
    assert OF_RULES.candidates(shape) == OF_RULES.search_all(shape)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: str(rule.name))
def test_every_rule_is_a_candidate_for_its_example(rule: object) -> None:
    place = RULES.index(rule)  # type: ignore[arg-type]
    assert place in OF_RULES.candidates(skeleton(RULES[place].example.encode()))


def test_the_order_of_the_lines_changes_no_verdict() -> None:
    shuffled = list(ALL_LINES)
    random.Random(7).shuffle(shuffled)
    first, second = Classifier(), Classifier()
    forward = {text: first.classify(text) for text in ALL_LINES}
    assert {text: second.classify(text) for text in shuffled} == forward


@given(st.one_of(st.text(max_size=400), st.binary(max_size=400)))
def test_anything_has_a_verdict(excerpt: str | bytes) -> None:
    assert classify(excerpt).rule


@given(st.sampled_from(ALL_LINES), st.integers(0, 10_000))
def test_text_and_its_bytes_have_one_verdict_and_cutting_never_raises(text: str, at: int) -> None:
    assert classify(text) == classify(text.encode())
    assert classify(text.encode()[: at % (len(text) + 1)]).rule


ROWS = (*RULES, *HARMLESS)


def test_colours_nuls_and_carriage_returns_do_not_hide_an_error() -> None:
    assert classify("\x1b[31mRuntimeError\x1b[0m: \x1b[1mCUDA\x1b[0m error: out of memory").label is Label.CUDA_OOM
    assert classify("RuntimeError: CUDA out of memory.".encode("utf-16")).label is Label.CUDA_OOM
    assert classify("50%|##| 1/2\rSegmentation fault (core dumped)").label is Label.SEGFAULT
    assert classify(b"\xff\xfe\xf0 CUDA error: device-side assert triggered \xff").label is Label.CUDA_DEVICE_ASSERT


def test_a_json_record_is_read_by_its_message_alone() -> None:
    assert classify('{"log": "KeyError: \'x\'\\n", "stream": "stderr"}').label is Label.PYTHON_EXCEPTION_USER_CODE
    assert classify('{"message": "step 3 done", "logger": "nccl_timeout.ValueError: x"}') == BENIGN
    assert classify('{"message": 7, "note": "CUDA out of memory"}').label is Label.CUDA_OOM
    assert classify('{"message": "' + "x" * 20_000 + ' CUDA out of memory"}').label is Label.CUDA_OOM


def test_of_a_long_excerpt_the_head_and_the_tail_are_read() -> None:
    filler = "a long line " * 2_000_000
    assert classify("CUDA out of memory. " + filler).label is Label.CUDA_OOM
    assert classify(filler + " CUDA out of memory.").label is Label.CUDA_OOM
    assert classify(filler + " CUDA out of memory. " + filler) == BENIGN


def _beginnings() -> list[str]:
    """Of each rule, for each longest word, one of its literals."""
    return sorted({max(literal.split(" "), key=len): literal for rule in ROWS for literal in needs(rule)}.values())


@pytest.mark.parametrize("piece", _beginnings())
def test_no_literal_repeated_makes_a_pattern_run_away(piece: str) -> None:
    """Every pattern meets a text that is nothing but its own beginning. Exponential growth would not end at all."""
    size = HEAD_BYTES + TAIL_BYTES
    for text in (
        piece * (size // len(piece)),
        f"{piece} " * (size // (len(piece) + 1)),
        piece + " " * size,
        piece + "a" * size,
    ):
        assert classify(text[:size]).rule


@pytest.mark.long
def test_what_is_remembered_is_bounded() -> None:
    classifier = Classifier()
    letters = "abcdefghijklmnopqrstuvwxyz"
    pick = random.Random(3)
    for _ in range(MAX_SHAPES * 2):
        classifier.classify("".join(pick.choices(letters, k=12)) + " " + "".join(pick.choices(letters, k=12)))
    assert len(classifier._prefilter._shapes) <= MAX_SHAPES
