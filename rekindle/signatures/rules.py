"""All rules in the order in which they are tried: on one excerpt the first that matches speaks.

A cause stands before its echoes (an ECC error before the NCCL time-out it leads to, CUDA's own words before NCCL's),
and what names a thing before what names a kind of thing (CUDA out of memory before any CUDA error, any of those before
"a Python exception").
"""

from __future__ import annotations

from typing import Final

from rekindle.signatures.harmless import HARMLESS
from rekindle.signatures.rule import Harmless, Rule
from rekindle.signatures.rules_disks import ARRAYS, DISKS, FILE_SYSTEMS
from rekindle.signatures.rules_gpu import AMD, CUDA, DEVICE, FABRIC
from rekindle.signatures.rules_host import MEMORY, STORAGE
from rekindle.signatures.rules_kernel import PORTS, STALLS
from rekindle.signatures.rules_network import ECHOES, NETWORK
from rekindle.signatures.rules_neuron import NEURON
from rekindle.signatures.rules_platform import PLATFORM
from rekindle.signatures.rules_run import ENDS, NUMBERS, PYTHON

__all__ = ["HARDWARE", "HARMLESS", "OTHERS", "RULES", "Harmless", "Rule"]

HARDWARE: Final[tuple[Rule, ...]] = (*DEVICE, *AMD, *NEURON, *FABRIC)
# Between these two stand the Xid records of applications (xids.py).
_GROUPS: Final = (
    CUDA,
    NETWORK,
    PORTS,
    ECHOES,
    MEMORY,
    STORAGE,
    ARRAYS,
    FILE_SYSTEMS,
    DISKS,
    STALLS,
    NUMBERS,
    ENDS,
    PYTHON,
    PLATFORM,
)
_BY_NAME: Final = {rule.name: rule for group in _GROUPS for rule in group}
OTHERS: Final[tuple[Rule, ...]] = tuple(
    _BY_NAME[name]
    for name in (
        "capacity",
        "internal_server_error",
        "cluster_repair",
        "job_credential",
        "topology",
        "execve",
        "kernel_panic",
        "hard_lockup",
        "context_switch_timeout",
        "launch_timeout",
        "device_assert",
        "illegal_memory",
        "out_of_memory",
        "efa_setup",
        "efa_provider",
        "ofi_transfer",
        "ofi_warn",
        "efa_device",
        "ib_completion",
        "port_warning",
        "port_module",
        "port_transmit",
        "port_firmware",
        "ib_device",
        "host_oom",
        "slurm_node_fail",
        "task_launch",
        "image_pull",
        "disk_full",
        "mount_failed",
        "dataloader",
        "system_not_ready",
        "cuda_unknown",
        "raid_level",
        "raid_core",
        "raid_monitor",
        "read_only_file_system",
        "ext4",
        "journal",
        "xfs",
        "btrfs",
        "other_file_system",
        "network_file_system",
        "file_system_record",
        "nvme",
        "nfs_server_silent",
        "nfs_client",
        "lustre_network",
        "block_layer",
        "scsi",
        "ata",
        "device_mapper",
        "smart",
        "checkpoint_corrupt",
        "storage_io",
        "soft_lockup",
        "hung_task",
        "hung_lustre_thread",
        "loss_scale_floor",
        "loss_scale_zero",
        "nan_iterations",
        "nan_loss",
        "nccl_watchdog",
        "gloo_timeout",
        "store",
        "store_peer",
        "nccl_remote",
        "slurm_controller",
        "time_limit",
        "refused_submission",
        "client_error",
        "ended_by_sigterm",
        "preemption",
        "step_task_failure",
        "step_cancelled",
        "user_cancelled",
        "page_allocation",
        "killed_9",
        "aborted",
        "segfault",
        "child_failed",
        "python_exception",
        "traceback",
        "exit_code",
    )
)
RULES: Final[tuple[Rule, ...]] = (*HARDWARE, *OTHERS)
