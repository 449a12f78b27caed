"""Each alternative of a rule's pattern has an example that it alone matches, in its row or in the corpora."""

from __future__ import annotations

import re
from typing import Final

import pytest

from rekindle.signatures import classify
from rekindle.signatures.rule import Rule
from rekindle.signatures.rules import RULES
from tests.signatures.corpus_alternatives import ALTERNATIVES
from tests.signatures.test_corpus import EXCERPTS

_PIECE: Final = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|.", re.DOTALL)
# How many alternatives of a rule have none yet. A new rule, and a new alternative, come with their examples.
WITHOUT: Final[dict[str, int]] = {
    "ecc_uncorrectable": 6,
    "row_remap_pending": 1,
    "neuron_collectives": 5,
    "nvlink": 1,
    "out_of_memory": 12,
    "ib_completion": 1,
    "ib_device": 6,
    "host_oom": 15,
    "slurm_node_fail": 12,
    "disk_full": 7,
    "dataloader": 1,
    "cuda_unknown": 8,
    "nfs_client": 1,
    "checkpoint_corrupt": 16,
    "storage_io": 24,
    "nan_loss": 9,
    "nccl_watchdog": 10,
    "store": 16,
    "nccl_remote": 8,
    "ended_by_sigterm": 6,
    "preemption": 15,
    "user_cancelled": 9,
    "aborted": 5,
    "segfault": 10,
    "exit_code": 2,
}


def alternatives(pattern: str) -> list[str]:
    """The pattern's parts between the bars outside its groups."""
    found, depth = [""], 0
    for piece in _PIECE.findall(pattern):
        depth += (piece == "(") - (piece == ")")
        if piece == "|" and depth == 0:
            found.append("")
        else:
            found[-1] += piece
    return found


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: str(rule.name))
def test_each_alternative_has_an_example_of_its_own(rule: Rule) -> None:
    own = ALTERNATIVES.get(rule.name, [])
    assert [text for text in own if classify(text).rule != rule.name] == []
    every = alternatives(rule.pattern)
    assert "|".join(every) == rule.pattern
    compiled = [re.compile(one) for one in every]
    texts = [text if rule.is_cased else text.lower() for text in (rule.example, *own, *(text for _, text in EXCERPTS))]
    matched = [{place for place, one in enumerate(compiled) if one.search(text)} for text in texts]
    without = [one for place, one in enumerate(every) if {place} not in matched]
    assert len(without) == WITHOUT.get(rule.name, 0), without
