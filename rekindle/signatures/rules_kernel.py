"""Rules about what the host's kernel says: disks, file systems, network ports, stalls, its own end.

Families of wording, taken from the format strings of the drivers that print them. Kernel lines carry a device's name in
the middle, so a family is recognized by what stands around it.
"""

from __future__ import annotations

from typing import Final

from rekindle.signatures.labels import CausalClass, Label
from rekindle.signatures.responses import FirstResponse
from rekindle.signatures.rule import Rule

BLOCKS: Final[tuple[Rule, ...]] = (
    Rule(
        name="block_device",
        label=Label.STORAGE_IO_ERROR,
        needs=(
            "beyond end of device",
            "medium error",
            "hardware error",
            "target error",
            "nexus error",
            "unrecovered read",
            "hostbyte=did_",
            "status: {",
            "error: {",
            "fault state",
            "to offline device",
            "to dead device",
            "device offline error",
            "failed command",
            "device offlined",
            "exception emask",
            "writeback error",
            "revalidation failed",
            "page write",
            "failing path",
            "device-mapper",
            "smartd",
        ),
        pattern=r"attempt to access beyond end of device|\bcritical (?:medium|target|nexus) error\b"
        r"|\bhostbyte=did_(?:time_out|no_connect|bad_target|error|transport_\w{5,12})\b|\bserror: \{"
        r"|\bata\d{1,3}\.\d\d: (?:status: \{ drdy err|error: \{)|\bmegaraid_sas\b.{0,80}\bfault state\b"
        r"|sense key\s?:\s?(?:medium|hardware) error|add\. sense: unrecovered read"
        r"|rejecting i/o to (?:offline|dead) device|\bdevice offlined - not ready|\bdevice offline error, dev\b"
        r"|\bata\d{1,3}(?:\.\d\d)?: (?:failed command|revalidation failed|exception emask.{0,80}\bfrozen)"
        r"|: writeback error on (?:inode|sector)\b"
        r"|\blost (?:async |sync )?page write\b|device-mapper: multipath.{0,40}failing path"
        r"|device-mapper: (?:thin|raid|cache|integrity|snapshots|verity)\b.{0,80}(?:failed|failure|error|corrupt"
        r"|invalidat)"
        r"|\bsmartd\b.{0,80}(?:critical warning|failed smart|self-check: failed|currently unreadable"
        r"|offline uncorrectable)",
        example="blk_update_request: critical medium error, dev sdb, sector 2048 op 0x0:(READ) flags 0x0",
        source="Linux block/blk-core.c, drivers/scsi/sd.c and scsi_lib.c, drivers/ata/libata-eh.c, fs/buffer.c, "
        "drivers/md/dm-mpath.c, drivers/scsi/megaraid; smartmontools smartd.cpp",
    ),
    Rule(
        name="md_array",
        label=Label.STORAGE_IO_ERROR,
        needs=(
            "disk failure on",
            "md/raid",
            "md/linear",
            "md/multipath",
            "super_written",
            "kicking non",
            "is faulty",
            "event detected on md device",
            "md: disk",
        ),
        pattern=r"\bdisk failure on \S{1,40}|\bmd/(?:raid\d{0,3}|linear|multipath):\S{0,24}.{0,60}(?:unrecoverable"
        r"|rescheduling sector|too few disks"
        r"|not correctable|cannot continue|not enough operational|failing array|failed to run|too many read errors"
        r"|exceeded read_error threshold|operation continuing on|dirty degraded array|io failure)"
        r"|super_written gets error|\bmd: kicking non-fresh\b|\bmd\d{0,3}: .{0,40}is faulty\b"
        r"|\bmd: disk\d{0,3} read error\b|\b(?:fail|failspare|degradedarray) event detected on md device\b",
        example="md/raid10:md2: Disk failure on nvme3n1, disabling device.",
        source="Linux drivers/md: raid0.c, raid1.c, raid10.c, raid5.c, md-linear.c, md.c; mdadm Monitor.c",
    ),
    Rule(
        name="file_system",
        label=Label.STORAGE_IO_ERROR,
        needs=(
            "filesystem read-only",
            "set read-only",
            "ext2-fs",
            "ext3-fs",
            "ext4-fs",
            "aborting journal",
            "jbd2",
            "data will be lost",
            "superblock on",
            "has encountered an uncorrectable",
            "bcachefs",
            "xfs",
            "btrfs",
            "f2fs",
            "fat-fs",
            "squashfs",
            "erofs",
            "gfs2",
            "ceph",
            "cifs",
        ),
        pattern=r"\bremounting filesystem read-only\b|\bfilesystem has been set read-only\b|\bext[234]-fs error\b"
        r"|\baborting journal on device\b"
        r"|\bext[234]-fs\b.{0,100}(?:delayed block allocation failed|previous i/o error|unable to read superblock"
        r"|can't read superblock|corrupt|failed to convert unwritten)"
        r"|\bext[234]-fs\b.{0,60}(?:error loading journal)"
        r"|\bcan't read superblock on\b|\bthis should not happen!{1,2} {1,2}data will be lost"
        r"|\bpool '\S{1,60}' has encountered an uncorrectable i/o failure\b"
        r"|\bbcachefs\b.{0,80}(?:\berror\b|emergency read only|shutting down)"
        r"|\bjbd2\b.{0,80}(?:\bi/?o errors?\b|\babort|detected aborted|recovery failed|error -\d{1,3} detected)"
        r"|\bxfs(?:_\w{3,40})?\b.{0,140}(?:\bcorruption\b|shutting down filesystem|filesystem has been shut down"
        r"|internal error|\bi/o error|run xfs_repair|mount/recovery failed|failing async write|writeback error"
        r"|sb validate failed|rectify the problem"
        r"|page discard on|log check failed|of corrupted metadata buffer|log inconsistent"
        r"|failed to (?:locate log tail|read root inode)|mount failed)"
        r"|\bxfs_do_force_shutdown\b"
        r"|\bbtrfs:? (?:error|critical|panic)\b|\bbtrfs\b.{0,100}(?:open_ctree failed"
        r"|direct io failed|unable to fixup|forced readonly|transaction aborted|csum failed"
        r"|checksum (?:error|verify failed)|transid verify failed|lost page write|\bi/?o (?:failure|error)"
        r"|skipping commit of aborted)"
        r"|\b(?:f2fs-fs|fat-fs|squashfs|erofs|gfs2)\b.{0,60}(?:\berror\b|corrupt|withdraw)"
        r"|\b(?:lib)?ceph: .{0,80}(?:\bhung\b|caps stale|session lost|blocklisted|blacklisted)"
        r"|\bcifs: vfs:.{0,100}(?:has not responded|send error|disconnected)",
        example="BTRFS: error (device sdc1) in btrfs_commit_transaction:2403: errno=-5 IO failure",
        source="Linux fs/ext4/super.c, fs/jbd2/journal.c, fs/xfs/xfs_fsops.c and xfs_buf.c, fs/btrfs/messages.c, "
        "fs/f2fs, fs/fat, fs/squashfs, fs/gfs2, net/ceph, fs/smb/client; util-linux mount; OpenZFS zfs_ioctl.c; "
        "bcachefs",
    ),
    Rule(
        name="file_system_record",
        label=Label.STORAGE_IO_ERROR,
        needs=("error count since last fsck",),
        pattern=r"\berror count since last fsck: [1-9]",
        example="EXT4-fs (sdb1): error count since last fsck: 12",
        source="Linux fs/ext4/super.c, print_daily_error_info: printed each day for errors that may be long past",
        response=FirstResponse.MONITOR,
        order=CausalClass.NEWS,
    ),
    Rule(
        name="nvme",
        label=Label.STORAGE_IO_ERROR,
        needs=("nvme",),
        pattern=r"\bnvme\d{0,3}(?:c\d{1,3})?(?:n\d{1,3})?\b.{0,140}(?:\btimed out\b"
        r"|\bi/o\b.{0,60}\btimeout\b(?!, completion polled)|controller (?:is )?(?:down|dead|fatal)|device not ready"
        r"|probe failure|after reset failure|reset failed|no available path|frozen state error|\babort status: 0x"
        r"|failed to (?:reconnect|reset|resume|set up)|failed reconnect attempt|reconnecting in \d{1,4} seconds"
        r"|keep[- ]alive .{0,20}fail|failed nvme_keep_alive|shutdown incomplete|no usable path|queue \d{1,4}: timeout"
        r"|\(sct 0x[0-9a-f]{1,4} / sc 0x|faulty power saving mode|unable to change power state from d3cold"
        r"|starting error recovery|fatal status"
        r"|i/o error|identify \w{1,12} failed)",
        example="nvme nvme2: I/O 384 QID 7 timeout, aborting",
        source="Linux drivers/nvme/host: pci.c, core.c, multipath.c, fabrics.c, tcp.c, rdma.c",
    ),
    Rule(
        name="nfs_client",
        label=Label.STORAGE_IO_ERROR,
        needs=("nfs", "lockd", "not responding, still trying", "not responding, timed out", "lneterror"),
        pattern=r"\bmount\.nfs4?: .{0,100}(?:timed out|refused|denied|stale|not responding|no route|failed)"
        r"|\b(?:nfs|lockd)\w{0,2}:? server \S{1,80} (?:is )?not responding"
        r"|\bserver \S{1,80} not responding, (?:still trying|timed out)\b|\blockd: failed to reclaim lock\b"
        r"|\blneterror: \d{1,6}[-:]"
        r"|\bnfs: .{0,90}(?:our clientid is in use|contains a readdir loop|\bmode changed, 0)"
        r"|\bnfs\d?: server \S{1,80} error\b"
        r"|\b_{0,2}nfs\w{0,60}\b.{0,100}(?:reclaim failed|unhandled error|exiting with error|fileid changed"
        r"|bad sequence-?id|failed on nfsv4 server|failed with error|lost \d{1,6} locks?|lease (?:has )?expired)",
        example="NFS: state manager: lease expired failed on NFSv4 server fs-0 with error 13",
        source="Linux fs/nfs/nfs4state.c, nfs4proc.c, inode.c; fs/lockd/clntproc.c; net/sunrpc/clnt.c; "
        "nfs-utils; Lustre lnet",
    ),
)

