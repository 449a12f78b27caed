"""Kernel messages about disks and file systems: one row for each driver whose words they are.

The wording comes from the drivers' format strings, so a row's `source` is the driver's own file. A message names its
device in the middle; a pattern therefore holds what stands around the device.
"""

from __future__ import annotations

from typing import Final

from rekindle.signatures.labels import CausalClass, Label
from rekindle.signatures.responses import FirstResponse
from rekindle.signatures.rule import Rule

ARRAYS: Final[tuple[Rule, ...]] = (
    Rule(
        name="raid_level",
        label=Label.STORAGE_IO_ERROR,
        pattern=r"\bmd/(?:raid\d{0,3}|linear|multipath):\S{0,24}.{0,60}(?:unrecoverable|rescheduling sector"
        r"|too few disks|not correctable|cannot continue|not enough operational|failing array|failed to run"
        r"|too many read errors|exceeded read_error threshold|operation continuing on|dirty degraded array|io failure)",
        example="md/raid1:md0: sdb1: unrecoverable I/O read error for block 2048",
        source="Linux drivers/md: raid0.c, raid1.c, raid10.c, raid5.c, md-linear.c, md-multipath.c",
    ),
    Rule(
        name="raid_core",
        label=Label.STORAGE_IO_ERROR,
        pattern=r"\bdisk failure on \S{1,40}|super_written gets error|\bmd: kicking non-fresh\b"
        r"|\bmd\d{0,3}: .{0,40}is faulty\b|\bmd: disk\d{0,3} read error\b",
        example="md/raid10:md2: Disk failure on nvme3n1, disabling device.",
        source="Linux drivers/md/md.c, and each level's error handler",
    ),
    Rule(
        name="raid_monitor",
        label=Label.STORAGE_IO_ERROR,
        pattern=r"\b(?:fail|failspare|degradedarray) event detected on md device\b",
        example="mdadm[811]: Fail event detected on md device /dev/md0, component device /dev/sdb1",
        source="mdadm Monitor.c",
    ),
)

