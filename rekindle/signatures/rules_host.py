"""Rules about what a process stands on: memory, disk, storage, checkpoints."""

from __future__ import annotations

from typing import Final

from rekindle.protocol.signals import FaultClass
from rekindle.signatures.labels import CausalClass, Label
from rekindle.signatures.responses import FirstResponse
from rekindle.signatures.rule import Rule

MEMORY: Final[tuple[Rule, ...]] = (
    Rule(
        name="host_oom",
        label=Label.HOST_OOM_KILLED,
        pattern=r"\bkilled as a result of limit of\b|\bmemory limit reached of cgroup\b|\bdeadlocked on memory\b"
        r"|\boom[-_ ]?kill|\boom_reaper\b|out of memory: kill"
        r"|\bno killable processes\b|\bearlyoom\b.{0,20}\bsending sig(?:term|kill) to process\b"
        r"|\bsystemd-oomd\b.{0,20}\bkilled \S{1,200} due to\b"
        r"|\bkilled process \d{1,9}(?:, uid \d{1,9},)? \(|memory cgroup out of memory"
        r"|cgroup out-of-memory|low on resource: memory|low on memory|under memory pressure"
        r"|\bslurm out_of_memory\b"
        r"|tasks? [\d,\-]{1,200}: out of memory|out_of_memory\b.{0,30}(?:slurm|state|job)|state=out_of_memory"
        r"|exceeded (?:job |step |its )?memory limit|memory limit.{0,40}(?:being killed|exceeded|killed)"
        r"|(?:cannot|can't|not) (?:able to )?allocate memory|not enough memory: you tried|\bmemoryerror\b|\bbad_alloc\b"
        r"|unable to allocate [\d.]{1,12} ?[kmgtp]i?b\b|instance type with more memory"
        r"|(?:ran|run|running) out of (?:host |system |cpu )?memory|terminated.{0,40}\boom\b",
        example="Memory cgroup out of memory: Killed process 81723 (python) total-vm:412GB, anon-rss:390GB",
        source="Linux mm/oom_kill.c; Slurm task/cgroup; kubelet OOMKilled and Evicted; PyTorch DefaultCPUAllocator; "
        "systemd oomd-manager.c; earlyoom kill.c",
    ),
    Rule(
        name="page_allocation",
        label=Label.HOST_OOM_KILLED,
        pattern=r"\bpage allocation failure: order:\d|\bvmalloc error: size \d",
        example="python3: page allocation failure: order:4, mode:0x40dc0(GFP_KERNEL|__GFP_COMP|__GFP_ZERO)",
        source="Linux mm/page_alloc.c, mm/vmalloc.c: a request was refused; most callers retry or do with less",
        response=FirstResponse.MONITOR,
        order=CausalClass.NEWS,
    ),
    Rule(
        # A SIGKILL names no killer: often the OOM killer, as often a launcher that ends the others. It may be resumed
        # like any crash; the same end at the same step twice still goes to the owner.
        name="killed_9",
        label=Label.HOST_OOM_KILLED,
        pattern=r"\bsigkill\b.{0,40}(?:received|: ?9)|(?:received|got|by|with) (?:signal )?sigkill\b|\bsignal 9\b"
        r"|exit ?_?code\s{0,3}[:=]?\s{0,3}(?:-9|137)\b|exit(?:ed with)? (?:code|status) (?:-9|137)\b"
        r"|(?:\A|\n|\s)\d{2,8} killed\s{1,20}(?:\S{0,80}/)?(?:python|torchrun|accelerate|deepspeed|srun|bash|mpirun)"
        r"|(?:\A|\n)killed\s{0,3}(?:\Z|\n)",
        example="traceback : Signal 9 (SIGKILL) received by PID 6421",
        source="128 + SIGKILL; torch.distributed.elastic prints exitcode: -9",
        fault=FaultClass.SOFTWARE_CRASH,
        order=CausalClass.ENDED,
    ),
)

