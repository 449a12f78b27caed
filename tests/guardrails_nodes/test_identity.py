"""A node says whose hardware it is, Slurm keeps that, and the agent believes it of no other instance."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from chalicelib.domain.model.hardware_ledger import marks_of
from rekindle.protocol.cluster.documents import NodeFacts
from rekindle.slurm_agent.base.identity import identity
from rekindle.slurm_agent.reading.nodemap import NodePlacement, Resources
from rekindle.slurm_agent.reading.nodes import Node, parse_nodes
from rekindle.slurm_agent.watching.node_facts import facts_of

GPU = "GPU-5c89b0a6-2d1e-6a23-9a4b-0123456789ab"
OTHER = "GPU-5c89b0a6-2d1e-6a23-9a4b-0123456789ac"
INSTANCE = "i-0af01c0123456789a"


def machine(root: Path, *, gpus: tuple[str, ...] = (), tag: str = "", serial: str = "") -> Path:
    for number, gpu in enumerate(gpus):
        folder = root / f"proc/driver/nvidia/gpus/0000:{number:02x}:00.0"
        folder.mkdir(parents=True)
        (folder / "information").write_text(
            f"Model: \t\t NVIDIA H100 80GB HBM3\nIRQ:   \t\t 10\nGPU UUID: \t {gpu}\nVideo BIOS: \t 96.00.99.00.01\n"
        )
    dmi = root / "sys/class/dmi/id"
    dmi.mkdir(parents=True)
    (dmi / "board_asset_tag").write_text(f"{tag}\n")
    (dmi / "product_serial").write_text(f"{serial}\n")
    return root


def seen(extra: str, instance_id: str | None = None) -> NodeFacts:
    """What the agent makes of a node whose Extra= is this."""
    (node,) = parse_nodes(f"NodeName=n1 NodeAddr=10.1.0.7 State=IDLE Extra={extra}\n")
    assert isinstance(node, Node)
    places = {"n1": NodePlacement(instance_id=instance_id, group="gpu")} if instance_id else {}
    (facts,) = facts_of([node], [], Resources(by_name=places), lambda _: True, datetime.now(UTC))
    return facts


def test_a_node_of_ec2_names_its_instance_and_its_gpus_and_no_serial_number_of_the_instance(tmp_path: Path) -> None:
    ec2 = machine(tmp_path, gpus=(GPU, OTHER), tag=INSTANCE, serial="ec2e1916-9099-7caf-fd21-012345abcdef")
    word = identity(ec2)
    assert word == f"instance={INSTANCE},gpus={GPU},{OTHER}"
    facts = seen(word, INSTANCE)
    assert (facts.gpus, facts.serial) == ((GPU, OTHER), None)


def test_a_machine_of_ones_own_names_its_serial_number(tmp_path: Path) -> None:
    word = identity(machine(tmp_path, gpus=(GPU,), tag="Default string", serial="J10F7TC"))
    assert word == f"serial=J10F7TC,gpus={GPU}"
    facts = seen(word)
    assert (facts.gpus, facts.serial) == ((GPU,), "J10F7TC")
    assert marks_of(gpus=facts.gpus, serial=facts.serial) == (f"gpu:{GPU}", "serial:J10F7TC")


def test_what_cannot_be_read_is_left_out(tmp_path: Path) -> None:
    assert identity(tmp_path) == ""
    broken = machine(tmp_path / "m", gpus=("GPU-????????-????", "N/A"), tag="i-x", serial="a b\nc")
    assert identity(broken) == ""


@pytest.mark.parametrize(
    "extra", [f"gpus={GPU}", f"instance=i-0bf01c0123456789a,gpus={GPU}", f"xinstance={INSTANCE},{GPU}"]
)
def test_what_another_instance_has_written_is_not_believed(extra: str) -> None:
    """Extra= outlives the instance: after a replacement it would make the new machine out to be the old one."""
    facts = seen(f"{extra},serial=J10F7TC", INSTANCE)
    assert (facts.gpus, facts.serial) == ((), None)


def test_the_facts_keep_their_marks_on_the_whiteboard() -> None:
    facts = seen(f"instance={INSTANCE},serial=J10F7TC,gpus={GPU}", INSTANCE)
    assert NodeFacts.from_wire(facts.to_wire()) == facts
    before = {name: value for name, value in facts.to_wire().items() if name != "serial"}
    assert NodeFacts.from_wire(before).serial is None  # an agent of before