PORTS: Final[tuple[Rule, ...]] = (
    Rule(
        name="port_warning",
        label=Label.IB_NETWORK_ERROR,
        needs=("insufficient power", "detected invalid context"),
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
        needs=("port module event", "transmit queue", "transmit timeout", "leak of a command", "mlx", "event (status="),
        pattern=r"\bport module event\[error\]"
        r"|\bport module event\b.{0,60}(?:high temperature|cable error|bad or unsupported)"
        r"|netdev watchdog: .{0,20}\((?:mlx[45]|bnxt|irdma|ice|ipoib|ib_ipoib|i40e|qede)\w{0,10}\).{0,20}transmit queue"
        r"|\bib\d{1,3}: transmit timeout|will cause a leak of a command resource"
        r"|\bmlx[45]_\w{2,12}\b.{0,120}(?:\bassert_var\[|\bover ?temperature|high temperature|internal error"
        r"|health poll failed|handling bad device|entering error state)"
        r"|\bmlx5_(?:enter_error_state|error_sw_reset|pci_err_detected|health_try_recover)\b"
        r"|\bmlx5\w{0,20}.{0,80}\bcq error on cqn\b|\bmlx5e_cq_error_event\b|\bfailed (?:cm )?(?:send|recv"
        r"|receive) event \(status=",
        example="mlx5_core 0000:b1:00.1: Port module event[error]: module 1, Cable error, Bus stuck",
        source="Linux drivers/net/ethernet/mellanox/mlx5/core: events.c, health.c, main.c, cmd.c; sch_generic.c; ipoib",
    ),
)

