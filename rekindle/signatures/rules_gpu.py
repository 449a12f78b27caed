"""Rules about the GPU: the device itself, its links, and what CUDA says. Xid records are read by `xids.py`."""

from __future__ import annotations

from typing import Final

from rekindle.protocol.signals import FaultClass
from rekindle.signatures.labels import CausalClass, Label
from rekindle.signatures.responses import FirstResponse
from rekindle.signatures.rule import Rule

_NV_XID: Final = "NVIDIA Xid catalogue; NVIDIA/open-gpu-kernel-modules"
_CUDA: Final = "CUDA runtime and driver API, error codes; as PyTorch, JAX and TensorFlow print them"

DEVICE: Final[tuple[Rule, ...]] = (
    Rule(
        name="gsp_timeout",
        label=Label.XID_119_GSP_TIMEOUT,
        pattern=r"\brpc (?:response )?from (?:gpu ?\d{0,2} )?gsp\b|\bgsp(?:[- ]rm)?\b.{0,40}(?:time-?out|timed out"
        r"|heartbeat|crash|\bfail|not respond|is slow)|\b_?kgsp\w{1,60}.{0,60}(?:time-?out|timed out|fail|error)"
        r"|(?:failed|cannot|could not|unable) to (?:load|boot|initiali[sz]e|init) gsp"
        r"|\brpc(?:sendmessage|recvpoll)\b.{0,20}(?:fail|time)(?!.{0,20}status 0x0{0,7}f\b)",
        example="NVRM: Timeout after 6s of waiting for RPC response from GPU3 GSP! Expected function 76",
        source="github.com/NVIDIA/open-gpu-kernel-modules/issues/446",
    ),
    Rule(
        name="fallen_off_bus",
        label=Label.XID_79_FALLEN_OFF_BUS,
        pattern=r"\bfall(?:en|s|ing)? off the bus|\bfell off the bus|gpu(?: is |_is_|is)lost\b|gpu lost from the bus"
        r"|rpcsendmessage failed with status 0x0{0,7}f\b|pcie bus error: severity=uncorrect\w{2,4} \(fatal\)"
        r"|\baer: .{0,40}uncorrect\w{2,4} \(fatal\)"
        r"|\bdpc: (?:containment event|err_(?:non)?fatal (?:detected|received)|unmasked uncorrectable error)"
        r"|\bnvidia\b.{0,40}\bunable to change power state from d3cold\b"
        r"|unable to determine the device handle for gpu|\brminitadapter failed",
        example="Unable to determine the device handle for GPU0000:05:00.0: GPU is lost.  Reboot the system to recover",
        source="nvidia-smi and NVRM kernel messages (nv.c, osinit.c; status 0xF is NV_ERR_GPU_IS_LOST); Linux "
        "AER, DPC and pci.c; "
        "github.com/NVIDIA/open-gpu-kernel-modules/issues/688",
    ),
    Rule(
        name="ecc_uncorrectable",
        label=Label.ECC_UNCORRECTABLE,
        pattern=r"uncorrectable (?:\w{1,12} )?ecc|ecc_?uncorrectable|uncorrect(?:able|ed) (?:memory )?ecc"
        r"|double[- ]?bit (?:ecc )?errors?\b|\bdbe\b.{0,50}(?:error|detected|fault|violation)"
        r"|ecc (?:errors?|page)?.{0,20}\buncorrect(?:able|ed)\b|\b(?:un)?contained ecc error|unrecovered ecc"
        r"|\becc error.{0,40}(?:fatal|uncontained|double)",
        example="RuntimeError: CUDA error: uncorrectable ECC error encountered",
        source="CUDA cudaErrorECCUncorrectable; DCGM DBE policy",
    ),
    Rule(
        name="host_memory_uncorrected",
        label=Label.ECC_UNCORRECTABLE,
        pattern=r"\bedac\b.{0,80}\b(?:ue|uncorrect(?:able|ed))\b.{0,60}(?:error|memory|page|row|dimm)"
        r"|\[hardware error\].{0,60}machine check exception|\[hardware error\].{0,8}event severity: (?:fatal"
        r"|recoverable)"
        r"|\bdue to hardware memory corruption\b"
        r"|\[hardware error\].{0,120}uncorrect(?:able|ed)|\buncorrected (?:hardware )?(?:memory )?error\b"
        r"|memory failure: 0x[0-9a-f]{1,16}: (?:recovery|unhandlable|killing|sending)",
        example="EDAC MC0: 1 UE memory read error on CPU_SrcID#0_MC#0_Chan#1_DIMM#0",
        source="Linux drivers/edac/edac_mc.c, arch/x86 mce; mm/memory-failure.c; APEI drivers/firmware/efi/cper.c: "
        "host memory, not the GPU's",
        response=FirstResponse.REBOOT,
    ),
    Rule(
        name="row_remap_recorded",
        label=Label.XID_63_64_ROW_REMAP,
        pattern=r"row remapper: new row .{0,40}marked for remapping|row[- ]remap\w{0,6}.{0,30}(?:recorded|event)\b",
        example="Row Remapper: New row (0x00000000051e0800) marked for remapping, reset gpu to activate.",
        source=f"{_NV_XID}, Xid 63",
        response=FirstResponse.MONITOR,
        order=CausalClass.NEWS,
    ),
    Rule(
        name="row_remap_failed",
        label=Label.XID_63_64_ROW_REMAP,
        pattern=r"(?:row[- ]?remap\w{0,6}|remapped[- ]?rows?|remapping).{0,50}(?:\bfail|error|occurred\W{1,6}yes)"
        r"|(?:fail\w{0,4}|unable).{0,40}(?:row[- ]remap|remap\w{0,5} row)"
        r"|(?:dynamic )?page retirement.{0,20}(?:fail|error)|(?:fail\w{0,3}|unable) to retire page",
        example="Row Remapper Error: (0x0000000000000000) - All reserved rows for bank are remapped",
        source=f"{_NV_XID}, Xid 64; NVIDIA GPU memory error management guide",
    ),
    Rule(
        name="row_remap_pending",
        label=Label.XID_63_64_ROW_REMAP,
        pattern=r"(?:row[- ]remap\w{0,6}|remapped rows?).{0,80}pending\W{1,30}(?:yes|true|[1-9])"
        r"|remapped rows[\s\S]{0,240}pending\s{0,40}:\s{0,3}yes|pending row[- ]remap"
        r"|row[- ]remap\w{0,6} (?:is )?pending",
        example="GPU 00000000:84:00.0 has a row remapping pending: reset the GPU to activate it",
        source="nvidia-smi -q -d ROW_REMAPPER; leptonai/gpud remapped-rows component",
        response=FirstResponse.RESET_GPU,
    ),
)

