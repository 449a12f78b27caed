"""What every run under faults must keep, whatever the fault was. Each check returns what is wrong, as sentences."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rekindle.protocol.keys import hashes_key, manifest_prefix, reply_key
from rekindle.protocol.mailbox import CheckpointReply
from rekindle.protocol.manifests import Hashes, Manifest
from tests.train.launcher import Run
from tests.train.scripts.loop import plain_weight
from tests.train.story import End, Story

HELD_S = 75.0  # far above every bound that the monitor sets itself; a rank that waits for a dead one waits for minutes
# Left open after `finish`: the store's own connection, and in the coupled kinds the groups of the framework's saver,
# which are one connection per rank. At most 32, however many ranks there are, is what docs/monitor.md says.
MAX_DESCRIPTORS = {False: 4, True: 32}
FINISH_S = 40.0  # a run that ends does not wait for ranks that take no part
SLOW_S3_S = 9.0  # start and finish wait 4 s at most, and the machine is busy
MAX_WARNINGS_ALIKE = 2
PEER_IS_GONE = ("Connection closed by peer", "Connection reset by peer")  # gloo's words in a collective


def plain_loss(step: int, digests: Mapping[tuple[int, int], str]) -> float:
    """As scripts/loop.py computes it in `step`, from the weight before it."""
    before = float.fromhex(digests[0, step - 1]) if step > 1 else 0.0
    return (before - 3.0) ** 2 + 0.5


def plain_digests(last: int) -> dict[int, str]:
    """The weights of the plain kinds after each step of an undisturbed run."""
    weight, found = 0.0, {}
    for step in range(1, last + 1):
        weight = plain_weight(step, weight)
        found[step] = weight.hex()
    return found


def judge(story: Story, run: Run, digests: Mapping[tuple[int, int], str]) -> list[str]:
    """digests: (rank, step) → weights of the undisturbed run."""
    mails = Mails(run.home, story.attempt)
    return [
        *_exits(story, run),
        *_ends(story, run),
        *_weights(story, run, digests),
        *_held(story, run),
        *_inner_failures(run),
        *_warnings(story, run),
        *_left(story, run),
        *_replies(story, run, mails),
        *_checkpoints(story, run, mails, digests),
    ]


class Mails:
    """The mailbox as it is at the end, with the manifests of one attempt: a later one may have saved over them."""

    def __init__(self, home: Path, attempt: str) -> None:
        self.home = home
        self.manifests: dict[str, Manifest] = {}
        self.unreadable: list[str] = []
        for path in sorted((home / manifest_prefix()).glob("*.json")):
            try:
                manifest = Manifest.from_json(path.read_bytes())
            except ValueError as err:
                self.unreadable.append(f"{path.name} cannot be read: {err}")
            else:
                if manifest.attempt == attempt:
                    self.manifests[manifest.key] = manifest
        self.requests = sorted(path.stem for path in (home / "rekindle" / "requests").glob("*.json"))

    def hashes(self, manifest: Manifest) -> Mapping[str, str]:
        """Of its files, as far as they were read back before the end."""
        path = self.home / hashes_key(manifest.step, manifest.attempt)
        found = Hashes.from_json(path.read_bytes()) if path.exists() else None
        return found.files if found is not None and found.manifest == manifest.digest else {}

    def reply(self, request: str) -> CheckpointReply | None:
        path = self.home / reply_key(request)
        return CheckpointReply.from_json(path.read_bytes()) if path.exists() else None


def _exits(story: Story, run: Run) -> Iterator[str]:
    for rank in run.ranks:
        status = rank.status
        if rank.number in story.stuck or story.end in (End.ENDED, End.STOPPED_APART):
            continue
        if rank.number in story.dead:
            wanted = story.dead[rank.number]
            if story.is_random and status == 0:
                continue
            if status == 0 if wanted is None else status != wanted:
                yield f"rank {rank.number} ended with {status}, not {'a failure' if wanted is None else wanted}"
        elif (status == 0) != (story.end is not End.DIED):
            yield f"rank {rank.number} ended with {status}, but the run should have {story.end.value}"


def _ends(story: Story, run: Run) -> Iterator[str]:
    byes = {event["rank"]: event["why"] for event in run.receiver.of("bye")}
    if story.end is End.ENDED:
        yield from (f"rank {rank} ended as if nothing had been" for rank, why in byes.items() if why == "finished")
        return
    if story.end is End.STOPPED_APART:
        statuses = {rank.number: rank.status for rank in run.ranks}
        yield from (
            f"rank {rank} stopped, and ended with {statuses[rank]}"
            for rank, why in byes.items()
            if why == End.STOPPED and statuses[rank] != 0
        )
        yield from (
            f"rank {rank} ended as {why!r}, not stopped"
            for rank, why in byes.items()
            if why != End.STOPPED and not any(text in why for text in PEER_IS_GONE)
        )
        if End.STOPPED not in byes.values():
            yield f"no rank stopped: {byes}"
        return
    if story.is_example:
        yield from _ends_of_an_example(story, run, byes)
        return
    others = [rank.number for rank in run.ranks if rank.number not in {*story.dead, *story.stuck}]
    if story.launch == "torchrun":
        others = list(range(run.world))
    if story.end is not End.DIED:
        yield from (
            f"rank {number} ended as {byes.get(number)!r}, not {story.end.value!r}"
            for number in others
            if byes.get(number) != story.end.value
        )
    if story.spec.get("restarts"):
        resumes = {event["resume"] for event in run.receiver.of("started")[-run.world :]}
        if len(resumes) != 1 or None in resumes:
            yield f"after the restart the ranks went on from {resumes}"
    if story.end is End.STOPPED:
        steps = {event["rank"]: event["step"] for event in run.receiver.of("stop")}
        # The ranks agree on a call of `step`; a script that left one out is at another step then.
        is_even = not any(item["do"] == "lost call" for item in story.harm)
        if len({steps.get(number) for number in others}) != 1 and story.saves != 0 and is_even:
            yield f"the ranks stopped at different steps: {steps}"
    if story.reason and not any(story.reason in why for why in byes.values()):
        yield f"no rank gave the reason {story.reason!r}: {byes}"


def _ends_of_an_example(story: Story, run: Run, byes: Mapping[int, str]) -> Iterator[str]:
    found = re.findall(r"(finished|stopped) at step \d+", (run.home / "rank-0.log").read_text(errors="replace"))
    if story.end is not End.DIED and (not found or found[-1] != story.end.value):
        yield f"the example ended as {found and found[-1]!r}, not {story.end.value!r}; {byes}"
    if story.reason and not any(story.reason in why for why in byes.values()):
        yield f"no rank gave the reason {story.reason!r}: {byes}"

    lasts = {event["rank"]: event["at"] for event in run.receiver.of("step")}
    for event in run.receiver.of("bye"):
        if (took_s := event["at"] - lasts.get(event["rank"], event["at"])) > FINISH_S + HELD_S:
            yield f"rank {event['rank']} ended {took_s:.0f} s after its last step"


def _weights(story: Story, run: Run, digests: Mapping[tuple[int, int], str]) -> Iterator[str]:
    """Bit for bit the undisturbed run's, at every step of every rank."""
    poisoned = any(harm["do"] == "poisoned weights" for harm in story.harm)
    for event in run.receiver.of("step"):
        wanted = digests.get((event["rank"], event["step"]))
        if wanted is not None and event["digest"] != wanted and not poisoned:
            yield f"rank {event['rank']} has other weights than the undisturbed run after step {event['step']}"
            return