STORAGE: Final[tuple[Rule, ...]] = (
    Rule(
        name="disk_full",
        label=Label.DISK_FULL,
        pattern=r"no space left on device|\bstoragefull\b|\benospc\b|(?:insufficient|not enough"
        r"|out of) (?:free )?disk space"
        r"|disk quota exceeded|\bedquot\b|(?:disk|file ?system|filesystem) (?:is )?full\b|pytorchstreamwriter failed"
        r"|inline_container.{0,40}unexpected pos|low on resource: ephemeral-storage|\bdiskpressure\b(?!.{0,20}false)"
        r"|user quota exceeded|not enough space (?:on|in|left)",
        example="OSError: [Errno 28] No space left on device: '/fsx/checkpoints/step_1000/optim.pt'",
        source="Linux ENOSPC, EDQUOT; PyTorch inline_container.cc, which reports a short write as 'unexpected pos'",
    ),
    Rule(
        name="checkpoint_corrupt",
        label=Label.CHECKPOINT_CORRUPT,
        pattern=r"pytorchstreamreader failed|unable to load weights from|\btruncated file\b"
        r"|failed finding central directory|error while deserializing header"
        r"|metadataincompletebuffer|\bheadertoo(?:large|small)\b|invalidheader\w{0,20}|safetensorerror.{0,60}"
        r"(?:header|deserializ|incomplete|invalid|offset)|\bunpickl\w{1,3}error\b|\bran out of input\b"
        r"|unexpected eof.{0,60}(?:corrupt|more bytes)|invalid header or archive is corrupted"
        r"|file (?:might|may|is|appears to) be? ?corrupt|(?:not a zip file|\bbadzipfile\b|bad crc-?32)"
        r"|storage has wrong (?:byte )?size"
        r"|invalid magic number|bad magic number|invalid load key"
        r"|(?:checkpoint|snapshot|ckpt|weights?|shard|model|optimizer)\b.{0,80}\b(?:corrupt\w{0,3}|truncated|checksum "
        r"(?:mismatch|error|fail))|\b(?:corrupt\w{0,3}|truncated|incomplete)\b.{0,40}\b(?:checkpoint|snapshot|ckpt"
        r"|model file|state.?dict|safetensors)|checksum (?:mismatch|does not match).{0,60}(?:checkpoint|shard|ckpt)",
        example="RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory",
        source="PyTorch inline_container.cc and serialization.py; safetensors; "
        "github.com/StrongResearch/isc-demos/issues/3; github.com/facebookresearch/XLM/issues/184",
    ),
    Rule(
        name="mount_failed",
        label=Label.STORAGE_IO_ERROR,
        pattern=r"\bmount\.(?:lustre|nfs4?|efs): .{0,200}(?:can't parse nid|failed|timed out|no such|unreachable"
        r"|refused|not known|not found)|\bmount\b.{0,120}\bfsx\b.{0,80}\bfailed\b",
        example="mount.lustre: Can't parse NID 'fs-0a1b.fsx.eu-west-1.amazonaws.com@tcp:/be3hjbev'",
        source="Lustre utils/mount_lustre.c; nfs-utils mount: the same mount fails the same way",
        response=FirstResponse.ASK_OWNER,
    ),
    Rule(
        name="storage_io",
        label=Label.STORAGE_IO_ERROR,
        pattern=r"\binput/output error\b|\b(?:buffer )?i/o error\b(?!s?\W{1,4}0\b)"
        r"|stale (?:nfs )?file handle"
        r"|transport endpoint is not connected|transport endpoint shutdown|\blustre(?:error)?\b.{0,160}(?:error|evict"
        r"|connection (?:to .{0,60})?(?:was )?lost|timed? ?out|not responding|failed|reconnect)"
        r"|\bldlm_\w{3,40}.{0,120}(?:timed? ?out|evict|error)|\bnfs4?:? .{0,60}(?:not responding|timed out"
        r"|server .{0,40}error)"
        r"|read-?only file ?system(?<!recovery required on readonly filesystem)|ext4-fs (?:error|.{0,30}remounting)"
        r"|\bxfs\b.{0,60}(?:corruption|metadata i/o"
        r"|shutdown|error)"
        r"|structure needs cleaning|\bslow ?down\b.{0,60}(?:request rate|s3|503)|reduce your request rate"
        r"|\bendpointconnectionerror\b|\b(?:read|connect)timeouterror\b|could not connect to the endpoint url"
        r"|(?:read|connect) timeout on endpoint url|clienterror.{0,60}an error occurred \((?!throttl|validation"
        r"|accessdenied)"
        r"|an error occurred \((?:slowdown|internalerror|serviceunavailable|requesttimeout|503|500|requesttimetooskewed"
        r"|nosuchbucket|expiredtoken)\)|s3uploadfailederror|\bresponsestreamingerror\b|\[errno (?:5|70|107|108|112"
        r"|116|121)\]"
        r"|\bfstimeouterror\b|\b(?:requests|urllib3)\.exceptions\.\w{3,30}error"
        r"|connectionclosederror.{0,90}endpoint|\bhost is down\b|communication error on send"
        r"|(?:mount-s3|mountpoint|s3fs|fuse|gpfs|beegfs"
        r"|weka)\b.{0,80}(?:i/o error"
        r"|\bfailed\b|\berror\b(?!s?\W{1,3}0)|not responding)|aws_error_s3_\w{3,40}|s3.{0,40}503 service unavailable"
        r"|\bincompleteread\b",
        example="OSError: [Errno 108] Cannot send after transport endpoint shutdown: '/fsx/data/shard-0001.bin'",
        source="Linux errno; Lustre client (LustreError, ldlm); kernel nfs; botocore exceptions; S3 error codes",
    ),
)
