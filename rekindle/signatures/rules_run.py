"""Rules about how a run ends: the scheduler's and people's orders, its data workers, its own code."""

from __future__ import annotations

from typing import Final

from rekindle.signatures.labels import CausalClass, Label
from rekindle.signatures.rule import Rule

ENDS: Final[tuple[Rule, ...]] = (
    Rule(
        name="slurm_node_fail",
        label=Label.SLURM_NODE_FAIL,
        pattern=r"\bnode failure\b|(?<![a-z])node_?fail\w{0,2}\b|node ping apparently hung|nodes may be down\b"
        r"|lost communication with a remote daemon|nodes? \S{1,120} (?:is )?not responding"
        r"|not responding, setting down"
        r"|\bnode (?:is )?not ?ready\b|\bnodenotready\b|\bnode_?lost\b|lost node\b|\bprolog\w{0,8}.{0,40}(?:failed"
        r"|failure|error|hung on)|\bdown\*?\s.{0,160}\bnot responding\b"
        r"|node .{0,60}unexpectedly rebooted|\bnode .{0,60}(?:has )?died\b|\bnode \S{1,80} is (?:down|unreachable)\b"
        r"|kubelet stopped posting node status|node ?unreachable\b|unable to confirm allocation",
        example="slurmstepd: error: *** STEP 5513.0 ON p5-17 CANCELLED AT 2024-03-02T11:10:09 DUE TO NODE FAILURE, SEE "
        "SLURMCTLD LOG FOR DETAILS ***",
        source="Slurm slurmctld and slurmstepd messages; Kubernetes node lifecycle controller; Ray 'node has died'",
    ),
    Rule(
        name="preemption",
        label=Label.PREEMPTION,
        pattern=r"due to pre-?emption|\b(?:job|step|task|pod|instance|worker|node|cluster|run|vm|tpu|workload)\b.{0,60}"
        r"(?:was|is|being|been|got|will be) pre-?empted|\bpre-?empted (?:by|in order|due|at)\b|state=preempted\b"
        r"|\bpreempted\b.{0,20}\bby (?:the )?(?:scheduler|slurm|kueue|platform)"
        r"|\bpreemption (?:notice|signal|"
        r"event|warning|detected|received|imminent)|received (?:a )?preempt\w{1,5}|\bpreempted\s{0,2}(?:\Z|\n|0:)"
        r"|preempting (?:job|pod|task|workload)|spot (?:instance |vm )?(?:interruption|reclaim\w{0,5}"
        r"|terminat\w{1,5}|preempt\w{1,5}"
        r"|was interrupted|instances? (?:is|was|will be) (?:being )?(?:interrupted|terminated|reclaimed|stopped))"
        r"|instance (?:interruption|termination) (?:notice|warning)|rebalance recommendation\b"
        r"|ec2 spot .{0,40}(?:interrupt|terminat)"
        r"|instance .{0,40}(?:marked for termination|will be (?:terminated|reclaimed|interrupted))|spot/instance-action"
        r"|(?:received|caught|got|handling|trapped) (?:signal |termination signal "
        r"|shutdown signal )?\(?(?:signals\.)?(?:sigterm|15)\b"
        r"|(?:signal|sigterm)[ :(]{1,3}15\)?.{0,20}(?:received|caught|shutting|terminat)|sigterm (?:received"
        r"|caught|detected|signal received)"
        r"|due to (?:job )?requeue|due to time limit|\bjob .{0,40}requeued\b|scheduled maintenance event|"
        r"\bnode ?shutdown\b|terminationbykubelet",
        example="slurmstepd: error: *** JOB 32391783 ON cn119 CANCELLED AT 2021-06-18T13:05:36 DUE TO PREEMPTION ***",
        source="Slurm; EC2 Spot interruption notice; submitit",
    ),
    Rule(
        # A launcher passes SIGTERM on, whoever ended the run: of itself it says no more than that.
        name="ended_by_sigterm",
        label=Label.PREEMPTION,
        pattern=r"received (?:15|sigterm) death signal|received \d{0,2}\s?death signal.{0,4}(?!.)|got signal: 15\b"
        r"|\bsignal 15 \(sigterm\) received|terminated by (?:signal )?(?:15|sigterm)|exitcode\s{0,3}: -15"
        r"|exit code 143\b|died with <signals\.sigterm",
        example="WARNING:torch.distributed.elastic.agent.server.api:Received 15 death signal, shutting down workers",
        source="torch.distributed.elastic agent/server/api.py, multiprocessing/errors; 128 + SIGTERM",
        order=CausalClass.ENDED,
    ),
    Rule(
        # Since Slurm 25.05 or so the step's own line names the task.
        name="step_task_failure",
        label=Label.PYTHON_EXCEPTION_USER_CODE,
        pattern=r"cancelled at .{0,60}due to task failure",
        example="slurmstepd: error: *** STEP 7.0 ON node042 CANCELLED AT 2026-05-14T09:31:02 DUE TO TASK FAILURE ***",
        source="Slurm 26.05 slurmstepd",
        order=CausalClass.ENDED,
    ),
    Rule(
        # Up to Slurm 24.11 srun's own end of a step, after a task failed, reads like this. scancel prints *** JOB as
        # well, and "forcing job termination".
        name="step_cancelled",
        label=Label.USER_CANCELLED,
        pattern=r"\*\*\* step \S{1,40} on \S{1,80} cancelled at \d{4}-\d\d-\d\dt[\d:]{8}(?:\.\d{1,6})?\s{0,3}\*\*\*",
        example="slurmstepd: error: *** STEP 218211.0 ON node042 CANCELLED AT 2024-05-14T09:31:02 ***",
        source="Slurm up to 24.11, slurmstepd: srun --kill-on-bad-exit and scancel alike",
        order=CausalClass.ENDED,
    ),
    Rule(
        name="user_cancelled",
        label=Label.USER_CANCELLED,
        pattern=r"\bkeyboard ?interrupt\b|(?:received|caught|got|detected|handling"
        r"|by) (?:signal )?\(?(?:signals\.)?(?:sigint|sighup)\b"
        r"|\bsig(?:int|hup)\b.{0,12}(?:received|caught|detected)"
        r"|\bcancelled at \d{4}-\d\d-\d\dt[\d:]{8}(?:\.\d{1,6})?\s{0,3}\*\*\*"
        r"|\bcancell?ed by (?:\d{1,9}|(?:the )?user|admin|owner|\w{1,32} \(uid)"
        r"|cancelled at .{0,60}due to (?:user|signal"
        r"|scancel)"
        r"|\bctrl ?[-+] ?c\b|(?:\A|\n)\^c|got signal: [12]\b|received [12] death signal|srun: interrupt"
        r"|\bscancel(?:led|ed)?\b.{0,40}(?:job|by)"
        r"|(?:interrupt|stopp|cancel|cancell|terminat|abort|kill)ed (?:the (?:run|job|training) )?(?:manually"
        r"|by (?:the )?user)"
        r"|\buser[- ](?:requested|initiated|interrupt)\w{0,2}.{0,20}(?:cancel|stop|abort|terminat|shutdown|\Z|\n)"
        r"|on user request"
        r"|srun: forcing job termination|stoptrainingjob (?:was )?(?:called|requested)|signal 2 \(sigint\)"
        r"|died with <signals\.sigint|\bstatus: cancell?(?:ed|ing)\b",
        example="slurmstepd: error: *** JOB 218211 ON node042 CANCELLED AT 2024-05-14T09:31:02 ***",
        source="POSIX SIGINT; Slurm scancel: the message without a 'DUE TO'; Python KeyboardInterrupt",
    ),
    Rule(
        name="dataloader",
        label=Label.DATALOADER_CRASH,
        pattern=r"data ?loader worker.{0,90}(?:exited unexpectedly|died|is dead|killed|crash)"
        r"|in data ?loader worker process|data ?loader timed out|workers are out of shared memory"
        r"|insufficient shared memory|(?:unable to open|could not unlink|unable to mmap|allocate).{0,30}shared memory"
        r"|data ?loader.{0,60}(?:crash|worker.{0,20}(?:fail|died))|dataset worker.{0,40}(?:died|crash|fail)",
        example="RuntimeError: DataLoader worker (pid(s) 4123, 4125) exited unexpectedly",
        source="PyTorch torch/utils/data/dataloader.py; _utils/signal_handling.py",
    ),
    Rule(
        # NCCL's watchdog, glibc and Python end a process with SIGABRT once something else has gone wrong.
        name="aborted",
        label=Label.SEGFAULT,
        pattern=r"\baborted \(core dumped\)|\bfatal python error: aborted\b"
        r"|exit(?:ed with)? ?(?:code|status)\s{0,3}[:=]?\s{0,3}\(?(?:-6|134)\b|\bsigabrt\b.{0,30}(?:received|: ?6)"
        r"|signal 6 \(|died with <signals\.sigabrt",
        example="srun: error: node042: task 3: Aborted (core dumped)",
        source="PyTorch ProcessGroupNCCL.cpp ends the process; torch.distributed.elastic prints exitcode: -6; 128 + "
        "SIGABRT",
        order=CausalClass.ENDED,
    ),
    Rule(
        name="segfault",
        label=Label.SEGFAULT,
        pattern=r"\bsegfault(?:ed)?\b(?!\w)|segmentation fault|\bsigsegv\b|\bsignal(?: |: )11\b"
        r"|(?<!pcie )\bbus error\b"
        r"|\bsigbus\b"
        r"|exit(?:ed with)? ?(?:code|status)\s{0,3}[:=]?\s{0,3}\(?(?:-11|139|-7|135)\b|core dumped"
        r"|general protection (?:fault|ip)"
        r"|\btraps: .{0,60}\btrap (?:invalid opcode|divide error|stack segment|int3) ip:"
        r"|address not mapped"
        r"|double free or corruption|(?:free|realloc|munmap_chunk)\(\): invalid|malloc\(\): (?:corrupt|invalid"
        r"|unsorted|memory)"
        r"|corrupted (?:size|double-linked)|stack smashing detected",
        example="python[4123]: segfault at 0 ip 00007f3c9e2a sp 00007ffd4a8e error 4 in libtorch_cuda.so",
        source="Linux x86 fault.c; torch.distributed.elastic prints exitcode: -11 and Signal 11 (SIGSEGV)",
    ),
)

