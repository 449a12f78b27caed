"""The one vocabulary of nodes' states, held against what Slurm's own library answers in each version."""

from __future__ import annotations

from pathlib import Path

import pytest

from rekindle.protocol.cluster.node_states import (
    WORDS,
    NodeStanding,
    StateMeaning,
    Writer,
    held_by,
    is_ours,
    meanings_of,
    parts_of,
    read_state,
    standing_of,
    words_of,
    writer_of,
)
from rekindle.slurm_agent.reading.nodes import parse_nodes
from tests.agent_slurm.node_words import RECORDED, recorded

VERSIONS = sorted(path.name.partition("-")[0] for path in RECORDED.glob("*-node-states.json"))


def test_five_versions_were_asked() -> None:
    assert VERSIONS == ["22.05", "23.11", "24.11", "25.11", "26.05"]


@pytest.mark.parametrize("version", VERSIONS)
def test_the_table_has_just_the_words_of_every_version(version: str) -> None:
    asked = recorded(version)
    has = {
        word.word: word.is_base
        for word in WORDS.values()
        if (not word.since or word.since <= version) and (not word.until or version <= word.until)
    }
    bases = {word.lower(): True for word in asked["bases"]}
    assert has == bases | {word.lower(): False for word in asked["flags"].values()}


@pytest.mark.parametrize("version", VERSIONS)
def test_every_base_with_every_flag_is_read_as_it_is(version: str) -> None:
    asked = recorded(version)
    for base in asked["bases"]:
        for flag in asked["flags"].values():
            assert read_state(f"{base}+{flag}") == (base.lower(), (flag.lower(),))


@pytest.mark.parametrize("version", VERSIONS)
def test_what_sinfo_folds_into_one_word_says_no_more_than_the_whole_does(version: str) -> None:
    for whole, short in recorded(version)["short"].items():
        if "?" in short:
            continue
        base, flags = read_state(short)
        says, of_whole = meanings_of(words_of(base, flags)), meanings_of(words_of(*read_state(whole)))
        assert says - {StateMeaning.WORKS, StateMeaning.NOTHING} <= of_whole, (whole, short)


def test_every_word_has_a_source_and_a_meaning() -> None:
    assert all(word.source.startswith("NODE_") and word.says in StateMeaning for word in WORDS.values())
    assert {word.says for word in WORDS.values()} == set(StateMeaning)


@pytest.mark.parametrize(
    ("reason", "writers"),
    [
        ("", []),
        ("Not responding", [Writer.SLURM]),
        ("Not responding to mails, bob", [Writer.OTHER]),
        ("bob: bad fan : Not responding", [Writer.OTHER, Writer.SLURM]),
        ("rekindle:inc-2 : reboot issued : reboot complete", [Writer.US, Writer.SLURM, Writer.SLURM]),
        ("gres/gpu:h100 count reported lower than configured (7 < 8)", [Writer.HARDWARE]),
        ("Action:Replace : Not responding", [Writer.HYPERPOD, Writer.SLURM]),
        ("  : Not responding", [Writer.SLURM]),
        ("not Action:Replace", [Writer.OTHER]),
    ],
)
def test_who_wrote_a_reason(reason: str, writers: list[Writer]) -> None:
    assert [writer_of(part) for part in parts_of(reason)] == writers


@pytest.mark.parametrize(
    ("state", "flags", "reason", "held"),
    [
        ("idle", ("drain",), "bob: bad fan", True),
        ("idle", ("drain",), "", True),
        ("idle", ("drain",), "rekindle:inc-1", False),
        ("idle", ("drain", "invalid_reg"), "gres/gpu count reported lower than configured (1 < 2)", False),
        ("idle", ("drain", "invalid_reg"), "bob: x : gres/gpu count reported lower than configured (1 < 2)", True),
        ("down", (), "bob: bad fan", True),
        ("down", (), "Not responding", False),
        ("down", (), "", False),
        ("down", (), "bob: bad fan : Node unexpectedly rebooted", False),
        ("idle", ("fail",), "Action:Replace", False),
        ("idle", ("fail",), "bob: bad fan", True),
        ("idle", (), "bob: bad fan", False),  # from before it was resumed, on versions that keep it
    ],
)
def test_whose_hand_is_on_a_node(state: str, flags: tuple[str, ...], reason: str, held: bool) -> None:
    assert (held_by(state, flags, reason) is not None) is held


def test_ours_is_what_we_wrote_and_slurmctld_alone_has_added_to() -> None:
    assert is_ours("rekindle:inc-1 : Not responding")
    assert not is_ours("rekindle:inc-1 : bob: keep it out")
    assert not is_ours("bob: was rekindle:inc-1")


@pytest.mark.parametrize("path", sorted(RECORDED.glob("*-show-node.txt")), ids=lambda path: path.name)
def test_every_recorded_node_stands_somewhere(path: Path) -> None:
    for node in parse_nodes(path.read_text()):
        standing = standing_of(node.state, node.flags, node.reason)
        assert standing is not NodeStanding.UNKNOWN or node.name == "ip-10-1-0-9"  # its state is a word of nobody's