FILE_SYSTEMS: Final[tuple[Rule, ...]] = (
    Rule(
        name="read_only_file_system",
        label=Label.STORAGE_IO_ERROR,
        pattern=r"\bremounting filesystem read-only\b|\bfilesystem has been set read-only\b"
        r"|\bcan't read superblock on\b",
        example="EXT4-fs (sda1): Remounting filesystem read-only",
        source="Linux fs/ext4/super.c, fs/fat/misc.c; util-linux mount",
    ),
    Rule(
        name="ext4",
        label=Label.STORAGE_IO_ERROR,
        pattern=r"\bext[234]-fs error\b|\bext[234]-fs\b.{0,100}(?:delayed block allocation failed|previous i/o error"
        r"|unable to read superblock|can't read superblock|corrupt|failed to convert unwritten)"
        r"|\bext[234]-fs\b.{0,60}(?:error loading journal)|\bthis should not happen!{1,2} {1,2}data will be lost",
        example="EXT4-fs error (device nvme0n1p1): ext4_find_entry:1455: inode #2: comm systemd: reading directory",
        source="Linux fs/ext4: super.c, inode.c, page-io.c",
    ),
    Rule(
        name="journal",
        label=Label.STORAGE_IO_ERROR,
        pattern=r"\baborting journal on device\b|\bjbd2\b.{0,80}(?:\bi/?o errors?\b|\babort|detected aborted"
        r"|recovery failed|error -\d{1,3} detected)",
        example="Aborting journal on device sda1-8.",
        source="Linux fs/jbd2: journal.c, commit.c",
    ),
    Rule(
        name="xfs",
        label=Label.STORAGE_IO_ERROR,
        pattern=r"\bxfs(?:_\w{3,40})?\b.{0,140}(?:\bcorruption\b|shutting down filesystem"
        r"|filesystem has been shut down|internal error|\bi/o error|run xfs_repair|mount/recovery failed"
        r"|failing async write|writeback error|sb validate failed|rectify the problem|page discard on"
        r"|log check failed|of corrupted metadata buffer|log inconsistent|failed to (?:locate log tail|read root inode)"
        r"|mount failed)|\bxfs_do_force_shutdown\b",
        example="XFS (nvme1n1): xfs_do_force_shutdown(0x8) called from line 461 of file fs/xfs/xfs_buf.c",
        source="Linux fs/xfs: xfs_fsops.c, xfs_buf.c, xfs_log.c, xfs_mount.c, xfs_message.c",
    ),
    Rule(
        name="btrfs",
        label=Label.STORAGE_IO_ERROR,
        pattern=r"\bbtrfs:? (?:error|critical|panic)\b|\bbtrfs\b.{0,100}(?:open_ctree failed|direct io failed"
        r"|unable to fixup|forced readonly|transaction aborted|csum failed|checksum (?:error|verify failed)"
        r"|transid verify failed|lost page write|\bi/?o (?:failure|error)|skipping commit of aborted)",
        example="BTRFS: error (device sdc1) in btrfs_commit_transaction:2403: errno=-5 IO failure",
        source="Linux fs/btrfs: messages.c, disk-io.c, transaction.c",
    ),
    Rule(
        name="other_file_system",
        label=Label.STORAGE_IO_ERROR,
        pattern=r"\b(?:f2fs-fs|fat-fs|squashfs|erofs|gfs2)\b.{0,60}(?:\berror\b|corrupt|withdraw)"
        r"|\bpool '\S{1,60}' has encountered an uncorrectable i/o failure\b"
        r"|\bbcachefs\b.{0,80}(?:\berror\b|emergency read only|shutting down)",
        example="SQUASHFS error: Unable to read fragment cache entry [4a2f]",
        source="Linux fs/f2fs, fs/fat, fs/squashfs, fs/erofs, fs/gfs2; OpenZFS zfs_ioctl.c; bcachefs",
    ),
    Rule(
        name="network_file_system",
        label=Label.STORAGE_IO_ERROR,
        pattern=r"\b(?:lib)?ceph: .{0,80}(?:\bhung\b|caps stale|session lost|blocklisted|blacklisted)"
        r"|\bcifs: vfs:.{0,100}(?:has not responded|send error|disconnected)",
        example="ceph: mds0 hung",
        source="Linux net/ceph, fs/ceph/mds_client.c, fs/smb/client/connect.c",
    ),
    Rule(
        name="file_system_record",
        label=Label.STORAGE_IO_ERROR,
        pattern=r"\berror count since last fsck: [1-9]",
        example="EXT4-fs (sdb1): error count since last fsck: 12",
        source="Linux fs/ext4/super.c, print_daily_error_info: printed each day for errors that may be long past",
        response=FirstResponse.MONITOR,
        order=CausalClass.NEWS,
    ),
)