PYTHON: Final[tuple[Rule, ...]] = (
    Rule(
        # A launcher's or a wrapper's own exception: what it stands around failed, and has said of what.
        name="child_failed",
        label=Label.PYTHON_EXCEPTION_USER_CODE,
        pattern=r"\bchildfailederror\b|\bcalledprocesserror\b|\bexecuteuserscripterror\b|\bsignalexception\b"
        r"|\bprocess(?:raised|exited)exception\b|\bbad statusor access: internal\b",
        example="torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
        source="torch.distributed.elastic; torch.multiprocessing.spawn; subprocess; sagemaker-training-toolkit; "
        "torch-xla",
        order=CausalClass.ENDED,
    ),
    Rule(
        name="python_exception",
        label=Label.PYTHON_EXCEPTION_USER_CODE,
        is_cased=True,
        # An exception's class where Python prints it: first on its line, or after a dotted module or a prefix.
        pattern=r"(?:\A|[\n\s\].(|:])(?!\w{0,20}Warning)(?:[A-Z][a-z0-9]{0,24}){1,6}(?:Error|Exception)(?::\s"
        r"|:\Z|\s{0,3}\Z"
        r"|\s{0,3}\n|\()|\bStopIteration\b|\bSystemExit: [1-9]"
        r"|(?:\A|\n)(?:\[rank\d{1,6}\]: ?)?(?:[a-z_]\w{0,30}\.){1,6}(?:exc|errors?|exceptions?)\.[A-Z]\w{2,40}"
        r"(?::|\n|\Z)",
        example="    logits = batch['labels']\nKeyError: 'labels'",
        source="CPython traceback module",
    ),
    Rule(
        name="traceback",
        label=Label.PYTHON_EXCEPTION_USER_CODE,
        pattern=r"traceback \(most recent call last\)|error executing job with overrides"
        # The program called NCCL wrongly: ncclInvalidUsage, ncclInvalidArgument.
        r"|\bncclinvalid(?:usage|argument)\b",
        example="[rank0]: Traceback (most recent call last):",
        source="CPython traceback module; Hydra; NCCL ncclResult_t",
        order=CausalClass.ENDED,
    ),
    Rule(
        name="exit_code",
        label=Label.PYTHON_EXCEPTION_USER_CODE,
        pattern=r"worker group failed\b|(?:\A|reason: )\s{0,3}algorithmerror\b"
        r"|exit(?:ed with| with)? ?(?:exit )?(?:code|status)\s{0,3}[:=]?\s{0,3}\(?[1-9]\d{0,2}\b"
        r"|exitcode\s{0,3}[:=]\s{0,3}-?[1-9]\d{0,2}\b"
        r"|exits with return code = -?[1-9]",
        example="srun: error: node042: task 3: Exited with exit code 1",
        source="srun; torch.distributed.elastic; sagemaker-training-toolkit; DeepSpeed launcher",
        order=CausalClass.ENDED,
    ),
)


