"""Runs that end without having finished."""

from __future__ import annotations

from typing import Final

from chalicelib.domain.fault_specs.spec import Deadline, Drill, Effect, FaultSpec, Response, Trait
from chalicelib.domain.model.signal import SignalKind, SignalSource
from chalicelib.domain.model.start_view import StartState
from rekindle.protocol.signals import FaultClass

CRASHES: Final = (
    FaultSpec(
        fault=FaultClass.PLATFORM_ERROR,
        rank=100,
        response=Response.RESTART,
        deadline=Deadline.NONE,
        tries=None,
        source="SageMaker RetryStrategy covers InternalServerError only until its attempts are spent",
        traits=frozenset(
            {Trait.DEADLY, Trait.HEALABLE, Trait.NOT_MOVING, Trait.STANDS_UNTIL_HELPED, Trait.NOT_THE_LOAD}
        ),
        drill=Drill(
            kind=SignalKind.ATTEMPT_STATE,
            by=SignalSource.SAGEMAKER,
            effect=Effect.DIES,
            text="the platform ended the run with an internal error",
            source="failure_reasons, row internal_server_error",
            failure_reason="InternalServerError: We encountered an internal error. Please try again.",
            start_state=StartState.LOST_NODE,
            by_platform=True,
            reason_there="Slurm BOOT_FAIL: a node failed to boot",
        ),
    ),
    FaultSpec(
        fault=FaultClass.SOFTWARE_CRASH,
        rank=90,
        response=Response.RESTART,
        deadline=Deadline.NONE,
        tries=None,
        source="DESIGN §5; HyperPod auto-resume does not cover a software crash",
        traits=frozenset(
            {Trait.DEADLY, Trait.HEALABLE, Trait.NOT_MOVING, Trait.STANDS_UNTIL_HELPED, Trait.MAY_BE_THE_LOAD}
        ),
        afterwards="Find the cause in the run's own log: the same crash at the same step stops the run.",
        drill=Drill(
            kind=SignalKind.ATTEMPT_STATE,
            by=SignalSource.SAGEMAKER,
            effect=Effect.DIES,
            text="the training script has crashed",
            source="failure_reasons, row algorithm_error",
            failure_reason="AlgorithmError: ExecuteUserScriptError: ExitCode 1 ErrorMessage \"KeyError: 'labels'\"",
            reason_there="Slurm FAILED: exit code: 1",
        ),
    ),
    FaultSpec(
        fault=FaultClass.OUT_OF_MEMORY,
        rank=60,
        response=Response.RESTART,
        deadline=Deadline.NONE,
        tries=1,
        source="DESIGN §5: one resubmit, then the owner; memory does not grow by trying again",
        traits=frozenset(
            {Trait.DEADLY, Trait.HEALABLE, Trait.NOT_MOVING, Trait.STANDS_UNTIL_HELPED, Trait.NOT_THE_LOAD}
        ),
        afterwards="Give the run more memory or a smaller batch: one new start is all it gets.",
        drill=Drill(
            kind=SignalKind.ATTEMPT_STATE,
            by=SignalSource.SAGEMAKER,
            effect=Effect.DIES,
            text="a rank has run out of GPU memory",
            source="failure_reasons, row cuda_out_of_memory",
            failure_reason="AlgorithmError: torch.OutOfMemoryError: CUDA out of memory., exit code: 1",
            by_platform=True,
            reason_there="Slurm OUT_OF_MEMORY: exit code: 125",
        ),
    ),
    FaultSpec(
        fault=FaultClass.BAD_CHECKPOINT,
        rank=70,
        response=Response.RESTART,
        deadline=Deadline.NONE,
        tries=None,
        source="DESIGN §5; Megatron #5281: no fall-back, 44 identical cycles",
        traits=frozenset({Trait.DEADLY, Trait.HEALABLE, Trait.STANDS_UNTIL_HELPED, Trait.MAY_BE_THE_LOAD}),
        afterwards="Find out why a checkpoint was damaged; it is marked, not deleted.",
        drill=Drill(
            kind=SignalKind.ATTEMPT_STATE,
            by=SignalSource.SAGEMAKER,
            effect=Effect.DIES,
            text="the run died reading a damaged checkpoint",
            source="failure_reasons, row bad_checkpoint",
            failure_reason="AlgorithmError: RuntimeError: PytorchStreamReader failed reading zip archive: failed "
            "finding central directory, exit code: 1",
            reason_there="RuntimeError: PytorchStreamReader failed reading zip archive: failed finding "
            "central directory",
        ),
    ),
    FaultSpec(
        fault=FaultClass.NO_PROGRESS,
        rank=150,
        response=Response.HAND_OVER,
        deadline=Deadline.NONE,
        tries=0,
        source="DESIGN §5; NVRx: three cycles without advance end with 'do not requeue'",
        traits=frozenset({Trait.STANDS_UNTIL_HELPED}),
        drill=Drill(
            kind=SignalKind.ATTEMPT_STATE,
            by=SignalSource.SAGEMAKER,
            effect=Effect.DIES_AGAIN,
            text="the run dies, and so does every attempt after it before it has gained a step",
            source="DESIGN §5: three attempts that gained no step end with a person",
            reported_as=FaultClass.PLATFORM_ERROR,
            failure_reason="InternalServerError: We encountered an internal error. Please try again.",
            start_state=StartState.LOST_NODE,
            by_platform=True,
            reason_there="Slurm BOOT_FAIL: a node failed to boot",
        ),
    ),
    FaultSpec(
        fault=FaultClass.JOB_MISSING,
        rank=140,
        response=Response.RESTART,
        deadline=Deadline.NONE,
        tries=None,
        source="DESIGN §5; BLOOM's watchdog alerts when no job is running or queued",
        traits=frozenset({Trait.DEADLY, Trait.HEALABLE, Trait.NOT_MOVING, Trait.STANDS_UNTIL_HELPED}),
        drill=Drill(
            kind=SignalKind.JOB_MISSING,
            by=SignalSource.SWEEP,
            effect=Effect.VANISHES,
            text="the platform neither runs nor queues the Job",
            source="DESIGN §5; BLOOM's watchdog alerts when no job is running or queued",
        ),
    ),
)
