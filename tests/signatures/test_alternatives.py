"""Each alternative of a rule's pattern has an example that it alone matches, in its row or in the corpora."""

from __future__ import annotations

import re
from typing import Final

import pytest

from rekindle.signatures.rule import Rule
from rekindle.signatures.rules import RULES
from tests.signatures.test_corpus import EXCERPTS

_PIECE: Final = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|.", re.DOTALL)
# How many alternatives of a rule have none yet. A new rule, and a new alternative, come with their examples.
WITHOUT: Final[dict[str, int]] = {
    "gsp_timeout": 1,
    "fallen_off_bus": 2,
    "ecc_uncorrectable": 6,
    "host_memory_uncorrected": 2,
    "row_remap_recorded": 1,
    "row_remap_failed": 3,
    "row_remap_pending": 3,
    "amdgpu_reset": 1,
    "amdgpu_ras": 1,
    "neuron_terminate": 1,
    "neuron_reboot": 3,
    "neuron_queue_overflow": 1,
    "neuron_collectives": 5,
    "neuron_hardware": 4,
    "neuron_missing": 3,
    "neuron_memory": 3,
    "neuron_compiler_killed": 2,
    "neuron_execution_timeout": 4,
    "fabric_manager": 1,
    "nvlink": 2,
    "capacity": 3,
    "job_credential": 2,
    "execve": 1,
    "kernel_panic": 1,
    "hard_lockup": 2,
    "context_switch_timeout": 1,
    "launch_timeout": 1,
    "device_assert": 2,
    "illegal_memory": 3,
    "out_of_memory": 12,
    "efa_setup": 2,
    "efa_provider": 2,
    "ofi_transfer": 2,
    "efa_device": 2,
    "ib_completion": 2,
    "port_module": 2,
    "port_transmit": 1,
    "ib_device": 6,
    "host_oom": 15,
    "slurm_node_fail": 12,
    "disk_full": 7,
    "mount_failed": 1,
    "dataloader": 4,
    "cuda_unknown": 8,
    "raid_core": 2,
    "ext4": 1,
    "other_file_system": 2,
    "nfs_server_silent": 2,
    "nfs_client": 1,
    "block_layer": 1,
    "scsi": 1,
    "ata": 1,
    "checkpoint_corrupt": 16,
    "storage_io": 24,
    "loss_scale_floor": 4,
    "nan_loss": 9,
    "nccl_watchdog": 10,
    "gloo_timeout": 3,
    "store": 16,
    "nccl_remote": 8,
    "time_limit": 1,
    "ended_by_sigterm": 6,
    "preemption": 15,
    "user_cancelled": 9,
    "killed_9": 4,
    "aborted": 5,
    "segfault": 10,
    "child_failed": 2,
    "python_exception": 2,
    "exit_code": 4,
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
    every = alternatives(rule.pattern)
    assert "|".join(every) == rule.pattern
    compiled = [re.compile(one) for one in every]
    texts = [text if rule.is_cased else text.lower() for text in (rule.example, *(text for _, text in EXCERPTS))]
    matched = [{place for place, one in enumerate(compiled) if one.search(text)} for text in texts]
    without = [one for place, one in enumerate(every) if {place} not in matched]
    assert len(without) == WITHOUT.get(rule.name, 0), without
