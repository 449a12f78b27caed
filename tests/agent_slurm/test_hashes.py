"""Secrets are compared by a keyed hash: its key stays on the head node, and no value can be told by a hash alone."""

from __future__ import annotations

import hashlib
import struct

from rekindle.slurm_agent.copies.hashes import ValueHashes, surely_differ
from rekindle.slurm_agent.copies.kept import KEY
from tests.agent_slurm.conftest import Head
from tests.agent_slurm.test_submit import ME, order_of


def environment(head: Head, job: int, **variables: str) -> None:
    folder = head.fake.folder / "state" / f"hash.{job % 10}" / f"job.{job}"
    folder.mkdir(parents=True, exist_ok=True)
    pairs = [f"{name}={given}".encode() + b"\0" for name, given in variables.items()]
    (folder / "environment").write_bytes(struct.pack("<I", len(pairs)) + b"".join(pairs))


def test_a_secret_is_kept_by_its_keyed_hash_alone_and_another_value_is_told(head: Head) -> None:
    environment(head, 7, HF_TOKEN="hf_1", PATH="/bin", _SLURM_SPANK_OPTION_pyxis_container_image="img")
    head.fake.jobs([{"JobID": "7", "UserName": ME, "Comment": "rekindle", "Command": "(null)"}])
    head.look()
    spec = head.watch.spec(head.doc("slurm.ml.7").spec or "")
    assert spec is not None
    assert spec.left_out == ("HF_TOKEN",)
    kept = spec.to_json()
    assert (head.fake.folder / "kept" / "specs" / KEY).exists()
    for given in ("hf_1", "img"):
        assert hashlib.sha256(given.encode()).hexdigest()[:16].encode() not in kept
    assert b"hf_1" not in kept
    order = order_of()
    for given, told in (("hf_1", ()), ("hf_2", ("HF_TOKEN",))):
        environment(head, 8, HF_TOKEN=given)
        assert head.commands.other_secrets(8, spec, order) == told
    head.start()
    assert head.commands.other_secrets(8, spec, order) == ("HF_TOKEN",), "the key is the same after a restart"


def test_another_head_nodes_hash_is_no_difference() -> None:
    ours, theirs = ValueHashes(lambda: b"ours"), ValueHashes(lambda: b"theirs")
    assert ours.of("A", "x") != theirs.of("A", "x")
    assert not surely_differ(ours.of("A", "x"), theirs.of("A", "y"))
    assert surely_differ(ours.of("A", "x"), ours.of("A", "y"))
    assert ours.of("A", "x") != ours.of("B", "x")
    assert surely_differ(ours.of("A", "x"), "")