DISKS: Final[tuple[Rule, ...]] = (
    Rule(
        name="nvme",
        label=Label.STORAGE_IO_ERROR,
        pattern=r"\bnvme\d{0,3}(?:c\d{1,3})?(?:n\d{1,3})?\b.{0,140}(?:\btimed out\b"
        r"|\bi/o\b.{0,60}\btimeout\b(?!, completion polled)|controller (?:is )?(?:down|dead|fatal)|device not ready"
        r"|probe failure|after reset failure|reset failed|no available path|frozen state error|\babort status: 0x"
        r"|failed to (?:reconnect|reset|resume|set up)|failed reconnect attempt|reconnecting in \d{1,4} seconds"
        r"|keep[- ]alive .{0,20}fail|failed nvme_keep_alive|shutdown incomplete|no usable path|queue \d{1,4}: timeout"
        r"|\(sct 0x[0-9a-f]{1,4} / sc 0x|faulty power saving mode|unable to change power state from d3cold"
        r"|starting error recovery|fatal status|i/o error|identify \w{1,12} failed)",
        example="nvme nvme2: I/O 384 QID 7 timeout, aborting",
        source="Linux drivers/nvme/host: pci.c, core.c, multipath.c, fabrics.c, tcp.c, rdma.c",
    ),
    Rule(
        name="nfs_server_silent",
        label=Label.STORAGE_IO_ERROR,
        pattern=r"\b(?:nfs|lockd)\w{0,2}:? server \S{1,80} (?:is )?not responding"
        r"|\bserver \S{1,80} not responding, (?:still trying|timed out)\b",
        example="nfs: server fs-0.fsx.us-west-2.amazonaws.com not responding, still trying",
        source="Linux net/sunrpc/clnt.c",
    ),
    Rule(
        name="nfs_client",
        label=Label.STORAGE_IO_ERROR,
        pattern=r"\bmount\.nfs4?: .{0,100}(?:timed out|refused|denied|stale|not responding|no route|failed)"
        r"|\blockd: failed to reclaim lock\b"
        r"|\bnfs: .{0,90}(?:our clientid is in use|contains a readdir loop|\bmode changed, 0)"
        r"|\bnfs\d?: server \S{1,80} error\b"
        r"|\b_{0,2}nfs\w{0,60}\b.{0,100}(?:reclaim failed|unhandled error|exiting with error|fileid changed"
        r"|bad sequence-?id|failed on nfsv4 server|failed with error|lost \d{1,6} locks?|lease (?:has )?expired)",
        example="NFS: state manager: lease expired failed on NFSv4 server fs-0 with error 13",
        source="Linux fs/nfs: nfs4state.c, nfs4proc.c, inode.c; fs/lockd/clntproc.c; nfs-utils",
    ),
    Rule(
        name="lustre_network",
        label=Label.STORAGE_IO_ERROR,
        pattern=r"\blneterror: \d{1,6}[-:]",
        example="LNetError: 2117:0:(socklnd.c:1681:ksocknal_destroy_conn()) Completing partial receive",
        source="Lustre lnet, libcfs debug.c",
    ),
    Rule(
        name="block_layer",
        label=Label.STORAGE_IO_ERROR,
        pattern=r"attempt to access beyond end of device|\bcritical (?:medium|target|nexus) error\b"
        r"|: writeback error on (?:inode|sector)\b|\blost (?:async |sync )?page write\b",
        example="blk_update_request: critical medium error, dev sdb, sector 2048 op 0x0:(READ) flags 0x0",
        source="Linux block/blk-core.c, fs/buffer.c, fs/iomap/buffered-io.c",
    ),
    Rule(
        name="scsi",
        label=Label.STORAGE_IO_ERROR,
        pattern=r"\bhostbyte=did_(?:time_out|no_connect|bad_target|error|transport_\w{5,12})\b"
        r"|sense key\s?:\s?(?:medium|hardware) error|add\. sense: unrecovered read"
        r"|rejecting i/o to (?:offline|dead) device|\bdevice offlined - not ready|\bdevice offline error, dev\b"
        r"|\bmegaraid_sas\b.{0,80}\bfault state\b",
        example="sd 0:0:0:0: [sda] tag#12 Sense Key : Medium Error [current]",
        source="Linux drivers/scsi: sd.c, scsi_lib.c, scsi_error.c, megaraid/megaraid_sas_base.c",
    ),
    Rule(
        name="ata",
        label=Label.STORAGE_IO_ERROR,
        pattern=r"\bserror: \{|\bata\d{1,3}\.\d\d: (?:status: \{ drdy err|error: \{)"
        r"|\bata\d{1,3}(?:\.\d\d)?: (?:failed command|revalidation failed|exception emask.{0,80}\bfrozen)",
        example="ata3.00: failed command: READ FPDMA QUEUED",
        source="Linux drivers/ata/libata-eh.c, libata-core.c",
    ),
    Rule(
        name="device_mapper",
        label=Label.STORAGE_IO_ERROR,
        pattern=r"device-mapper: multipath.{0,40}failing path"
        r"|device-mapper: (?:thin|raid|cache|integrity|snapshots|verity)\b.{0,80}(?:failed|failure|error|corrupt"
        r"|invalidat)",
        example="device-mapper: multipath: 253:2: Failing path 8:32.",
        source="Linux drivers/md: dm-mpath.c, dm-thin.c, dm-raid.c, dm-cache-target.c, dm-integrity.c",
    ),
    Rule(
        name="smart",
        label=Label.STORAGE_IO_ERROR,
        pattern=r"\bsmartd\b.{0,80}(?:critical warning|failed smart|self-check: failed|currently unreadable"
        r"|offline uncorrectable)",
        example="smartd[912]: Device: /dev/sda [SAT], 8 Currently unreadable (pending) sectors",
        source="smartmontools smartd.cpp",
    ),
)