AMD: Final[tuple[Rule, ...]] = (
    Rule(
        name="amdgpu_reset",
        label=Label.GPU_FAULT,
        pattern=r"\bhw exception by gpu node\b|\bamdgpu\b.{0,80}\bgpu reset (?:begin|end with ret)"
        r"|\bamdgpu\b.{0,80}\b(?:fatal error during gpu init|gpu hang detected)\b",
        example="amdgpu 0000:dd:00.0: amdgpu: GPU reset begin!",
        source="Linux drivers/gpu/drm/amd/amdgpu/amdgpu_device.c; ROCm ROCR-Runtime; github.com/ROCm/ROCm/issues/4021",
    ),
    Rule(
        name="amdgpu_ras",
        label=Label.GPU_FAULT,
        pattern=r"\bamdgpu\b.{0,120}\b[1-9]\d{0,9} (?:new )?uncorrectable hardware errors?\b"
        r"|\bamdgpu\b.{0,120}\b(?:ras|poison)\b.{0,60}\b(?:uncorrectable|poison is consumed|fatal)",
        example="amdgpu 0000:9d:00.0: amdgpu: socket: 6, die: 1, 2 new uncorrectable hardware errors detected in umc "
        "block",
        source="Linux drivers/gpu/drm/amd/amdgpu/amdgpu_ras.c",
    ),
)

