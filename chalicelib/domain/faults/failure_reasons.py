"""Why a training job says it failed: FailureReason text -> fault class. Data: the first row that matches speaks.

The text is free: SageMaker's own prefix (`AlgorithmError`, `ClientError`, `InternalServerError`, `CapacityError`) and
then, for `AlgorithmError`, whatever the container wrote to /opt/ml/output/failure, at most 1024 characters (botocore,
FailureReason). So the order is: the platform's own prefixes, then causes, then their echoes, then what the log
signatures make of the container's words, then the general rows. A text that no row knows is UNCLEAR, never "nothing
wrong".
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass

from chalicelib.domain.fault_specs.faults import CLAIMED_BY_FAILURE_TEXTS
from rekindle.protocol.signals import FaultClass
from rekindle.signatures.xids import fault_of, find_xid

MAX_READ_CHARS = 4096  # four times what SageMaker keeps; bounds the work on a foreign text


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureVerdict:
    """What a failure text says. `rule` names the row; `person_needed`: the same input will fail the same way."""

    fault: FaultClass
    rule: str
    person_needed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasonRow:
    """One pattern, searched in the text without regard to case; `example` is a text it must match."""

    rule: str
    pattern: str
    fault: FaultClass
    example: str
    source: str
    person_needed: bool = False


def _row(
    rule: str, fault: FaultClass, pattern: str, *, example: str, source: str, person_needed: bool = False
) -> ReasonRow:
    return ReasonRow(
        rule=rule,
        pattern=pattern,
        fault=fault,
        example=example,
        source=source,
        person_needed=person_needed,
    )


REASONS: tuple[ReasonRow, ...] = (
    # The platform's own words
    _row(
        "internal_server_error",
        FaultClass.PLATFORM_ERROR,
        r"\A\s*InternalServerError\b",
        example="InternalServerError: We encountered an internal error. Please try again.",
        source="CreateTrainingJob RetryStrategy: retries cover InternalServerError only",
    ),
    _row(
        "capacity",
        FaultClass.PLATFORM_ERROR,
        r"\A\s*CapacityError\b|unable to provision requested (ML )?compute capacity|insufficient ?instance ?capacity"
        r"|do not have sufficient capacity",
        example="CapacityError: Unable to provision requested ML compute capacity. Please retry using a different "
        "ML instance type.",
        source="sagemaker-python-sdk session.py raises CapacityError on this word in FailureReason",
    ),
    _row(
        "time_limit",
        FaultClass.PLANNED_END,
        r"\bMax(Runtime|WaitTime)Exceeded\b|exceeded (the )?max(imum)? ?(run ?time|wait ?time)",
        example="MaxRuntimeExceeded: the job ran longer than MaxRuntimeInSeconds",
        source="DescribeTrainingJob SecondaryStatus MaxRuntimeExceeded, MaxWaitTimeExceeded",
    ),
    _row(
        "cluster_repair",
        FaultClass.NODE_HARDWARE,
        r"due to (a )?hardware failure",
        example="Repairing training cluster due to hardware failure",
        source="SageMaker developer guide, model-checkpoints-cluster-repair",
    ),
    _row(
        "slurm_node_fail",
        FaultClass.NODE_LOST,
        r"\A\s*Slurm (NODE_FAIL|BOOT_FAIL)\b",
        example="Slurm NODE_FAIL: NodeDown",
        source="squeue, JOB STATE CODES: one of the allocated nodes failed, or failed to boot",
    ),
    _row(
        "slurm_out_of_memory",
        FaultClass.OUT_OF_MEMORY,
        r"\A\s*Slurm OUT_OF_MEMORY\b",
        example="Slurm OUT_OF_MEMORY: exit code: 125",
        source="squeue, JOB STATE CODES: the job met an out-of-memory error",
    ),
    # Causes
    _row(
        "gpu_hardware",
        FaultClass.NODE_HARDWARE,
        r"fallen off the bus|GPU is lost|uncorrectable (NVLink|ECC)|ECC_UNCORRECTABLE|double.bit ECC"
        r"|no CUDA-capable device is detected|unable to determine the device handle for GPU",
        example="AlgorithmError: RuntimeError: CUDA error: uncorrectable ECC error encountered, exit code: 1",
        source="CUDA runtime API, cudaErrorECCUncorrectable, cudaErrorNvlinkUncorrectable, cudaErrorNoDevice",
    ),
    _row(
        "non_finite",
        FaultClass.NON_FINITE,
        r"\bloss\b.{0,40}?(\b(is|was|became|becomes|went)\b|[=:])\s{0,3}(nan|inf|-inf|not finite|non-?finite)\b"
        r"|\b(nan|inf|non-?finite)\b (in |or inf in )?(the )?(training )?(loss|grad)"
        r"|\bfound nan\b|minimum loss scale reached|rekindle: non-?finite",
        example="AlgorithmError: ValueError: Loss is nan, stopping training, exit code: 1",
        source="torchvision train_one_epoch; Megatron-LM 'found NaN in local grad norm'; fairseq fp16_optimizer",
    ),
    _row(
        "cuda_out_of_memory",
        FaultClass.OUT_OF_MEMORY,
        r"CUDA out of memory|CUDA error: out of memory|CUDA_ERROR_OUT_OF_MEMORY|OutOfMemoryError"
        r"|CUBLAS_STATUS_ALLOC_FAILED|RESOURCE_EXHAUSTED.{0,20}(OOM|out of memory)",
        example="AlgorithmError: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB., exit code: 1",
        source="PyTorch CUDACachingAllocator; CUDA driver API; XLA",
    ),
    _row(
        "host_out_of_memory",
        FaultClass.OUT_OF_MEMORY,
        r"oom.?kill|\bout of memory\b|out-of-memory|\bMemoryError\b|std::bad_alloc|can't allocate memory"
        r"|cannot allocate memory|instance type with more memory",
        example="ClientError: Please use an instance type with more memory, or reduce the size of training data "
        "processed on an instance.",
        source="SageMaker developer guide, built-in algorithm errors; Linux ENOMEM; PyTorch DefaultCPUAllocator",
    ),
    _row(
        # Often the OOM killer, but a kill names no killer: it may be resumed like any crash, and the same end at the
        # same step twice still goes to the owner.
        "killed_137",
        FaultClass.SOFTWARE_CRASH,
        r"exit ?code:? ?137\b|exit ?code\s*:\s*-9\b|signal 9\b|\bSIGKILL\b",
        example="AlgorithmError: , exit code: 137",
        source="128 + SIGKILL (Docker exit codes)",
    ),
    _row(
        "bad_checkpoint",
        FaultClass.BAD_CHECKPOINT,
        r"PytorchStreamReader failed|failed finding central directory|SafetensorError.{0,40}(Header|deserializ)"
        r"|checkpoint.{0,60}\b(corrupt|truncated|incomplete)|(corrupt|truncated|incomplete).{0,30} checkpoint",
        example="AlgorithmError: RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central "
        "directory, exit code: 1",
        source="PyTorch inline_container.cc; safetensors",
    ),
    _row(
        "disk_full",
        FaultClass.SOFTWARE_CRASH,
        r"No space left on device|insufficient disk space|StorageFull|ENOSPC",
        example="ClientError: Artifact upload failed: Insufficient disk space",
        source="Linux ENOSPC; SageMaker FailureReason. The same job fills the same disk again",
        person_needed=True,
    ),
    # Echoes: one rank's word about another's death
    _row(
        "nccl_timeout",
        FaultClass.HANG,
        r"watchdog caught collective operation timeout|collective operation.{0,40}time(d )?out"
        r"|(NCCL|ProcessGroup\w{0,10}).{0,120}(time(d )?[ -]?out\b|timeout)"
        r"|ran for \d{1,12} milliseconds before timing out",
        example="AlgorithmError: RuntimeError: [Rank 0] Watchdog caught collective operation timeout: "
        "WorkNCCL(SeqNum=120, OpType=ALLREDUCE, Timeout(ms)=600000) ran for 600061 milliseconds before timing out.",
        source="PyTorch ProcessGroupNCCL.cpp: the watchdog ended a run that hung",
    ),
    _row(
        "network",
        FaultClass.PLATFORM_ERROR,
        r"ncclRemoteError|ncclSystemError|NCCL WARN NET/|remote process exited or there was a network error"
        r"|Temporary failure in name resolution|Connection (reset by|closed by) (peer|remote)|No route to host",
        example="AlgorithmError: torch.distributed.DistBackendError: NCCL error: remote process exited or there was a "
        "network error, exit code: 1",
        source="NCCL ncclResult_t; a peer or the network between went away, the cause is elsewhere",
    ),
    # The general rows
    _row(
        "client_error",
        FaultClass.SOFTWARE_CRASH,
        r"\A\s*(ClientError|ValidationException|AccessDenied\w*)\b",
        example="ClientError: Data download failed: no S3 objects found under the prefix",
        source="SageMaker FailureReason prefix for bad input or configuration",
        person_needed=True,
    ),
    _row(
        "algorithm_error",
        FaultClass.SOFTWARE_CRASH,
        r"\bAlgorithmError\b|ExecuteUserScriptError|Traceback \(most recent call last\)|exit ?code:? ?-?\d{1,3}\b"
        r"|segmentation fault|core dumped",
        example="AlgorithmError: ExecuteUserScriptError:\nExitCode 1\nErrorMessage \"KeyError: 'labels'\"",
        source="sagemaker-training-toolkit errors.py; github.com/aws/sagemaker-python-sdk/issues/134 (exit code 139)",
    ),
)

NO_REASON = FailureVerdict(fault=FaultClass.UNCLEAR, rule="no_reason")
UNRECOGNISED = FailureVerdict(fault=FaultClass.UNCLEAR, rule="unrecognised")


@functools.cache
def _compiled(pattern: str) -> re.Pattern[str]:
    """Compiled at its first use, so that a cold start does not pay for it."""
    return re.compile(pattern, re.IGNORECASE)


def classify_failure_reason(text: str | None) -> FailureVerdict:
    """The verdict on a FailureReason. Total: any text has one; an empty or unknown one is UNCLEAR."""
    if text is None or not text.strip():
        return NO_REASON
    read = text[:MAX_READ_CHARS]
    for row in REASONS:
        if row.rule == "gpu_hardware":
            named = _xid_verdict(read)
            if named is not None:
                return named
        if row.rule == "algorithm_error":
            named = _signature_verdict(read)
            if named is not None:
                return named
        if _compiled(row.pattern).search(read):
            return FailureVerdict(fault=row.fault, rule=row.rule, person_needed=row.person_needed)
    return UNRECOGNISED


def _xid_verdict(text: str) -> FailureVerdict | None:
    """A named Xid outranks every other cause: the driver saw it. Codes that are only news decide nothing."""
    xid = find_xid(text)
    fault = fault_of(xid, text) if xid is not None else None
    if fault is None or fault is FaultClass.UNCLEAR:
        return None
    return FailureVerdict(fault=fault, rule=f"xid_{xid}")


def _signature_verdict(text: str) -> FailureVerdict | None:
    """What the log signatures say of the container's own words, where they name more than a crash."""
    from rekindle.signatures import Label, classify  # loaded only here: most functions never need the rules

    verdict = classify(text)
    if verdict.label is Label.BENIGN or verdict.fault is None or verdict.fault not in CLAIMED_BY_FAILURE_TEXTS:
        return None
    return FailureVerdict(fault=verdict.fault, rule=f"signature.{verdict.label}")