_NUMBER: Final = r"(?:nan|-?inf(?:inity)?)"

NUMBERS: Final[tuple[Rule, ...]] = (
    Rule(
        name="loss_scale_floor",
        label=Label.LOSS_SCALE_COLLAPSE,
        pattern=r"loss[ _]?scale(?:r)?.{0,30}(?:already )?at (?:its )?minimum|cannot decrease (?:loss )?scale anymore"
        r"|minimum loss scale reached|loss scale (?:has )?(?:reached|hit|fallen to) (?:its |the )?(?:minimum|floor)"
        r"|(?:reducing|decreasing|lowering) (?:loss[ _]?scale )?to (?:0?\.\d{1,60}|0(?:\.0{0,60})?|1(?:\.0{0,60})?"
        r"|\d(?:\.\d{1,40})?e-\d{1,4})(?![\d.e])"
        r"|setting loss[ _]?scale to:? (?:0?\.\d{1,60}|\d(?:\.\d{1,40})?e-\d{1,4})(?![\d.e])"
        r"|loss[ _]?scale.{0,40}\b(?:too small|underflow\w{0,2}|collaps\w{1,3})\b",
        example="Exception: Current loss scale already at minimum - cannot decrease scale anymore. Exiting run.",
        source="DeepSpeed runtime/fp16/loss_scaler.py; apex amp; fairseq fp16_optimizer; "
        "github.com/ymcui/Chinese-LLaMA-Alpaca/issues/534; github.com/facebookresearch/fairseq/issues/512",
    ),
    Rule(
        name="loss_scale_zero",
        label=Label.LOSS_SCALE_COLLAPSE,
        # A whole 0 is no scale but a setting ("loss_scale": 0 asks DeepSpeed for a dynamic one). Written out, so that
        # the prefilter looks for these words and not for "loss", which every line of a trainer holds.
        pattern=r"(?:loss scale|loss_scale|lossscale)['\"]?\s{0,3}[:=]\s{0,6}"
        r"(?:0\.0{0,60}(?![\d])|\d(?:\.\d{1,40})?e-\d{1,4})",
        example=" iteration 1201/ 9000 | lm loss: 9.1E+00 | loss scale: 0.0 | number of skipped iterations:  10 |",
        source="Megatron-LM training log; apex amp",
    ),
    Rule(
        name="nan_iterations",
        label=Label.NAN_LOSS,
        pattern=r"nan iterations\s{0,3}:\s{0,12}[1-9]",
        example=" iteration 9/ 10 | loss scale: 1.0 | number of skipped iterations:   1 | number of nan "
        "iterations:   1 |",
        source="Megatron-LM training log; github.com/deepspeedai/Megatron-DeepSpeed/pull/434",
    ),
    Rule(
        name="nan_loss",
        label=Label.NAN_LOSS,
        pattern=rf"loss\w{{0,12}}['\"]?(?:\s?\(\w{{1,12}}\))?\s{{0,3}}(?:[:=]{{1,2}}|\bis:?|\bwas|\bbec[ao]mes?"
        rf"|\bwent(?: to)?|\s)\s{{0,6}}"
        rf"['\"]?(?:tensor\()?(?:now )?{_NUMBER}\b(?![\w.:/-])"
        r"|loss is (?:not finite|non-?finite)|\bloss (?:became|becomes|went) (?:infinite|nan|non-?finite|inf)"
        r"|grad(?:ient)?(?:ients)?s?[_ ]?norm\w{0,6}['\"]?(?:\s{0,3}[:=]\s{0,6}"
        r"|\s{1,6})['\"]?(?:tensor\()?nan\b(?![\w./-])"
        r"|\b(?:found|detected|encountered|got|unexpected result) (?:a |an )?(?:nan|non-?finite"
        r"|infs?)\w{0,2}\b(?!.{0,12}: ?false)"
        r"|\bnan(?:s|/inf)? (?:or inf(?:inity)? )?(?:loss|was|were|is )?\s?(?:detected|encountered|found"
        r"|gradients?\b|grad[_ ]?norm\b|loss\b)"
        r"(?!\w)|\bnans?(?:/infs?| or infs?)? (?:in |values? in )(?:the )?(?:\w{1,12} )?(?:loss|grad|output|logits"
        r"|weight|param)"
        r"|\breturned nan values\b|non-?finite (?:loss|grad|value)|(?:loss|gradients?|parameters?|logits|weights?"
        r"|activations?)"
        r" (?:has|have|contains?|are|is) (?:nans?|infs?|non-?finite)\b|became infinite or nan"
        r"|\bppl:? nan\b|loss (?:has )?(?:exploded|diverged)",
        example="{'loss': nan, 'grad_norm': nan, 'learning_rate': 9.9e-05, 'epoch': 0.12}",
        source="Hugging Face Trainer, Megatron-LM 'found NaN in local grad norm', torchvision 'Loss is nan, stopping "
        "training', detectron2 'became infinite or NaN', tensorboard 'NaN or Inf found in input tensor'",
    ),
)