STALLS: Final[tuple[Rule, ...]] = (
    Rule(
        name="kernel_panic",
        label=Label.KERNEL_PANIC,
        needs=(
            "kernel panic",
            "kernel bug at",
            "oops: ",
            "unable to handle",
            "fatal machine check",
            "null pointer dereference",
            "general protection",
            "invalid opcode",
            "divide error",
            "double fault",
            "stack segment",
            "kernel stack is corrupted",
        ),
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
        needs=("hard lockup",),
        pattern=r"\bhard lockup on cpu\b|\bdetected hard lockup\b",
        example="watchdog: Watchdog detected hard LOCKUP on cpu 17",
        source="Linux kernel/watchdog.c: interrupts have been off for the watchdog's time; nothing heals that",
    ),
    Rule(
        name="soft_lockup",
        label=Label.CPU_LOCKUP,
        needs=(
            "soft lockup",
            "workqueue lockup",
            "detected stall",
            "self-detected",
            "detected expedited",
            "starved for",
            "timer wakeup didn't",
        ),
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
        needs=("blocked for more than", "blocked in i/o wait", "blocked on a", "thread might be hung"),
        pattern=r"\btask \S{1,40}.{0,24}\bblocked (?:in i/o wait |on an? [\w-]{3,20} )?for more than \d{1,9} seconds"
        r"|\btask \S{1,40}.{0,24}\bblocked on an? [\w-]{3,20},? (?:\w{1,12} ){0,3}likely (?:last )?owned by"
        r"|\bservice thread pid \d{1,9} was inactive for\b.{0,40}\bthread might be hung\b",
        example="INFO: task kworker/u256:3:9012 blocked for more than 122 seconds.",
        source="Linux kernel/hung_task.c: a task waits for something, mostly storage; the cause is what it waits for; "
        "Lustre libcfs watchdog",
    ),
)
