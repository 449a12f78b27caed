"""By rule: a text for each alternative of its pattern that neither its row nor the other corpora show alone."""

from __future__ import annotations

ALTERNATIVES: dict[str, list[str]] = {
    "gsp_timeout": [
        "NVRM: _kgspLogXid119: kgspHealthCheck timed out on GPU 3",
    ],
    "fallen_off_bus": [
        "NVRM: GPU 0000:44:00.0 fell off the bus",
        "cluster monitor: GPU lost from the bus on node 7",
    ],
    "host_memory_uncorrected": [
        "mce: Killing python:9190 due to hardware memory corruption",
        "{3}[Hardware Error]: section: uncorrectable",
    ],
    "row_remap_recorded": [
        "nvidia: row remapping event on GPU 2",
    ],
    "amdgpu_reset": [
        "amdgpu 0000:c1:00.0: amdgpu: GPU hang detected",
    ],
    "amdgpu_ras": [
        "amdgpu 0000:c1:00.0: amdgpu: RAS: uncorrectable in block umc",
    ],
    "neuron_terminate": [
        "NRT: Please terminate this instance to prevent future impact",
    ],
    "neuron_queue_overflow": [
        "ERROR NRT:nrt_execute failed with status=1204",
    ],
    "neuron_compiler_killed": [
        "[F137] neuron-cc terminated",
        "neuronx-cc was forcibly killed",
    ],
    "fabric_manager": [
        "aborting fabric manager start on this node",
    ],
    "nvlink": [
        "uncorrectable nvlink on GPU 3",
    ],
    "job_credential": [
        "slurmd: error: Invalid job credential from 10.0.0.1",
        "slurmd: credential from munge is expired",
    ],
    "execve": [
        "slurmstepd: error: couldn't chdir to `/fsx/gone': No such file or directory: going to /tmp instead",
    ],
    "kernel_panic": [
        "---[ end Kernel panic",
    ],
    "hard_lockup": [
        "NMI watchdog: hard LOCKUP on cpu 12",
        "watchdog: CPU 12 detected hard LOCKUP",
    ],
    "context_switch_timeout": [
        "CUDA context creation timeout on device 3",
    ],
    "launch_timeout": [
        "CUDA_ERROR_LAUNCH_TIMEOUT",
    ],
    "device_assert": [
        "CUDA_ERROR_ASSERT",
        "CUDA_KERNEL_ASSERT (idx < n) fails",
    ],
    "efa_setup": [
        "aws-ofi-nccl initialization failed",
        "NET/OFI unexpected number of remote rails for rank 3",
    ],
    "efa_provider": [
        "My EFA addr: fi_addr 10.0.0.1",
        "peer fi_addr_efa://[fe80::1]:1:2",
    ],
    "ofi_transfer": [
        "fi_tsend failed with -12",
        "libfabric:812:efa:cq: completion error on endpoint 3",
    ],
    "efa_device": [
        "failed to open EFA",
        "no usable EFA device",
    ],
    "ib_completion": [
        "status IBV_WC_RETRY_EXC_ERR",
    ],
    "port_module": [
        "mlx5_core 0000:05:00.0: Port module event[error]: module 0",
        "mlx5_core: Port module event: module 0, High Temperature",
    ],
    "port_transmit": [
        "ib0: transmit timeout: latency 1320 msecs",
    ],
    "mount_failed": [
        "mount of fs-1.fsx on /fsx failed",
    ],
    "raid_core": [
        "md: kicking non-fresh sdb1 from array!",
        "md0: sdb1 is faulty",
    ],
    "ext4": [
        "This should not happen!!  Data will be lost",
    ],
    "other_file_system": [
        "Pool 'tank' has encountered an uncorrectable I/O failure and has been suspended.",
        "bcachefs (sdb): emergency read only",
    ],
    "nfs_server_silent": [
        "nfs: server 10.0.0.9 not responding",
        "server 10.0.0.9 not responding, still trying",
    ],
    "block_layer": [
        "attempt to access beyond end of device",
    ],
    "scsi": [
        "device offline error, dev sdb, sector 2048",
    ],
    "ata": [
        "ata3: SError: { PHYRdyChg }",
    ],
    "time_limit": [
        "exceeded max runtime",
    ],
    "child_failed": [
        "ExecuteUserScriptError:",
        "torch.multiprocessing.spawn.ProcessExitedException: process 3",
    ],
    "python_exception": [
        "StopIteration",
        "SystemExit: 2",
    ],
    "row_remap_failed": [
        "nvidia-smi: failed: row remap of bank 3",
        "dynamic page retirement error",
        "unable to retire page 0x123",
    ],
    "row_remap_pending": [
        "Remapped Rows\n    Correctable Error : 1\n    Pending : Yes",
        "pending row remap on GPU 1",
    ],
    "neuron_reboot": [
        "NRT_EXEC_HW_ERR_REPAIRABLE_HBM_UE",
        "please reload the neuron driver or reboot the instance",
        "nrt_execute returned status=1205",
    ],
    "neuron_hardware": [
        "NRT_EXEC_UNIT_UNRECOVERABLE",
        "NRT_HW_ERROR",
        "uncorrectable HBM on ND 3",
        "SRAM uncorrectable on ND 3",
    ],
    "neuron_missing": [
        "neuron devices not found",
        "open /dev/neuron0: No such device",
        "Unable to determine Neuron Driver version",
    ],
    "neuron_memory": [
        "TDRV: failed to allocate 2 GB of device space",
        "out of device DRAM",
        "NCC_EOOM001",
    ],
    "neuron_execution_timeout": [
        "execution timeout (30000 ms) on Neuron Device 3",
        "TDRV: exec timed out on ND 3",
        "NRT_TIMEOUT",
        "missing infer_status notification",
    ],
    "capacity": [
        "Unable to provision requested compute capacity",
        "InsufficientInstanceCapacity",
        "We currently do not have sufficient p5.48xlarge capacity",
    ],
    "illegal_memory": [
        "NCCL WARN Cuda failure 700",
        "cuda: operation not supported on global/shared address space",
        "cuda error: invalid address space",
    ],
    "dataloader": [
        "workers are out of shared memory",
        "DataLoader crash in epoch 3",
        "dataset worker 3 died",
    ],
    "loss_scale_floor": [
        "loss scaler is at its minimum",
        "cannot decrease scale anymore",
        "loss scale has hit the floor",
        "loss scale is too small",
    ],
    "gloo_timeout": [
        "monitoredBarrier timed out",
        "rank 3 failed to reach the barrier",
        "collective all_reduce timed out waiting",
    ],
    "killed_9": [
        "received SIGKILL",
        "ended on signal 9",
        "exited with code 137",
        "Killed",
    ],
    "exit_code": [
        "worker group failed",
        "exits with return code = 3",
    ],
}
