"""Phrases that name an error and are none. They are taken out of an excerpt before the rules read it. Data.

Each row is there because an ordinary log says it: settings, counts of zero, advice, what a library does by design.
"""

from __future__ import annotations

from typing import Final

from rekindle.signatures.rule import Harmless

# "rank 0 timeout", "QID 0 timeout": this 0 names one of several and counts nothing. (A look-behind has one width.)
_NUMBERED: Final = (
    *("qid", "queue", "rank", "gpu", "node", "port", "link", "lane", "device", "dev", "cpu", "core", "worker", "host"),
    *("nic", "channel", "switch", "nvswitch", "module", "bank", "disk", "process"),
)
_COUNT_0: Final = "0" + "".join(f"(?<!{word}{mark}0)" for word in _NUMBERED for mark in (" ", "_", "#", ": "))

HARMLESS: Final[tuple[Harmless, ...]] = (
    Harmless(
        name="nccl_info",
        pattern=r"nccl info [^\n]*?(?=nccl warn|traceback|runtimeerror|\berror: |\n|\Z)",
        example="node1:533:1765 [2] NCCL INFO NCCL_TIMEOUT set by environment to 1800; retry on connection refused",
        source="NCCL debug.cc: INFO is what NCCL_DEBUG=INFO prints in a healthy run; what matters comes as WARN",
    ),
    Harmless(
        name="libfabric_info",
        pattern=r"libfabric:[^\n<]{0,160}<(?:info|debug|trace)>[^\n]{0,400}",
        example="libfabric:151205:1753871244::core:core:fi_getinfo_():1385<info> fi_getinfo: provider ofi_rxm returned "
        "-61 (No data available)",
        source="libfabric FI_LOG_LEVEL=info: every provider that is not there says so; "
        "github.com/ofiwg/libfabric/issues/11256",
    ),
    Harmless(
        name="socket_retried",
        pattern=r"\[w[^\]\n]{0,80}\bsocket\.cpp:\d{1,5}\][^\n]{0,20}the (?:client|server) socket (?:has|cannot)"
        r"[^\n]{0,400}",
        example="[W1119 13:21:12.512 socket.cpp:752] [c10d] The client socket has failed to connect to [n04]:29500 "
        "(errno: 97 - Address family not supported by protocol).",
        source="PyTorch torch/csrc/distributed/c10d/socket.cpp: a warning is tried again; what fails is an error",
    ),
    Harmless(
        name="none_of_them",
        pattern=r"\bno (?:gpu|device|node|nic|link|rank|worker|file|shard)s? (?:has|have|is|are|was|were) (?:been )?"
        r"(?:fallen off the bus|lost|down|dead|killed|failed|corrupt(?:ed)?|truncated|preempted|drained)\b"
        r"|\b(?:is|are|was|were) not (?:corrupt(?:ed)?|truncated|preempted|cancelled|killed)\b"
        rf"|\b(?:no|without|never|zero|{_COUNT_0}|free of) "
        r"(?:an? |any |more |further |single |new |cuda |gpu |host |ever "
        r"|ran |run |went ){0,3}(?:out[- ]of[- ]memory|ooms?|timeouts?|hangs?|crash(?:es)?|deadlocks?|interruptions?"
        r"|nans?)\b",
        example="torch.cuda.max_memory_allocated: 70 GB; no out of memory so far, without a hang or timeout",
        source="summaries that scripts print: what has not happened",
    ),
    Harmless(
        name="documentation",
        pattern=r"[^\n.;]{0,200}\b(?:notif(?:y|ies)|warns?|gives|lets|allows|helps|tells) you\b[^\n.;]{0,200}",
        example="EC2 instance rebalance recommendations notify you when a Spot Instance is at elevated risk of "
        "interruption",
        source="sentences of user guides, as start-up scripts and README files print them: EC2 User Guide, Spot",
    ),
    Harmless(
        name="zero_count",
        pattern=r"\b(?:errors?|failures?|faults?|failed|nans?|infs?|nan iterations|crc errors?|xid errors?|xids?"
        r"|ecc errors?"
        r"|ecc|retries|timeouts?|oom[_-]?kills?|preemptions?|restarts?|failure occurred|pending|aggregate|volatile"
        r"|uncorrectable"
        r"|correctable|single bit|double bit|dbe|sbe)(?: count| total"
        r"| errors?)?['\"]?\s{0,30}[:=|]{1,2}\s{0,30}(?:0(?![\d.x])|no(?=\s{0,3}(?:[,;|)\n]|\Z))|none\b|false\b"
        r"|n/a\b)|\boom(?:_group)?_kill 0(?![\d.])"
        r"|\b(?:pending|failures?|correctable|uncorrectable) no(?=\s{0,3}(?:[,;|)\n]|\Z))"
        rf"|\b(?:{_COUNT_0}|no|zero) "
        r"(?:(?:uncorrectable|correctable|ue|ce|double[- ]bit|single[- ]bit|fatal|nvlink|ecc|xid|gpu"
        r"|cuda|nccl|hardware|"
        r"io|i/o|new|critical|volatile|aggregate|memory|node|disk|storage|other|known) ){0,4}(?:errors?|failures?"
        r"|faults?|xids?|sxids?|exceptions?|nans?|problems?|issues?|preemptions?)\b",
        example="Volatile Uncorrectable ECC errors: 0, NVLink errors: 0, no Xid errors",
        source="nvidia-smi -q; dcgmi health; Megatron's interval line",
    ),
    Harmless(
        name="nvidia_smi_table",
        pattern=r"volatile uncorr\. ecc|\becc (?:mode|support|is |enabled|disabled)\S{0,20}"
        r"|ecc mode\s{0,20}[:=]?\s{0,20}\w{1,12}"
        r"|remapping failure occurred\s{0,20}:\s{0,3}no|\bgpu memory error correction\b",
        example="| Fan  Temp   Perf          Pwr:Usage/Cap |         Memory-Usage | Volatile Uncorr. ECC |",
        source="nvidia-smi",
    ),
    Harmless(
        name="corrected",
        pattern=r"(?<!un)(?<!not )\bcorrect(?:ed|able)\b[^\n]{0,60}",
        example="mce: [Hardware Error]: Machine check events logged, Corrected error, no action required.",
        source="Linux mce, EDAC CE: ECC did its work",
    ),
    Harmless(
        name="deepspeed_overflow_skip",
        pattern=r"overflow! .{0,80}(?:attempted loss scale: \S{1,24} )?reducing to (?:[2-9]"
        r"|[1-9]\d{1,12})(?:\.0{1,4})?(?![\d.e])",
        example="[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 65536, reducing to 32768.0",
        source="DeepSpeed fp16 loss scaler: by design, while it is above its floor",
    ),
    Harmless(
        name="setting",
        # NAME_IN_CAPITALS=1, --flag-name value, some_option: true; the name holds the word, not the event.
        pattern=r"\b(?!cuda_error)(?:torch_|nccl_|fi_|ofi_|slurm_|pytorch_|cuda_|dist_|gloo_|hydra_|tf_"
        r"|ucx_)\w{3,60}(?:\s?=\s?\S{1,80}| (?:is|has been|was|to) "
        r"(?:set|deprecated|enabled|disabled)[^\n]{0,80})|(?<!\w)--[\w-]{3,60}(?:[= ][^\s-]\S{0,80})?"
        r"|\b\w{0,40}(?:check_for|skip|ignore|on|handle|raise|stop|exit|max|num|retry|auto|detect|allow|nan|error"
        r"|timeout|oom|preempt|interrupt|signal|fault)"
        r"\w{0,40}\s{0,60}[.:=]{1,60}\s{0,30}(?:true|false|none|null|enabled|disabled|on|off)\b",
        example="  check_for_nan_in_loss_and_grad ................. True",
        source="argument dumps of Megatron-LM, accelerate, torchrun; environment variables of NCCL and PyTorch",
    ),
    Harmless(
        name="deprecation",
        pattern=r"(?:\A|(?<=\n))[^\n]{0,400}?\b(?:(?:is|are|was|been|now) deprecated|deprecationwarning"
        r"|futurewarning)\b[^\n]{0,400}",
        example="Warning: Environment variable NCCL_ASYNC_ERROR_HANDLING is deprecated; use "
        "TORCH_NCCL_ASYNC_ERROR_HANDLING",
        source="PyTorch Utils.hpp; Python warnings",
    ),
    Harmless(
        name="advice",
        pattern=r"(?:install|register|enabl|attach|add|set)\w{0,5} [^\n]{0,60}\bhandlers?\b[^\n]{0,60}"
        r"|[^\n]{0,60}\bhandl(?:ers?|ing)\b (?:is |was |are |were |has been |have been )?(?:installed"
        r"|registered|enabled|attached|set|ready|in place)\b[^\n]{0,60}"
        r"|\b(?:avoid|prevent"
        r"|in case of|(?<!unable )to handle|resilient to|tolerate|protects? (?:from|against)|recover(?:ed|ing|y)? from"
        r"|guards? against"
        r"|may (?:cause|lead to|result in|run into|trigger)|might (?:cause|lead to|result in|run into|trigger)"
        r"|could (?:cause|lead to|result in|trigger)"
        r"|can (?:cause|lead to|result in|trigger)|check(?:s|ing)? for|catch(?:es|ing)?|watch(?:es|ing)? for"
        r"|monitor(?:s|ing)? (?:for )?|look(?:s|ing)? for"
        r"|register(?:ed|ing|s)? (?:an? |the )?|install(?:ed|ing|s)? (?:an? |the )?|enabl(?:e|ed|es|ing) (?:an? "
        r"|the )?|listen(?:s|ing)? for|supports?|survives?|(?:restart|resume|requeue|retry)s? (?:up)?on)"
        r"\s(?:[\w/'-]{1,24} ){0,5}?(?:out of memory|oom|ooms|errors?|timeouts?|nans?|preemptions?|failures?|xids?"
        r"|xid errors|sigterm|sigint|sigusr1|signals?|"
        r"interruptions?|deadlocks?|crash(?:es)?|hangs?|corruption|overflow|faults?)\b(?: handlers?)?",
        example="Enabled expandable segments to avoid CUDA out of memory; installing SIGTERM handler for spot "
        "interruption",
        source="advice and start-up lines of frameworks: a hazard is named, none has happened",
    ),
    Harmless(
        name="resumed_after",
        pattern=r"\b(?:resum\w{1,4}|restor\w{1,4}|restart\w{0,4}|recover\w{0,4}|continu\w{1,4})\b[^\n]{0,40}\b(?:after"
        r"|following|from)\b (?:an? |the |last |previous )?"
        r"(?:\w{1,16} )?(?:preemption|failure|interruption|crash|error|timeout|fault|node failure|nan)\b[^\n]{0,40}",
        example="Resuming training after preemption from step 12000",
        source="a run that has come back says what it came back from",
    ),
    Harmless(
        name="answered_no",
        pattern=r"[^\n?]{0,200}\?\s{0,3}(?:no|none|false|0)\s{0,3}(?=\n|\Z)"
        r"|[^\n]{0,120}[:=] {0,3}(?:no (?:\w{1,16} )?(?:notices?|events?|warnings?|interruptions?)"
        r"|not (?:scheduled|pending|seen|raised))\s{0,3}(?=\n|\Z)"
        r"|\bno (?:scheduled|pending|planned) (?:maintenance )?(?:maintenance|events?|interruptions?|terminations?)\b"
        r"|[^\n]{0,120}\b(?:raised|seen|hit|caught|reported|detected) (?:0|zero) times\b",
        example="Killed by user request? no; spot interruption: no notice",
        source="scripts that print what they have looked for: EC2 instance-action answers 404 while nothing is planned",
    ),
    Harmless(
        name="if_you",
        pattern=r"\bif (?:you|it|this|training|the (?:run|job)) (?:still |ever |also )?(?:runs? into|sees?|gets?|hits?"
        r"|encounters?|receives?|faces?)\b[^\n.;]{0,160}"
        r"|\b(?:if|when|whenever|unless|in case) (?:\w{1,20} ){0,3}?(?:loss|losses|gradients?|norms?|logits|values?) "
        r"(?:is|are|becomes?|goes|turns?) (?:nan|inf|infinite|not finite|non-finite)\b",
        example="If you run into CUDA out of memory, lower the batch; raise ValueError if loss is nan (checked)",
        source="advice and settings in the words of start-up lines: what would be done, and when",
    ),
    Harmless(
        name="in_that_case",
        pattern=r"\b(?:if|whenever|unless|in case) (?:the |an? |your |this |that |any )?(?:\w{1,20} ){0,3}?(?:is"
        r"|are|gets?|be|becomes?) (?:being )?"
        r"(?:pre-?empted|interrupted|reclaimed|terminated|evicted|killed|lost|cancelled)\b"
        r"|\b(?:previous|earlier|last) (?:run|attempt|job|instance|worker|session) (?:was|were|got|had been|has been) "
        r"(?:pre-?empted|interrupted|reclaimed|terminated|evicted|killed|cancelled)\b",
        example="The job will be recovered if the spot instance is preempted; the previous run was preempted at step 5",
        source="launchers say what they would do, and what was before: SkyPilot, submitit",
    ),
    Harmless(
        name="invitation",
        pattern=r"\b(?:press|use|hit|type|with) ctrl ?[-+] ?c\b\)? (?:to|twice to|again to|if)\b",
        example="TensorBoard 2.14.0 at http://localhost:6006/ (Press CTRL+C to quit)",
        source="TensorBoard, uvicorn and others at their start",
    ),
    Harmless(
        name="handled",
        pattern=r"(?:\A|(?<=\n))(?![^\n]{0,200}failing async write)[^\n]{0,300}\b(?:will retry|retrying|retry in"
        r"|retry \d|retried|attempt \d{1,3}(?:/"
        r"| of )\d{1,3}|ignoring|ignored|falling back|"
        r"suppressed|(?:is|are) handled (?:by|with))\b[^\n]{0,200}",
        example="WARNING botocore: caught ReadTimeoutError, retrying in 2 s (attempt 1 of 5)",
        source="urllib3, botocore, datasets: handled where it happened",
    ),
    Harmless(
        name="address_tried",
        pattern=r"socket\.cpp[^\n]{0,40}(?:client|server) socket (?:has failed to|cannot be)[^\n]{0,160}(?:errno: 9[79]"
        r"|error: 10049)\b[^\n]{0,80}",
        example="[W socket.cpp:663] [c10d] The client socket has failed to connect to [localhost]:29500 (errno: 99 - "
        "Cannot assign requested address).",
        source="PyTorch c10d/socket.cpp: an IPv6 address that the host does not have; the next one is tried",
    ),
    Harmless(
        name="kernel_version",
        pattern=r"\b(?:smp )?preempt(?:_dynamic|_rt)\b|\bsmp preempt\b|preemptmode\s{0,2}=\s{0,2}\w{1,12}"
        r"|preemption ?mode[.\w]{0,24}"
        r"|\b(?:preemption|preemptible|preemptable)\b.{0,24}(?:enabled|disabled|supported|allowed|=|:)"
        r"|preemptible ?(?:instance|node|vm|kernel)s?"
        r"|sequence group .{0,40}preempt\w{0,6}|preempt_?count\S{0,16}|preemption (?:recompute|swap)\w{0,4}",
        example="Linux version 5.15.0-1031-aws #35 SMP PREEMPT_DYNAMIC; PreemptMode=REQUEUE",
        source="uname -a; scontrol show config; vLLM scheduler: a sequence is preempted, no job",
    ),
    Harmless(
        name="initial_best",
        pattern=r"\b(?:best|lowest|min|minimum|initial|prev(?:ious)?|last_best)[\w ]{0,24}(?:loss|ppl|metric"
        r"|score)?\w{0,8}['\"]?\s{0,3}[:=(]?\s{0,3}(?:is |was )?(?:inf|infinity|nan)\b"
        r"|\bimproved from (?:inf|nan)\b|\bnan_to_num\w{0,4}|\bnan(?:mean|sum|median|std|max|min)\b"
        r"|\bnan_?policy\b|fillna\S{0,8}",
        example="val_loss improved from inf to 2.3121, saving model; best_val_loss: inf",
        source="Keras ModelCheckpoint; early stopping counters at their start",
    ),
    Harmless(
        name="version_banner",
        pattern=r"\b(?:nccl|cuda|efa|ofi|libfabric|ucx|rdma|gsp|gsp firmware|(?<!determine neuron )driver|cudnn"
        r"|infiniband|nvlink|lustre) (?:\w{1,16} )?version\b[^\n\w]{0,12}[\w.+:-]{0,40}",
        example="GSP Firmware Version : 535.104.05; EFA installer version: 1.30.0",
        source="nvidia-smi -q; efa_installed_packages",
    ),
    Harmless(
        name="failure_mode",
        pattern=r"\b\w{0,24}[_ ]?(?:link|nvswitch|gpu)[_ ]failure[_ ]mode\s{0,3}[:=]\s{0,3}\d",
        example="[INFO] nvswitch failure mode : 0; TRUNK_LINK_FAILURE_MODE=1",
        source="NVIDIA Fabric Manager user guide, fabricmanager.cfg: settings printed at the start",
    ),
    Harmless(
        name="watchdog_setup",
        pattern=r"\b(?:hard|soft) lockup detector\b[^\n]{0,80}|\bhung_task_\w{3,30}\b[^\n]{0,60}",
        example='"echo 0 > /proc/sys/kernel/hung_task_timeout_secs" disables this message.',
        source="Linux kernel/watchdog.c and hung_task.c: how to set it up, or that it could not be",
    ),
    Harmless(
        name="closing_siblings",
        pattern=r"sending process \d{1,9} closing signal \w{3,8}|sending processes \d{1,3} closing signal",
        example="torch/distributed/elastic/multiprocessing/api.py:897] Sending process 750661 closing signal SIGTERM",
        source="torch.distributed.elastic ends the siblings of a worker that has failed: what it failed of is "
        "elsewhere",
    ),
)