FABRIC: Final[tuple[Rule, ...]] = (
    Rule(
        # NVLink SHARP cannot be set up: the fabric manager was restarted under the GPUs.
        name="nvls",
        label=Label.NVLINK_ERROR,
        pattern=r"\bnvls\.cc:\d{1,5} nccl warn .{0,40}\bcuda failure\b",
        example="node2:242431:242479 [5] transport/nvls.cc:158 NCCL WARN Cuda failure 1 'invalid argument'",
        source="github.com/NVIDIA/nccl/issues/1338, /976: reset the GPUs, or reboot",
    ),
    Rule(
        name="sxid_fatal",
        label=Label.NVLINK_ERROR,
        pattern=r"\bsxid\b.{0,60}\d{5}\s*,\s*fatal",
        example="nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 20034, Fatal, Link 63 LTSSM Fault Up",
        source="NVIDIA Fabric Manager user guide, NVSwitch SXid errors",
    ),
    Rule(
        name="sxid",
        label=Label.NVLINK_ERROR,
        pattern=r"\bsxid\b(?: error)?.{0,60}\d{5}\b",
        example="nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 12028, Non-fatal, Link 32 egress non-posted PRIV error",
        source="NVIDIA Fabric Manager user guide, non-fatal SXid errors: recorded, the run continues",
        response=FirstResponse.MONITOR,
        order=CausalClass.NEWS,
    ),
    Rule(
        name="nvswitch_nonfatal",
        label=Label.NVLINK_ERROR,
        pattern=r"\bnvswitch non-fatal error\b",
        example="[ERROR] [tid 871] detected NVSwitch non-fatal error 12028 on fid 0 on NVSwitch pci bus id "
        "00000000:86:00.0",
        source="NVIDIA Fabric Manager user guide, non-fatal NVSwitch errors: recorded, the run continues",
        response=FirstResponse.MONITOR,
        order=CausalClass.NEWS,
    ),
    Rule(
        name="fabric_manager",
        label=Label.NVLINK_ERROR,
        pattern=r"\baborting fabric manager\b|\bfabric manager\b.{0,100}(?:\bfailed\b|\bfatal\b|don't match)"
        r"|\bnvswitch(?:es)?\b.{0,80}(?:don't match|mismatch|\bmissing\b|not detected|not responding|\bdegraded\b)"
        r"|\bfailed to (?!(?:get|query|read) ).{0,80}\b(?:multicast team|nvlinks?|nvswitch(?:es)?)\b"
        r"|\berror occurred while .{0,60}\bnvlinks?\b|\bknvlink\w{3,60}.{0,80}\bfail"
        r"|\bfailed to start .{0,20}fabric ?manager\b"
        r"|\bfabricmanager(?:\.service)?: .{0,60}(?:status=\d{1,3}/failure|code=(?:killed|dumped))"
        r"|\bnvlink\b.{0,40}(?:training|initiali[sz]ation|discovery)\b.{0,24}\bfail",
        example="[ERROR] fabric manager: failed to initialize NVLink for all NVSwitch devices, request: aborting",
        source="NVIDIA Fabric Manager user guide, error handling; open-gpu-kernel-modules kernel_nvlink.c",
    ),
    Rule(
        name="nvlink",
        label=Label.NVLINK_ERROR,
        pattern=r"uncorrectable nvlink|nvlink_?uncorrectable|peer gpu memory over nvlink"
        r"|\bnvlink\w{0,20}.{0,60}(?:\bfatal\b|uncorrectable|\berrors? (?:detected|encountered|on link|occurred|found)"
        r"|\blinks? (?:is |are )?(?:down|lost)\b|link training fail|\bfailed\b|\bfailure\b|\bfault\b)"
        r"|fabricmanager(?:\.service)?\b.{0,40}\bfailed\b|\bnvlink errors?\b|\bnvswitch\w{0,4}.{0,60}(?:\bfatal\b"
        r"|uncorrectable|\bfailed\b|\bfailure\b|\bfault\b)",
        example="RuntimeError: CUDA error: uncorrectable NVLink error detected during the execution",
        source="CUDA cudaErrorNvlinkUncorrectable, CUDA_ERROR_CONTAINED; nvidia-fabricmanager log",
    ),
)

