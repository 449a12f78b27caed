"""Kernel messages about network ports, lockups, and the kernel's own end: one row for each subject.

The wording comes from the kernel's format strings, so a row's `source` is the file that prints it. A message names its
device or task in the middle; a pattern therefore holds what stands around it.
"""

from __future__ import annotations

from typing import Final

from rekindle.signatures.labels import CausalClass, Label
from rekindle.signatures.responses import FirstResponse
from rekindle.signatures.rule import Rule

PORTS: Final[tuple[Rule, ...]] = (
    Rule(
        name="port_warning",
        label=Label.IB_NETWORK_ERROR,
        pattern=r"\binsufficient power on the pcie slot\b"
        r"|\bnv_get_p2p_free_callback\b.{0,60}\bdetected invalid context\b",
        example="mlx5_core 0000:81:00.0: mlx5_pcie_event:301: Detected insufficient power on the PCIe slot (25W).",
        source="Linux drivers/net/ethernet/mellanox/mlx5/core/events.c: the port stays up, perhaps slower; "
        "Mellanox nv_peer_memory nv_peer_mem.c: memory was freed under a transfer, as when its process ended",
        response=FirstResponse.MONITOR,
        order=CausalClass.NEWS,
    ),
    Rule(
        name="port_module",
        label=Label.IB_NETWORK_ERROR,
        pattern=r"\bport module event\[error\]"
        r"|\bport module event\b.{0,60}(?:high temperature|cable error|bad or unsupported)",
        example="mlx5_core 0000:b1:00.1: Port module event[error]: module 1, Cable error, Bus stuck",
        source="Linux drivers/net/ethernet/mellanox/mlx5/core/events.c",
    ),
    Rule(
        name="port_transmit",
        label=Label.IB_NETWORK_ERROR,
        pattern=r"netdev watchdog: .{0,20}\((?:mlx[45]|bnxt|irdma|ice|ipoib|ib_ipoib|i40e|qede)\w{0,10}\).{0,20}"
        r"transmit queue|\bib\d{1,3}: transmit timeout|\bfailed (?:cm )?(?:send|recv|receive) event \(status=",
        example="NETDEV WATCHDOG: ib0 (mlx5_core): transmit queue 3 timed out",
        source="Linux net/sched/sch_generic.c, drivers/infiniband/ulp/ipoib",
    ),
    Rule(
        name="port_firmware",
        label=Label.IB_NETWORK_ERROR,
        pattern=r"will cause a leak of a command resource"
        r"|\bmlx[45]_\w{2,12}\b.{0,120}(?:\bassert_var\[|\bover ?temperature|high temperature|internal error"
        r"|health poll failed|handling bad device|entering error state)"
        r"|\bmlx5_(?:enter_error_state|error_sw_reset|pci_err_detected|health_try_recover)\b"
        r"|\bmlx5\w{0,20}.{0,80}\bcq error on cqn\b|\bmlx5e_cq_error_event\b",
        example="mlx5_core 0000:17:00.0: device's health compromised - handling bad device",
        source="Linux drivers/net/ethernet/mellanox/mlx5/core: health.c, main.c, cmd.c, en/reporter_tx.c",
    ),
)

STALLS: Final[tuple[Rule, ...]] = (
    Rule(
        name="kernel_panic",
        label=Label.KERNEL_PANIC,
        pattern=r"\bkernel panic - not syncing\b|\bkernel bug at \S{1,120}[!:]|\boops: [^\n]{0,60}\[#\d{1,3}\]"
        r"|\bunable to handle (?:kernel )?(?:page fault|null pointer dereference|paging request)"
        r"|\bfatal machine check\b|\bend kernel panic\b|\bbug: kernel null pointer dereference\b"
        r"|\b(?:general protection fault|invalid opcode|divide error|double fault|stack segment)\b.{0,80}\[#\d{1,3}\]"
        r"|\bkernel stack is corrupted in\b",
        example="Kernel panic - not syncing: Fatal exception in interrupt",
        source="Linux kernel/panic.c, arch/x86/kernel/dumpstack.c, arch/x86/mm/fault.c, lib/bug.c, mce/core.c",
    ),
    Rule(
        name="hard_lockup",
        label=Label.CPU_LOCKUP,
        pattern=r"\bhard lockup on cpu\b|\bdetected hard lockup\b",
        example="watchdog: Watchdog detected hard LOCKUP on cpu 17",
        source="Linux kernel/watchdog.c: interrupts have been off for the watchdog's time; nothing heals that",
    ),
    Rule(
        name="soft_lockup",
        label=Label.CPU_LOCKUP,
        pattern=r"\bsoft lockup - cpu ?#?\d{1,5} stuck\b|\bworkqueue lockup - pool\b"
        r"|\brcu\w{0,12}\b.{0,60}\b(?:self-)?detected (?:expedited )?stalls?\b"
        r"|\brcu\w{0,12}\b.{0,40}kthread (?:starved for|timer wakeup didn't happen)",
        example="watchdog: BUG: soft lockup - CPU#11 stuck for 26s! [kworker/11:2:4051]",
        source="Linux kernel/watchdog.c, kernel/workqueue.c, kernel/rcu/tree_stall.h: reported; most end on their own",
        response=FirstResponse.MONITOR,
        order=CausalClass.NEWS,
    ),
    Rule(
        name="hung_task",
        label=Label.HUNG_TASK,
        pattern=r"\btask \S{1,40}.{0,24}\bblocked (?:in i/o wait |on an? [\w-]{3,20} )?for more than \d{1,9} seconds"
        r"|\btask \S{1,40}.{0,24}\bblocked on an? [\w-]{3,20},? (?:\w{1,12} ){0,3}likely (?:last )?owned by",
        example="INFO: task kworker/u256:3:9012 blocked for more than 122 seconds.",
        source="Linux kernel/hung_task.c: a task waits for something, mostly storage; the cause is what it waits for",
    ),
    Rule(
        name="hung_lustre_thread",
        label=Label.HUNG_TASK,
        pattern=r"\bservice thread pid \d{1,9} was inactive for\b.{0,40}\bthread might be hung\b",
        example="Lustre: Service thread pid 4051 was inactive for 200.10s. The thread might be hung",
        source="Lustre libcfs watchdog.c",
    ),
)
