"""Rules about Trainium and Inferentia: the kernel driver, the Neuron runtime (NRT, TDRV, CCOM) and its compiler.

Source: AWS Neuron documentation, nrt_status.h for the codes, neuron-runtime/nrt-troubleshoot for what each asks for.
"""

from __future__ import annotations

from typing import Final

from rekindle.protocol.signals import FaultClass
from rekindle.signatures.labels import CausalClass, Label
from rekindle.signatures.responses import FirstResponse
from rekindle.signatures.rule import Rule

_GUIDE: Final = "AWS Neuron documentation, neuron-runtime/nrt-troubleshoot, hardware errors; nrt_status.h"
_STATUS: Final = r"\bnrt\w{0,40}\b.{0,60}\b(?:status|code|err(?:or)?|ret(?:urn)?(?:ed)?)\w{0,6}\s{0,2}[=:( ]\s{0,2}"

NEURON: Final[tuple[Rule, ...]] = (
    Rule(
        name="neuron_terminate",
        label=Label.NEURON_DEVICE_ERROR,
        pattern=r"neuron_hw_err=\w{1,60}.{0,300}\baction=(?:terminate|replace|stop)"
        r"|\bplease terminate this instance to prevent future impact",
        example="neuron: NEURON_HW_ERR=SRAM_UNCORRECTABLE_ERROR instance-id=i-0592464924bd45322 hostname=ip-10-0-1-2 "
        "nd-id=0 nc-id=0 serial-num=19fcda00f5ff6eb9 action=TERMINATE_INSTANCE",
        source=_GUIDE,
    ),
    Rule(
        name="neuron_reboot",
        label=Label.NEURON_DEVICE_ERROR,
        # Without an action the milder answer: the same error after a reboot is a replacement anyway.
        pattern=r"neuron_hw_err=|\bnrt_exec_hw_err_repairable_hbm_ue\b|\breload the neuron driver or reboot"
        rf"|{_STATUS}1205\b",
        example="NEURON_HW_ERR=HBM_REPAIRABLE_UNCORRECTABLE_ERROR nd-id=3 action=RELOAD_DRIVER_OR_REBOOT",
        source=_GUIDE,
        response=FirstResponse.REBOOT,
    ),
    Rule(
        name="neuron_queue_overflow",
        label=Label.NEURON_DEVICE_ERROR,
        pattern=rf"\bnrt_exec_sw_nq_overflow\b|{_STATUS}1204\b",
        example="ERROR NRT:nrt_execute NRT_EXEC_SW_NQ_OVERFLOW on ND 3 NC 1",
        source="AWS Neuron documentation, nrt_status.h: the software's own queue overflowed",
        fault=FaultClass.SOFTWARE_CRASH,
        response=FirstResponse.RESTART_APP,
        order=CausalClass.PROCESS,
    ),
    Rule(
        name="neuron_collectives",
        label=Label.NCCL_TIMEOUT,
        pattern=rf"\bnrt_exec_hw_err_collectives\b|{_STATUS}1200\b|\bsuspected hang in collectives\b"
        r"|\bmissing collectives status\b|\bccom\b.{0,200}\b(?:timeout|timed out)\b",
        example="(FATAL-RT-UNDEFINED-STATE) missing collectives status on Neuron Device 0 NC 0, model 0 - suspected "
        "hang in collectives operation 0 out of 100",
        source=f"{_GUIDE}: possibly an error of another worker",
    ),
    Rule(
        name="neuron_hardware",
        label=Label.NEURON_DEVICE_ERROR,
        pattern=rf"\bnrt_exec_hw_err_\w{{2,40}}|\bnrt_exec_unit_unrecoverable\b|\bnrt_hw_error\b|{_STATUS}120[123]\b"
        r"|\buncorrectable (?:hbm|sram)\b|\b(?:hbm|sram) uncorrectable\b"
        r"|\bdma [tr]x engine \d{1,3} is in an abort state\b",
        example="[rank13]: RuntimeError: Execution failed: nrt_execute status=1203 RDR_DATA_AXI_TIMEOUT_ERROR",
        source=_GUIDE,
    ),
    Rule(
        name="neuron_missing",
        label=Label.NEURON_DEVICE_ERROR,
        pattern=r"\bno neuron devices? (?:(?:is|are|was|were) )?(?:found|available|present|detected)"
        r"|\bneuron devices? (?:not found|(?:is|are) missing)\b|/dev/neuron\d{0,3}\b.{0,40}\bno such (?:file|device)"
        r"|\bunable to determine neuron driver version\b",
        example="ERROR TDRV:tdrv_get_dev_info No neuron device available",
        source="AWS Neuron documentation, neuron-runtime/nrt-troubleshoot, driver and devices",
        response=FirstResponse.REBOOT,
    ),
    Rule(
        name="neuron_memory",
        label=Label.CUDA_OOM,
        pattern=r"\bnrt_resource\b|\btdrv\b.{0,160}\bfailed to allocate .{0,60}\b(?:device|hbm|neuron)\b"
        r"|\bout of device (?:dram|hbm|memory)\b|\bncc_eoom\d{3}\b",
        example="ERROR TDRV:dmem_alloc_internal Failed to alloc DEVICE memory: 589934592; NRT_RESOURCE",
        source="AWS Neuron documentation, nrt_status.h (4), compiler error codes EOOM001, EOOM002",
    ),
    Rule(
        name="neuron_compiler_killed",
        label=Label.HOST_OOM_KILLED,
        pattern=r"\[f137\]|\bneuronx?-cc\b.{0,40}\bforcibly killed\b",
        example="[F137] neuronx-cc was forcibly killed - This most commonly occurs due to insufficient system memory.",
        source="github.com/aws-neuron/aws-neuron-sdk/issues/809",
    ),
    Rule(
        # A program or a device: the run stands either way, and the others' lines say which.
        name="neuron_execution_timeout",
        label=Label.NCCL_TIMEOUT,
        pattern=r"\bexecution timeout \(\d{1,9} ms\) on neuron device\b|\btdrv\b.{0,200}\b(?:timeout|timed out)\b"
        r"|\bmiss(?:ing|ed) infer_status notification\b"
        rf"|\bnrt_timeout\b|\bexecution failed: status=5\b|{_STATUS}5\b",
        example="TDRV:exec_consume_infer_status_notifications (FATAL-RT-UNDEFINED-STATE) execution timeout (30000 ms) "
        "on Neuron Device 3 NC 1, waiting for execution completion notification",
        source=f"{_GUIDE}: hang on compute, an unexpected software or hardware issue",
    ),
)