CUDA: Final[tuple[Rule, ...]] = (
    Rule(
        name="context_switch_timeout",
        label=Label.CUDA_CONTEXT_TIMEOUT,
        pattern=r"\b(?:ctx|context)[ _]switch[ _](?:timeout|timed out)|cuda context (?:creation )?(?:timeout"
        r"|timed out)",
        example="Ch 00000008, errorString CTX SWITCH TIMEOUT, Info 0x58005",
        source=f"{_NV_XID}, Xid 109; github.com/leptonai/gpud/pull/46",
        response=FirstResponse.RESET_GPU,
        order=CausalClass.DEVICE,
    ),
    Rule(
        name="launch_timeout",
        label=Label.CUDA_CONTEXT_TIMEOUT,
        pattern=r"launch timed out and was terminated|error_?launch_?timeout",
        example="RuntimeError: CUDA error: the launch timed out and was terminated",
        source=f"{_CUDA}; github.com/pytorch/pytorch/issues/10853",
    ),
    Rule(
        name="device_assert",
        label=Label.CUDA_DEVICE_ASSERT,
        pattern=r"device-side assert(?:ion)? (?:triggered|failed|failure)|cuda_?error_?assert\b"
        r"|block: \[\d{1,9},\s?\d{1,9},\s?\d{1,9}\],\s{0,3}thread: \[\d{1,9},\s?\d{1,9},\s?\d{1,9}\].{0,80}assert"
        r"|cuda_kernel_assert.{0,60}fail",
        example="../aten/src/ATen/native/cuda/Loss.cu:240: nll_loss_forward_reduce_cuda_kernel_2d: block: [0,0,0], "
        "thread: [5,0,0] Assertion `t >= 0 && t < n_classes` failed.",
        source=f"{_CUDA}; PyTorch aten/src/ATen/native/cuda",
    ),
    Rule(
        name="illegal_memory",
        label=Label.CUDA_ILLEGAL_MEMORY,
        pattern=r"illegal memory access|cuda_?error_?(?:illegal|misaligned)_?address|\bmisaligned address\b"
        r"|\bcuda failure (?:700|716)\b|cuda.{0,30}operation not supported on global/shared address space"
        r"|cuda.{0,40}invalid address space|\bmemory access fault by gpu node\b"
        r"|\bhsa_status_error_memory_(?:aperture_violation|fault)\b",
        example="RuntimeError: CUDA error: an illegal memory access was encountered",
        source=f"{_CUDA}: 700 cudaErrorIllegalAddress, 716 cudaErrorMisalignedAddress; ROCm ROCR-Runtime",
    ),
    Rule(
        name="out_of_memory",
        label=Label.CUDA_OOM,
        pattern=r"\b(?:cuda|hip|xpu|npu|mps|vram)\b.{0,60}\bout of memory\b|\bgpu(?: ?\d{1,2})?(?: is| ran| has run"
        r"| memory|:)? out of memory|torch\.(?:cuda\.)?outofmemoryerror"
        r"|cuda_?error_?(?:out_of_memory|memoryallocation)|cu(?:blas|dnn|solver|sparse|fft)_(?:status_)?alloc_failed"
        r"|\boom when allocating tensor|resource_?exhausted:? ?.{0,40}(?:\boom\b|out of memory|failed to allocate)"
        r"|\bout of memory\b.{0,30}(?:while trying to|when) allocat\w{1,5} .{0,60}(?:\bgpu\b|\bdevice\b|\bhbm\b)"
        r"|(?:\A|\n)[ \t]{0,20}(?:error: |exception: )?(?:torch\.)?outofmemoryerror"
        r"|cuda runtime error \(2\)|error=2 : out of memory"
        r"|out of memory trying to allocate|failed to allocate .{0,40}from device",
        example="torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity",
        source=f"{_CUDA}; PyTorch CUDACachingAllocator; XLA RESOURCE_EXHAUSTED; TensorFlow bfc_allocator",
    ),
    Rule(
        name="system_not_ready",
        label=Label.CUDA_UNKNOWN_ERROR,
        pattern=r"\b(?:error 802\b|cuda error:).{0,4}system not yet initialized|\bcuda_?error_?system_?not_?ready\b"
        r"|driver/library version mismatch",
        example="RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 802: system not yet initialized",
        source="CUDA runtime API, cudaErrorSystemNotReady: the node's fabric manager does not run; NVML,"
        " NVML_ERROR_LIB_RM_VERSION_MISMATCH: its driver was upgraded and not loaded again",
        fault=FaultClass.NODE_HARDWARE,
        response=FirstResponse.REBOOT,
        order=CausalClass.FABRIC,
    ),
    Rule(
        name="cuda_unknown",
        label=Label.CUDA_UNKNOWN_ERROR,
        pattern=r"\b(?:cuda|hip)(?: driver| runtime)? error(?: \(?\d{1,4}\)?)?\s?:|\bcuda runtime error \(\d{1,4}\)"
        r"|\bcuda_error_[a-z_]{3,40}|\b(?:cuda|hip)error[a-z]{3,40}\b|\bcuda unknown error\b|\bcuda failure\b"
        r"|unspecified launch failure|\bcu(?:blas|dnn|solver|sparse)_status_(?!success)[a-z_]{3,40}"
        r"|\bcufft_(?!success)[a-z_]{3,30}(?:failed|error)|\bcu(?:dnn|blas) error\s?:|\bthcudacheck fail"
        r"|unhandled ?cuda ?error|no cuda-capable device is detected|cuda-capable device\(?s?\)? is/are busy",
        example="RuntimeError: CUDA error: unspecified launch failure",
        source=f"{_CUDA}; github.com/rwth-i6/returnn/issues/1520; NCCL ncclUnhandledCudaError",
    ),
)