def _held(story: Story, run: Run) -> Iterator[str]:
    for event in run.receiver.of("step"):
        if event.get("held_s", 0.0) > HELD_S:
            yield f"rank {event['rank']} was held up {event['held_s']:.1f} s in Monitor.step at step {event['step']}"
    for event in run.receiver.of("started"):
        if event["took_s"] > HELD_S:
            yield f"rank {event['rank']} was {event['took_s']:.1f} s in start"
    for event in (*run.receiver.of("started"), *run.receiver.of("finished")) if story.has_slow_s3 else ():
        if event["took_s"] > SLOW_S3_S:
            yield f"rank {event['rank']} {event['e']} after {event['took_s']:.1f} s, with an S3 of 30 s for a call"
    for event in run.receiver.of("finished"):
        if event["took_s"] > FINISH_S:
            yield f"rank {event['rank']} was {event['took_s']:.1f} s in finish"


def _inner_failures(run: Run) -> Iterator[str]:
    """A failure of Rekindle's own code is caught, counted, and a defect all the same."""
    for event in run.receiver.of("finished"):
        inner = {name: count for name, count in event["health"].items() if name.startswith("inner")}
        if inner:
            yield f"rank {event['rank']} counted failures of Rekindle's own code: {inner}"
    for event in run.receiver.of("log"):
        if event["text"].startswith("Rekindle's monitor failed in "):
            yield f"rank {event['rank']} logged: {event['text'][:300]}"


def _warnings(story: Story, run: Run) -> Iterator[str]:
    warnings = [event for event in run.receiver.of("log") if event["level"] != "INFO"]
    for text in story.warns:
        if not any(text in event["text"] for event in warnings):
            yield f"no rank warned {text!r}; warnings: {sorted({event['text'][:120] for event in warnings})}"
    for (pid, text), count in Counter((event["pid"], event["text"]) for event in warnings).items():
        if count > MAX_WARNINGS_ALIKE:
            yield f"process {pid} warned {count} times: {text[:200]}"


