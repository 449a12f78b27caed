"""How fast log lines are classified: lines a second on one core, and the share of them that is looked at closely.

The lines are made here, in the shapes that trainers print (numbers differ from line to line); start-up lines and
free text, of which no two have one shape, are measured apart.
"""

from __future__ import annotations

import io
import random
import time
from collections.abc import Callable

from rekindle.cli.tools.classify import print_objects, read_lines
from rekindle.signatures import Classifier
from rekindle.signatures.classifier import HEAD_BYTES, TAIL_BYTES
from rekindle.signatures.rule import skeleton

LINES = 100_000
PASSES = 3


def megatron(pick: random.Random, step: int) -> str:
    """Megatron-LM's interval line."""
    return (
        f" [default7]: iteration {step:8d}/  250000 | consumed samples: {step * 2048:12d} | consumed tokens: "
        f"{step * 4194304:14d} | elapsed time per iteration (s): {pick.uniform(90, 110):.2f} | learning rate: "
        f"{pick.uniform(1, 9):.3f}E-05 | global batch size:  2048 | "
        f"lm loss: {pick.uniform(2, 3):.6f}E+00 | loss scale: 1.0 "
        f"| grad norm: {pick.random():.3f} | num zeros: 0.0 | number of skipped iterations:   0 | number of nan "
        f"iterations:   0 | samples per second: {pick.uniform(18, 20):.3f} | TFLOPs: {pick.uniform(140, 150):.2f} |"
    )


def trainer(pick: random.Random, step: int) -> str:
    """Hugging Face Trainer's dict."""
    return (
        f"{{'loss': {pick.uniform(2, 3):.4f}, 'grad_norm': {pick.random():.6f}, 'learning_rate': "
        f"{pick.uniform(1, 9):.14f}e-05, 'epoch': {step / 5000:.2f}}}"
    )


def progress(pick: random.Random, step: int) -> str:
    """A progress bar."""
    done = step % 100
    return (
        f"Epoch {step // 100}: {done:3d}%|{'#' * (done // 10)}{' ' * (10 - done // 10)}| {done}/100 "
        f"[00:{done:02d}<01:{99 - done:02d}, {pick.uniform(1, 3):.2f}it/s, loss={pick.uniform(2, 3):.3f}, v_num=3]"
    )


def plain(pick: random.Random, step: int) -> str:
    """A loop's own print."""
    return f"step {step}: train loss {pick.uniform(2, 3):.4f}, {pick.uniform(80, 120):.1f} ms, {step % 9}k tok/s"


def nccl(pick: random.Random, step: int) -> str:
    """NCCL's start-up lines, which hold words that the rules know."""
    host = f"ip-10-0-{step % 7}-{pick.randint(1, 254)}"
    return pick.choice(
        (
            f"{host}:88:141 [{step % 8}] NCCL INFO Channel {step % 24:02d}/24 :    0   1   2   3   4   5   6   7",
            f"{host}:88:141 [{step % 8}] NCCL INFO NCCL_IB_TIMEOUT set by environment to 22.",
            f"{host}:88:141 [{step % 8}] NCCL INFO Trees [0] {step % 8}/8/-1->0->-1 [1] 1/-1/-1->0->9",
            f"{host}:88:141 [{step % 8}] NCCL INFO NET/OFI Selected Provider is efa (found 4 nics)",
        )
    )


_TEXT = """the model writes a sample of text and prints it so that a person can see how far it has come while it
learns from books pages letters notes and many other things that people once wrote down for each other to read"""
_WORDS = _TEXT.split()


def prose(pick: random.Random, _: int) -> str:
    """Generated samples: no two lines have one shape."""
    return " ".join(pick.choices(_WORDS, k=24))


def mixed(pick: random.Random, step: int) -> str:
    """What a log mostly is."""
    return pick.choices((megatron, trainer, progress, plain, nccl, prose), weights=(30, 30, 20, 15, 3, 2))[0](
        pick, step
    )


def made(make: Callable[[random.Random, int], str], count: int = LINES) -> list[bytes]:
    """That many lines of one kind, the same ones every time."""
    pick = random.Random(11)
    return [make(pick, step).encode() for step in range(count)]


def rate(lines: list[bytes]) -> tuple[float, float]:
    """Lines a second (best of PASSES), and the share that passes the prefilter."""
    best = 0.0
    for _ in range(PASSES):
        classify = Classifier().classify
        began = time.process_time()
        for line in lines:
            classify(line)
        best = max(best, len(lines) / (time.process_time() - began))
    find = Classifier()._prefilter.candidates
    passed = sum(1 for line in lines if find(skeleton(line[: HEAD_BYTES + TAIL_BYTES])))
    return best, passed / len(lines)


def command_rate(lines: list[bytes]) -> float:
    """Lines a second through the whole command: bytes in, JSON out."""
    stream, out = io.BytesIO(b"\n".join(lines)), io.StringIO()
    began = time.process_time()
    print_objects(read_lines(stream), out)
    return len(lines) / (time.process_time() - began)


def main() -> None:
    """Print the table."""
    print(f"{'lines':24} {'bytes each':>10} {'lines/s/core':>13} {'looked at closely':>18}")
    for make in (mixed, megatron, trainer, progress, plain, nccl, prose):
        lines = made(make)
        speed, share = rate(lines)
        print(f"{make.__name__:24} {sum(map(len, lines)) / len(lines):10.0f} {speed:13,.0f} {share:17.1%}")
    print(f"{'mixed, the whole command':24} {'':10} {command_rate(made(mixed)):13,.0f}")
    for name, line in (("one word of 10 MB", b"a" * 10_000_000), ("10 MB of a literal", b"nan in loss " * 833_333)):
        began = time.process_time()
        Classifier().classify(line)
        print(f"{name:24} {len(line):10d} {(time.process_time() - began) * 1000:10.1f} ms")


if __name__ == "__main__":
    main()
