"""What a log excerpt is about: the closed set of labels, each with its fault and its first response. Data.

`order` says who is whose echo when several findings come together: a finding of a lower class is taken for the cause
of those of a higher one, whatever the clocks say; inside one class the earliest is the cause.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from rekindle.compat import StrEnum
from rekindle.protocol.signals import FaultClass
from rekindle.signatures.responses import FirstResponse


class Label(StrEnum):
    """What one log excerpt says. Closed."""

    BENIGN = "benign"
    NCCL_TIMEOUT = "nccl_timeout"
    NCCL_REMOTE_ERROR = "nccl_remote_error"
    IB_NETWORK_ERROR = "ib_network_error"
    EFA_FAILURE = "efa_failure"
    OFI_NETWORK_ERROR = "ofi_network_error"
    RENDEZVOUS_STORE_FAILURE = "rendezvous_store_failure"
    XID_79_FALLEN_OFF_BUS = "xid_79_fallen_off_bus"
    XID_63_64_ROW_REMAP = "xid_63_64_row_remap"
    XID_119_GSP_TIMEOUT = "xid_119_gsp_timeout"
    XID_31_MMU_FAULT = "xid_31_mmu_fault"
    XID_13_SM_EXCEPTION = "xid_13_sm_exception"
    ECC_UNCORRECTABLE = "ecc_uncorrectable"
    NVLINK_ERROR = "nvlink_error"
    CUDA_OOM = "cuda_oom"
    CUDA_ILLEGAL_MEMORY = "cuda_illegal_memory"
    CUDA_CONTEXT_TIMEOUT = "cuda_context_timeout"
    CUDA_UNKNOWN_ERROR = "cuda_unknown_error"
    CUDA_DEVICE_ASSERT = "cuda_device_assert"
    HOST_OOM_KILLED = "host_oom_killed"
    SEGFAULT = "segfault"
    PYTHON_EXCEPTION_USER_CODE = "python_exception_user_code"
    DATALOADER_CRASH = "dataloader_crash"
    DISK_FULL = "disk_full"
    STORAGE_IO_ERROR = "storage_io_error"
    CHECKPOINT_CORRUPT = "checkpoint_corrupt"
    NAN_LOSS = "nan_loss"
    LOSS_SCALE_COLLAPSE = "loss_scale_collapse"
    SLURM_NODE_FAIL = "slurm_node_fail"
    PREEMPTION = "preemption"
    USER_CANCELLED = "user_cancelled"
    XID_GPU_FAULT = "xid_gpu_fault"
    XID_APPLICATION_FAULT = "xid_application_fault"
    KERNEL_PANIC = "kernel_panic"
    CPU_LOCKUP = "cpu_lockup"
    HUNG_TASK = "hung_task"
    GPU_FAULT = "gpu_fault"
    NEURON_DEVICE_ERROR = "neuron_device_error"
    CAPACITY = "capacity"
    PLATFORM_FAILURE = "platform_failure"
    LAUNCH_FAILED = "launch_failed"
    BAD_REQUEST = "bad_request"


class CausalClass(IntEnum):
    """Who is whose echo, causes first."""

    DEVICE = 1  # the GPU itself: nothing that a program does puts it into this state
    FABRIC = 2  # NVLink: also logged on the healthy peers of a dead device
    NODE = 3  # the machine went away
    RESOURCE = 4  # memory, disk, storage, a checkpoint: what the process stood on
    PROCESS = 5  # numbers, code, orders: the earliest of them ended the run
    NETWORK = 6  # a peer that died looks like a broken link to the others
    ECHO = 7  # one rank's word about another's death
    ENDED = 8  # how others ended a process, or a launcher's word for it: the cause only where nothing else is there
    NEWS = 9  # a record that asks for nothing


@dataclass(frozen=True, slots=True)
class LabelRow:
    """One label: the fault it stands for, what it asks for at first sight, and its place among causes and echoes."""

    label: Label
    fault: FaultClass | None
    response: FirstResponse
    order: CausalClass
    meaning: str
    source: str


_F, _R, _C = FaultClass, FirstResponse, CausalClass

LABELS: dict[Label, LabelRow] = {
    row.label: row
    for row in (
        LabelRow(
            Label.BENIGN,
            None,
            _R.LEAVE_ALONE,
            _C.NEWS,
            "nothing is wrong, or nothing that a rule knows",
            "a line that no rule knows asks for nothing: a wrong action costs more than a missed one",
        ),
        LabelRow(
            Label.XID_79_FALLEN_OFF_BUS,
            _F.NODE_HARDWARE,
            _R.REBOOT,
            _C.DEVICE,
            "the GPU no longer answers on PCIe",
            "NVIDIA Xid catalogue, 79: RESTART_BM; the authorities differ on reboot or replace (xids.py)",
        ),
        LabelRow(
            Label.ECC_UNCORRECTABLE,
            _F.NODE_HARDWARE,
            _R.RESET_GPU,
            _C.DEVICE,
            "GPU (or host) memory returned data that ECC could not correct",
            "NVIDIA Xid catalogue, 48, 95, 140: RESET_GPU; CUDA cudaErrorECCUncorrectable",
        ),
        LabelRow(
            Label.XID_119_GSP_TIMEOUT,
            _F.NODE_HARDWARE,
            _R.RESET_GPU,
            _C.DEVICE,
            "the GPU's system processor does not answer the driver",
            "NVIDIA Xid catalogue, 119 and 120: RESET_GPU",
        ),
        LabelRow(
            Label.XID_63_64_ROW_REMAP,
            _F.NODE_HARDWARE,
            _R.REPLACE,
            _C.DEVICE,
            "a memory row was remapped (63: recorded, monitor) or could not be (64: replace)",
            "NVIDIA GPU memory error management guide: a remapping failure is an RMA criterion",
        ),
        LabelRow(
            Label.XID_GPU_FAULT,
            _F.NODE_HARDWARE,
            _R.RESET_GPU,
            _C.DEVICE,
            "another Xid that takes a reset of the GPU, a reboot or a replacement; the code's own row says which",
            "NVIDIA Xid catalogue, the codes with a recovery of the device (xids.py)",
        ),
        LabelRow(
            Label.GPU_FAULT,
            _F.NODE_HARDWARE,
            _R.RESET_GPU,
            _C.DEVICE,
            "the driver reset an AMD GPU that hung, or found its memory in error",
            "Linux drivers/gpu/drm/amd/amdgpu; ROCm ROCR-Runtime",
        ),
        LabelRow(
            Label.NEURON_DEVICE_ERROR,
            _F.NODE_HARDWARE,
            _R.REPLACE,
            _C.DEVICE,
            "a Trainium or Inferentia device failed; the kernel's own line names the remedy",
            "AWS Neuron documentation, neuron-runtime/nrt-troubleshoot, hardware errors",
        ),
        LabelRow(
            Label.NVLINK_ERROR,
            _F.NODE_HARDWARE,
            _R.REBOOT,
            _C.FABRIC,
            "an NVLink or NVSwitch error; the node that logs it may be the victim of a dead peer",
            "NVIDIA Xid catalogue, 74 and 144-150; Fabric Manager guide, SXid",
        ),
        LabelRow(
            Label.SLURM_NODE_FAIL,
            _F.NODE_LOST,
            _R.REPLACE,
            _C.NODE,
            "the scheduler lost the node",
            "Slurm sbatch manual, job state NODE_FAIL",
        ),
        LabelRow(
            Label.KERNEL_PANIC,
            _F.NODE_LOST,
            _R.REBOOT,
            _C.NODE,
            "the host's kernel has stopped",
            "Linux kernel/panic.c: without panic_timeout the machine stays as it is until it is rebooted",
        ),
        LabelRow(
            Label.CPU_LOCKUP,
            _F.NODE_HARDWARE,
            _R.REBOOT,
            _C.NODE,
            "a CPU no longer takes interrupts (hard), or no longer lets others run (soft: monitor)",
            "Linux Documentation/admin-guide/lockup-watchdogs.rst",
        ),
        LabelRow(
            Label.CAPACITY,
            _F.PLATFORM_ERROR,
            _R.WAIT,
            _C.RESOURCE,
            "the platform has no instances of this kind at the moment",
            "sagemaker-python-sdk exceptions.CapacityError; EC2 InsufficientInstanceCapacity",
        ),
        LabelRow(
            Label.PLATFORM_FAILURE,
            _F.PLATFORM_ERROR,
            _R.RESTART_APP,
            _C.RESOURCE,
            "the platform itself failed, and says so",
            "CreateTrainingJob RetryStrategy; SageMaker developer guide, cluster repair",
        ),
        LabelRow(
            Label.LAUNCH_FAILED,
            _F.PLATFORM_ERROR,
            _R.RESTART_APP,
            _C.RESOURCE,
            "the scheduler could not start the processes",
            "Slurm slurm_errno.c and slurmstepd messages",
        ),
        LabelRow(
            Label.BAD_REQUEST,
            _F.SOFTWARE_CRASH,
            _R.ASK_OWNER,
            _C.PROCESS,
            "the platform refused the input or the configuration: the same request fails the same way",
            "SageMaker FailureReason, prefix ClientError",
        ),
        LabelRow(
            Label.HOST_OOM_KILLED,
            _F.OUT_OF_MEMORY,
            _R.RESTART_APP,
            _C.RESOURCE,
            "the host ran out of memory and a process was killed or refused memory",
            "one resubmission, then the owner; Linux oom_kill.c; Slurm cgroup OOM",
        ),
        LabelRow(
            Label.CUDA_OOM,
            _F.OUT_OF_MEMORY,
            _R.RESTART_APP,
            _C.RESOURCE,
            "GPU memory is used up",
            "one resubmission, then the owner; PyTorch CUDACachingAllocator",
        ),
        LabelRow(
            Label.DISK_FULL,
            _F.SOFTWARE_CRASH,
            _R.ASK_OWNER,
            _C.RESOURCE,
            "no space left on a file system",
            "Linux ENOSPC: the same job fills the same disk again",
        ),
        LabelRow(
            Label.STORAGE_IO_ERROR,
            _F.PLATFORM_ERROR,
            _R.RESTART_APP,
            _C.RESOURCE,
            "a file system or object store failed a read or a write",
            "Linux EIO, ESTALE, EREMOTEIO; Lustre and NFS client messages; S3 error codes",
        ),
        LabelRow(
            Label.CHECKPOINT_CORRUPT,
            _F.BAD_CHECKPOINT,
            _R.OLDER_CHECKPOINT,
            _C.RESOURCE,
            "a checkpoint cannot be read",
            "quarantine, then the next older verified one: docs/playbooks.md",
        ),
        LabelRow(
            Label.NAN_LOSS,
            _F.NON_FINITE,
            _R.ROLL_BACK,
            _C.PROCESS,
            "a loss or gradient is not a number",
            "stop, resume before it; Megatron's rerun state machine",
        ),
        LabelRow(
            Label.LOSS_SCALE_COLLAPSE,
            _F.NON_FINITE,
            _R.ROLL_BACK,
            _C.PROCESS,
            "mixed precision's loss scale has fallen to its floor: every step overflows",
            "DeepSpeed and fairseq loss scalers raise at their minimum",
        ),
        LabelRow(
            Label.XID_31_MMU_FAULT,
            _F.SOFTWARE_CRASH,
            _R.RESTART_APP,
            _C.PROCESS,
            "the GPU's memory unit refused an address; mostly the application",
            "NVIDIA Xid catalogue, 31: RESTART_APP",
        ),
        LabelRow(
            Label.XID_13_SM_EXCEPTION,
            _F.SOFTWARE_CRASH,
            _R.RESTART_APP,
            _C.PROCESS,
            "a GPU engine refused an instruction; mostly the application",
            "NVIDIA Xid catalogue, 13: RESTART_APP",
        ),
        LabelRow(
            Label.XID_APPLICATION_FAULT,
            _F.SOFTWARE_CRASH,
            _R.RESTART_APP,
            _C.PROCESS,
            "another Xid that the application is restarted for",
            "NVIDIA Xid catalogue, the codes in the bucket RESTART_APP (xids.py)",
        ),
        LabelRow(
            Label.CUDA_DEVICE_ASSERT,
            _F.SOFTWARE_CRASH,
            _R.ASK_OWNER,
            _C.PROCESS,
            "a kernel's own assertion failed: an index or label out of range",
            "CUDA cudaErrorAssert; the same data fail the same way",
        ),
        LabelRow(
            Label.CUDA_ILLEGAL_MEMORY,
            _F.SOFTWARE_CRASH,
            _R.RESTART_APP,
            _C.PROCESS,
            "a kernel touched memory that is not its own",
            "CUDA cudaErrorIllegalAddress",
        ),
        LabelRow(
            Label.CUDA_CONTEXT_TIMEOUT,
            _F.SOFTWARE_CRASH,
            _R.RESTART_APP,
            _C.PROCESS,
            "a kernel or a context switch took longer than the driver allows (Xid 109 asks for a reset)",
            "CUDA cudaErrorLaunchTimeout; NVIDIA Xid catalogue, 109",
        ),
        LabelRow(
            Label.CUDA_UNKNOWN_ERROR,
            _F.SOFTWARE_CRASH,
            _R.RESTART_APP,
            _C.PROCESS,
            "CUDA failed and did not say of what; twice on one node: suspect the node",
            "CUDA cudaErrorUnknown, cudaErrorLaunchFailure",
        ),
        LabelRow(
            Label.SEGFAULT,
            _F.SOFTWARE_CRASH,
            _R.RESTART_APP,
            _C.PROCESS,
            "native code crashed",
            "POSIX SIGSEGV, SIGBUS, SIGABRT of the allocator",
        ),
        LabelRow(
            Label.DATALOADER_CRASH,
            _F.SOFTWARE_CRASH,
            _R.RESTART_APP,
            _C.PROCESS,
            "a data loading worker died",
            "PyTorch torch/utils/data/dataloader.py and _utils/signal_handling.py",
        ),
        LabelRow(
            Label.PYTHON_EXCEPTION_USER_CODE,
            _F.SOFTWARE_CRASH,
            _R.RESTART_APP,
            _C.PROCESS,
            "the training script raised; the same signature at the same step twice goes to the owner",
            "Python's traceback format",
        ),
        LabelRow(
            Label.PREEMPTION,
            _F.PLANNED_END,
            _R.SAVE_AND_RESUBMIT,
            _C.PROCESS,
            "the platform takes the machine back, or ends the job with SIGTERM",
            "Slurm preemption; EC2 Spot interruption notice",
        ),
        LabelRow(
            Label.USER_CANCELLED,
            _F.OPERATOR_ORDER,
            _R.LEAVE_ALONE,
            _C.PROCESS,
            "a person ended the run: nothing is to be brought back",
            "POSIX SIGINT; Slurm scancel",
        ),
        LabelRow(
            Label.IB_NETWORK_ERROR,
            _F.PLATFORM_ERROR,
            _R.RESTART_APP,
            _C.NETWORK,
            "InfiniBand or RoCE failed a transfer",
            "NCCL transport/net_ib; libibverbs ibv_wc_status",
        ),
        LabelRow(
            Label.EFA_FAILURE,
            _F.PLATFORM_ERROR,
            _R.RESTART_APP,
            _C.NETWORK,
            "the EFA device or its plugin could not be set up",
            "aws-ofi-nccl set-up messages; libfabric EFA provider; EFA driver",
        ),
        LabelRow(
            Label.OFI_NETWORK_ERROR,
            _F.PLATFORM_ERROR,
            _R.RESTART_APP,
            _C.NETWORK,
            "a transfer over libfabric failed under way",
            "aws-ofi-nccl completion errors (process_err_completion)",
        ),
        LabelRow(
            Label.NCCL_REMOTE_ERROR,
            _F.PLATFORM_ERROR,
            _R.FIND_CAUSE,
            _C.ECHO,
            "a peer went away in mid-collective",
            "NCCL ncclRemoteError, ncclSystemError; gloo pair.cc",
        ),
        LabelRow(
            Label.RENDEZVOUS_STORE_FAILURE,
            _F.PLATFORM_ERROR,
            _R.FIND_CAUSE,
            _C.ECHO,
            "the key-value store or the rendezvous cannot be reached: its host is gone or never came",
            "PyTorch TCPStore, torch.distributed.elastic.rendezvous",
        ),
        LabelRow(
            Label.HUNG_TASK,
            _F.HANG,
            _R.FIND_CAUSE,
            _C.ECHO,
            "a task of the host has waited for minutes, mostly for storage",
            "Linux kernel/hung_task.c",
        ),
        LabelRow(
            Label.NCCL_TIMEOUT,
            _F.HANG,
            _R.FIND_CAUSE,
            _C.ECHO,
            "a collective did not end in time: some rank did not come",
            "PyTorch ProcessGroupNCCL watchdog",
        ),
    )
}