def _left(story: Story, run: Run) -> Iterator[str]:
    has_children = any(harm["do"] in ("daemon", "pool") for harm in story.harm)  # their pipes are the script's own
    for event in run.receiver.of("finished"):
        if event["threads"] and not (story.has_slow_s3 or story.leaves_threads):
            yield f"rank {event['rank']} has threads left after finish: {event['threads']}"
        if event["descriptors"] > MAX_DESCRIPTORS[story.is_coupled] and not has_children:
            yield f"rank {event['rank']} has {event['descriptors']} more descriptors after finish than before start"
    if not story.stuck and (left := run.sessions()):
        yield f"processes are left: {left}"


def _replies(story: Story, run: Run, mails: Mails) -> Iterator[str]:
    saved = set()
    for request in mails.requests:
        reply = mails.reply(request)
        if reply is not None and reply.attempt != story.attempt:
            continue  # the attempt before answered it, and was judged
        outcome = "none" if reply is None else reply.outcome.value
        if outcome not in story.replies:
            why = "" if reply is None else f" ({reply.why[:300]})"
            yield f"request {request} was answered {outcome}{why}, not {' or '.join(sorted(story.replies))}"
        if reply is not None and outcome == "saved":
            saved.add(reply.manifest)
            if reply.manifest not in mails.manifests:
                yield f"request {request} was answered saved, and there is no manifest {reply.manifest}"
    emergencies = [manifest for manifest in mails.manifests.values() if manifest.kind.value == "emergency"]
    if story.saves is not None and len(emergencies) != story.saves:
        yield f"{len(emergencies)} emergency manifests, not {story.saves}"


def _checkpoints(story: Story, run: Run, mails: Mails, digests: Mapping[tuple[int, int], str]) -> Iterator[str]:
    yield from mails.unreadable
    poisoned_from = min((harm["step"] for harm in story.harm if harm["do"] == "poisoned weights"), default=None)
    for key, manifest in mails.manifests.items():
        hashes = mails.hashes(manifest)
        for item in manifest.files:
            path = Path(manifest.place_of(item).path)
            if not path.exists() or path.stat().st_size != item.bytes:
                yield f"{key}: {item.path} is missing or has another size"
            elif (sealed := hashes.get(item.path)) and hashlib.sha256(path.read_bytes()).hexdigest() != sealed:
                yield f"{key}: {item.path} has another content than was sealed"
        if manifest.loss is not None and not math.isfinite(manifest.loss):
            yield f"{key} gives a loss of {manifest.loss}"
        if poisoned_from is not None and manifest.step >= poisoned_from:
            if manifest.kind.value == "emergency" or not manifest.poisoned:
                yield f"{key} seals poisoned weights as {manifest.kind.value} with loss {manifest.loss}"
        elif not story.is_coupled:
            loss = plain_loss(manifest.step, digests)
            is_true = story.spec.get("loss", "a tensor") in ("a tensor", "zeroed") and not any(
                harm["do"] == "bad loss" and harm["what"] not in ("nan", "inf") for harm in story.harm
            )
            if is_true and manifest.loss is not None and not math.isclose(manifest.loss, loss, rel_tol=1e-6):
                yield f"{key} gives the loss {manifest.loss}, and it was {loss}"
            yield from (f"{key}: {wrong}" for wrong in _parts(manifest, run.world, digests))
        elif story.kind in ("ddp", "alone"):
            yield from (f"{key}: {wrong}" for wrong in _file(manifest, digests))


def _parts(manifest: Manifest, world: int, digests: Mapping[tuple[int, int], str]) -> Iterator[str]:
    """Every rank's part is there, of the manifest's own step, with the weights of the undisturbed run."""
    for rank in range(world):
        path = Path(manifest.root) / f"rank-{rank}.json"
        if not path.exists():
            yield f"the part of rank {rank} is missing"
            continue
        part: dict[str, Any] = json.loads(path.read_text())
        if (part["step"], part["rank"]) != (manifest.step, rank):
            yield f"the part of rank {rank} is of step {part['step']} and rank {part['rank']}"
        if part["weight"] != digests[rank, manifest.step]:
            yield f"the part of rank {rank} holds other weights than the undisturbed run after step {manifest.step}"
    names = {item.path for item in manifest.files}
    if missing := {f"rank-{rank}.json" for rank in range(world)} - names:
        yield f"the manifest does not list {sorted(missing)}"


def _file(manifest: Manifest, digests: Mapping[tuple[int, int], str]) -> Iterator[str]:
    import torch

    state = torch.load(manifest.root, weights_only=True)
    digest = hashlib.sha256(b"".join(value.contiguous().numpy().tobytes() for value in state["model"].values()))
    if state["step"] != manifest.step:
        yield f"the file is of step {state['step']}"
    if (0, manifest.step) in digests and digest.hexdigest() != digests[0, manifest.step]:
        yield f"the file holds other weights than the undisturbed run after step {manifest.step}"
