"""Stack texts of training processes: which frames the training thread is in, and whether it waits for other ranks.

Read is what the monitor writes (`rekindle.monitor.base.stacks`, innermost frame last). A text is never trusted: what
cannot be read is no frame. Pure.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from rekindle.protocol.mailbox import RunPhase

MAX_LINES: Final = 2000
_HEADER: Final = re.compile(r"Thread (?P<name>.{1,200}?):\Z")
_FRAME: Final = re.compile(r'\s*File "(?P<file>[^"]{1,500})", line \d{1,9}, in (?P<function>\S.{0,199})\Z')


@dataclass(frozen=True, slots=True)
class Frame:
    """Where, without the line number: two ranks in one loop stand on different lines of it."""

    file: str
    function: str

    @property
    def short(self) -> str:
        return f"{'/'.join(self.file.rsplit('/', 2)[-2:])}:{self.function}"


@dataclass(frozen=True, slots=True)
class Wait:
    """A frame in which a rank waits for others: the end of its file's path, and the function's last name."""

    file: str
    functions: tuple[str, ...]  # empty: any
    source: str
    is_whole: bool = False  # whatever it calls belongs to the wait, the user's own code too


# A rank in one of these has done its part and waits for the others (or for its own device, which waits for them).
WAITS: Final = (
    Wait(
        "torch/distributed/distributed_c10d.py",
        (),
        "PyTorch: all collectives, barriers, send/recv and their wrappers stand here",
    ),
    Wait("torch/distributed/c10d_logger.py", ("wrapper",), "PyTorch: the wrapper around every collective"),
    Wait("torch/distributed/_functional_collectives.py", (), "PyTorch: functional collectives and wait_tensor"),
    Wait("torch/distributed/nn/functional.py", (), "PyTorch: differentiable collectives"),
    Wait(
        "torch/autograd/graph.py",
        ("_engine_run_backward",),
        "PyTorch: DDP and FSDP wait for gradient buckets inside the C++ engine, whose caller is this frame",
    ),
    Wait("torch/autograd/__init__.py", ("backward",), "PyTorch before 2.3: the same, without graph.py"),
    Wait(
        "torch/nn/parallel/distributed.py",
        ("_sync_buffers", "_sync_module_states", "_pre_forward", "_post_forward"),
        "PyTorch: DDP broadcasts buffers before forward",
    ),
    Wait(
        "torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py",
        ("unshard", "wait_for_unshard", "reduce_scatter", "post_backward", "finalize_backward"),
        "PyTorch: FSDP2 waits for its all-gather and reduce-scatter",
    ),
    Wait("torch/distributed/pipelining/schedules.py", (), "PyTorch: pipeline stages wait for their neighbours"),
    Wait("torch/cuda/__init__.py", ("synchronize",), "PyTorch: waits for the device, on which the collective waits"),
    Wait("torch/cuda/streams.py", ("synchronize",), "PyTorch: the same for a stream or an event"),
    Wait("deepspeed/comm/comm.py", (), "DeepSpeed: its own face of the collectives"),
    Wait("deepspeed/comm/torch.py", (), "DeepSpeed: the same, its torch backend"),
    Wait("megatron/core/pipeline_parallel/p2p_communication.py", (), "Megatron-LM: send and receive between stages"),
    Wait(
        "rekindle/integrations/torch_ranks.py",
        ("wait_for",),
        "the integrations: for the other ranks' parts",
        is_whole=True,
    ),
    Wait(
        "rekindle/monitor/saving/agreement.py", ("_ask", "hold"), "the monitor's own agreement, bounded", is_whole=True
    ),
)

# A rank in one of these compiles or tunes code, which takes minutes where shapes change. Frames that also stand there
# while compiled code runs are left out.
COMPILES: Final = (
    Wait("torch/_dynamo/convert_frame.py", (), "PyTorch: torch.compile translates a frame, on its first call or again"),
    Wait(
        "torch/_inductor/compile_fx.py",
        ("compile_fx_inner", "_compile_fx_inner", "fx_codegen_and_compile", "codegen_and_compile"),
        "PyTorch: the backward pass is compiled when it is first run, outside of convert_frame",
    ),
    Wait(
        "torch/_inductor/runtime/triton_heuristics.py",
        ("autotune_to_one_config", "benchmark_all_configs"),
        "PyTorch: a kernel's configurations are tried out",
    ),
    Wait("torch/utils/cpp_extension.py", ("_jit_compile",), "PyTorch: an extension is built when it is loaded"),
    Wait("triton/compiler/compiler.py", ("compile",), "Triton: a kernel is compiled on its first call"),
    Wait("triton/runtime/autotuner.py", ("_bench",), "Triton: a kernel's configurations are tried out"),
    Wait(
        "jax/_src/compiler.py",
        ("compile_or_get_cached", "backend_compile", "backend_compile_and_load"),
        "JAX: a function is compiled for new shapes",
    ),
)

# Functions whose names say that a script evaluates, or saves, where it has not announced that. Those outside of the
# innermost one that trains do not count: `train_and_evaluate` is where a whole run is.
_TRAINS: Final = re.compile(r"train|fit(?:$|_)|optimi[sz]e|backward|main|<module>", re.IGNORECASE)
_EVALUATES: Final = re.compile(
    r"(?:^|_)(?:eval(?:uat(?:e|ion|or))?|val(?:idat(?:e|ion))?|inference)(?:$|_(?!actions?|log|prob|frame|args|config))"
    r"|(?:^|_)(?:generate|predict)$|^test(?:$|_(?:epoch|loop|model)$)|estimate_loss",
    re.IGNORECASE,
)
_SAVES: Final = re.compile(r"save|upload|push_to_hub", re.IGNORECASE)
_SAVERS: Final = ("torch/serialization.py", "torch/distributed/checkpoint/state_dict_saver.py")  # of torch's own

# The bottom of any wait: says nothing about what is waited for.
_IDLE_FILES: Final = ("threading.py", "queue.py", "selectors.py", "multiprocessing/connection.py")
# Code that a wait may call on its way down. Anything else inside of it (a hook of the user's) is not waiting.
_LIBRARIES: Final = ("/torch/", "/deepspeed/", "/megatron/core/", "/contextlib.py", "/functools.py")


def training_frames(text: str) -> tuple[Frame, ...]:
    """The training thread's frames, innermost last, without idle ones at the end. Empty where there are none.

    That thread is MainThread or, where no thread has that name, the last in the report.
    """
    chosen: list[Frame] = []
    current: list[Frame] = []
    is_main = False
    for line in [*text.splitlines()[-MAX_LINES:], "Thread end:"]:
        header = _HEADER.match(line.strip())
        if header is None:
            frame = _FRAME.match(line)
            if frame is not None:
                current.append(Frame(frame["file"].replace("\\", "/"), frame["function"].rsplit(".", 1)[-1]))
            continue
        if current:
            chosen = current
            if is_main:
                break
        current, is_main = [], header["name"] == "MainThread"
    while chosen and chosen[-1].file.endswith(_IDLE_FILES):
        chosen.pop()
    return tuple(chosen)


def _is_compiling(frames: tuple[Frame, ...]) -> bool:
    """Whether a function is compiled or tuned somewhere in these."""
    return any(
        frame.file.endswith(row.file) and (not row.functions or frame.function in row.functions)
        for frame in frames
        for row in COMPILES
    )


def phase_in(frames: tuple[Frame, ...]) -> RunPhase:
    """What a training thread that makes no steps is in: start-up where it compiles, an evaluation or a save by the
    names of its functions, else training.
    """
    if _is_compiling(frames):
        return RunPhase.STARTUP
    for frame in reversed(frames):
        if "/torch/" in frame.file:
            if frame.file.endswith(_SAVERS) and _SAVES.search(frame.function):
                return RunPhase.SAVING
        elif _TRAINS.search(frame.function):
            break
        elif _SAVES.search(frame.function):
            return RunPhase.SAVING
        elif _EVALUATES.search(frame.function):
            return RunPhase.EVALUATION
    return RunPhase.TRAINING


def waits_in(frames: tuple[Frame, ...]) -> Frame | None:
    """The innermost frame in which these wait for other ranks; None for frames that are busy with something else."""
    is_inside = True  # only library frames so far, seen from the innermost one
    for frame in reversed(frames):
        for wait in WAITS:
            is_here = frame.file.endswith(wait.file) and (not wait.functions or frame.function in wait.functions)
            if is_here and (is_inside or wait.is_whole):
                return frame
        is_inside = is_inside and any(part in frame.file for part in _LIBRARIES)
    return None
