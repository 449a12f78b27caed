"""Ordinary log lines, most of which name an error and say of none. Written for these tests in the words of the programs
named; a verdict other than benign on any of them would start a recovery that nobody needs.
"""

from __future__ import annotations

from typing import Final

BENIGN_LINES: Final[tuple[str, ...]] = (
    # NCCL, aws-ofi-nccl and libfabric at their start
    "Restarting training: previous run was preempted at step 5000",
    "SkyPilot: job will be recovered automatically if the spot instance is preempted",
    "Checkpointing every 500 steps to survive spot interruptions",
    "Fault-tolerant launcher: will restart on node failure up to 3 times",
    "Press Ctrl+C to stop the server",
    # what was looked for and not found, and what would be done
    "Killed by user request? no",
    "Spot interruption handler polling: no notice",
    "rebalance recommendation = not seen",
    "No GPU has fallen off the bus",
    "the newest checkpoint is not corrupt",
    "low 0\nhigh 0\nmax 0\noom 0\noom_kill 0",
    "EDAC: 0 UE errors",
    "No scheduled maintenance events",
    "torch.cuda.OutOfMemoryError was raised 0 times",
    "Row remapping: pending no, failure no",
    "If you run into CUDA out of memory, lower --per_device_train_batch_size",
    "When the loss is nan the batch is skipped; raise ValueError if loss is nan (check enabled)",
    "OutOfMemoryError is handled by a second try with half the batch",
    "KeyboardInterrupt handling is installed; press Ctrl-C twice to quit",
    "libfabric:15:1753871244::core:core:fi_getinfo_():1385<info> fi_getinfo: provider ofi_rxm returned -61 (No "
    "data available)",
    "graph/search.cc:1135 NCCL WARN Could not find a path for pattern 1, falling back to simple order",
    "node1:533:533 [0] misc/ibvwrap.cc:63 NCCL WARN Failed to open libibverbs.so[.1]",
    "[W socket.cpp:663] [c10d] The client socket has failed to connect to [localhost]:29500 (errno: 99 - Cannot "
    "assign requested address).",
    "pcieport 0000:00:03.1: PCIe Bus Error: severity=Correctable, type=Data Link Layer, (Transmitter ID)",
    "pcieport 0000:00:02.0: AER: Corrected error received: id=0010",
    "torch.cuda.max_memory_allocated: 70GB; no out of memory so far",
    "12 hours without a hang, timeout or crash",
    "Received SIGTERM handler installed for preemption signals",
    "EC2 instance rebalance recommendations notify you when a Spot Instance is at elevated risk of interruption.",
    "UserWarning: `device_train_microbatch_size='auto'` may potentially fail with unexpected CUDA errors. Auto "
    "microbatching attempts to catch CUDA Out of Memory errors and adjust the batch size.",
    "| INFO | fairseq.trainer | NOTE: overflow detected, setting loss scale to: 1024.0",
    "slurmctld: Prolog completed on node gpu-3; no failures",
    "node1:533:1765 [2] NCCL INFO NET/Plugin: No plugin found (libnccl-net.so), using internal implementation",
    "node1:533:1765 [2] NCCL INFO NCCL_IB_TIMEOUT set by environment to 22.",
    "node1:533:1765 [2] NCCL INFO NCCL_ASYNC_ERROR_HANDLING set by environment to 1.",
    "ip-10-0-0-4:88:141 [0] NCCL INFO NET/OFI Using aws-ofi-nccl 1.7.4aws",
    "ip-10-0-0-4:88:141 [0] NCCL INFO NET/OFI Setting FI_EFA_FORK_SAFE environment variable to 1",
    "ip-10-0-0-4:88:141 [0] NCCL INFO NET/OFI Selected Provider is efa (found 4 nics)",
    "ip-10-0-0-4:88:141 [0] NCCL INFO NET/IB : No device found.",
    "ip-10-0-0-4:88:141 [0] NCCL INFO Failed to open libibverbs.so[.1]",
    "ip-10-0-0-4:88:141 [0] NCCL INFO TUNER/Plugin: Failed to find ncclTunerPlugin_v3 symbol.",
    "gpu3:71:99 [1] NCCL INFO Call to connect returned Connection refused, retrying",
    "gpu3:71:99 [1] NCCL INFO Channel 00/24 :    0   1   2   3   4   5   6   7",
    "gpu3:71:99 [1] NCCL INFO comm 0x5571 rank 1 nranks 16 cudaDev 1 busId 1b000 - Abort COMPLETE",
    "gpu3:71:99 [1] NCCL INFO [Service thread] Connection closed by localRank 1",
    "gpu3:71:99 [1] NCCL INFO NVLS multicast support is not available on dev 1",
    "gpu3:71:99 [1] NCCL INFO Trees [0] 1/8/-1->0->-1 [1] 1/-1/-1->0->9",
    "libfabric:462:1673041636:efa:core:rxr_info_to_rxr():506<warn> FI_HMEM capability requires RDMA, which this "
    "device does "
    "not support.",
    "NCCL version 2.20.5+cuda12.4",
    "NCCL_DEBUG=WARN NCCL_TIMEOUT=1800 TORCH_NCCL_BLOCKING_WAIT=1",
    "export NCCL_IB_RETRY_CNT=13 NCCL_IB_TIMEOUT=22",
    "init_process_group(backend='nccl', timeout=datetime.timedelta(seconds=1800))",
    "Setting NCCL timeout to 7200 seconds",
    "[W ProcessGroupNCCL.cpp:1856] Warning: TORCH_NCCL_AVOID_RECORD_STREAMS=1 has no effect for point-to-point "
    "collectives.",
    "[rank0]:[W Utils.hpp:133] Warning: Environment variable NCCL_ASYNC_ERROR_HANDLING is deprecated; use "
    "TORCH_NCCL_ASYNC_ERROR_HANDLING instead (function getCvarInt)",
    "[rank0]:[W ProcessGroupNCCL.cpp:4115] [PG ID 0 PG GUID 0 Rank 0]  using GPU 0 to perform barrier as devices "
    "used by this "
    "process are currently unknown. This can potentially cause a hang if this rank to GPU mapping is incorrect.",
    "[rank0]:[W ProcessGroupNCCL.cpp:1250] Warning: WARNING: process group has NOT been destroyed before we destruct "
    "ProcessGroupNCCL. On normal program exit, the application should call destroy_process_group",
    "Gloo connectFullMesh finished: 7 peers connected",
    # torchrun, accelerate, DeepSpeed, Megatron
    "INFO:torch.distributed.launcher.api:Starting elastic_operator with launch configs:",
    "  rdzv_configs     : {'timeout': 900}",
    "  max_restarts     : 3",
    "INFO:torch.distributed.elastic.agent.server.api:[default] Rendezvous'ing worker group",
    "INFO:torch.distributed.elastic.agent.server.api:[default] Rendezvous complete for workers. Result:",
    "[INFO] dynamic_rendezvous: The node 'worker-0_8_0' attempts to join the next round of the rendezvous",
    "[INFO] c10d_rendezvous_backend: Process 8 hosts the TCP store for the C10d rendezvous backend.",
    "I0520 torch/distributed/elastic/multiprocessing/api.py:897] Sending process 750661 closing signal SIGTERM",
    "Setting OMP_NUM_THREADS environment variable for each process to be 1 in default, to avoid your system being "
    "overloaded, "
    "please further tune the variable for optimal performance in your application as needed.",
    "[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 65536, reducing to 32768",
    "[2024-02-11 10:11:12,131] [INFO] [loss_scaler.py:190:update_scale] [deepspeed] OVERFLOW! Rank 0 Skipping "
    "step. Attempted "
    "loss scale: 4294967296, reducing to 2147483648",
    "Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to 32768.0",
    "Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to 128.0",
    "[2024-02-11 10:11:12,131] [INFO] [config.py:997:print]   loss_scale ................... 0",
    "[2024-02-11 10:11:12,131] [INFO] [config.py:997:print]   min_loss_scale ............... 1",
    '    "fp16": {"enabled": true, "loss_scale": 0, "initial_scale_power": 16, "min_loss_scale": 1},',
    "  initial_loss_scale .............................. 4294967296",
    "  check_for_nan_in_loss_and_grad .................. True",
    "  exit_signal_handler ............................. False",
    "  distributed_timeout_minutes ..................... 10",
    "  exit_on_missing_checkpoint ...................... False",
    "  rerun_mode ...................................... disabled",
    "  error_injection_rate ............................ 0",
    " iteration     1200/  250000 | consumed samples: 1228800 | elapsed time per iteration (ms): 4247.9 | learning "
    "rate: "
    "2.999E-04 | global batch size: 1024 | lm loss: 2.104213E+00 | loss scale: 1.0 | grad norm: 0.312 | number of "
    "skipped "
    "iterations:   0 | number of nan iterations:   0 |",
    " iteration      100/ 1000 | lm loss: 7.1E+00 | loss scale: 65536.0 | grad norm: 1.712 | number of skipped "
    "iterations:   1 | "
    "number of nan iterations:   0 |",
    "successfully saved checkpoint from iteration   12000 to /fsx/ckpt",
    "could not find arguments in the checkpoint ...",
    "WARNING: could not find the metadata file /fsx/ckpt/latest_checkpointed_iteration.txt, will not load any "
    "checkpoints and "
    "will start from random",
    # Hugging Face, Lightning, plain loops
    "{'loss': 2.1043, 'grad_norm': 0.8712, 'learning_rate': 4.9e-05, 'epoch': 0.36}",
    "{'loss': 0.0, 'grad_norm': 0.0, 'learning_rate': 0.0, 'epoch': 3.0}",
    "{'eval_loss': 2.0881, 'eval_runtime': 41.2, 'eval_samples_per_second': 121.3, 'epoch': 1.0}",
    "Epoch 3: 41%|####  | 120/290 [01:10<01:39, 1.70it/s, loss=2.31, v_num=3]",
    "step 4120: train loss 2.9814, val loss 3.0127",
    "step:1750/1750 val_loss:3.2785 train_time:180021ms step_avg:102.87ms",
    "val_loss improved from inf to 2.31210, saving model to best.h5",
    "best_val_loss: inf, patience 0 of 5",
    "Metric val_loss improved. New best score: 0.312",
    "early stopping: best loss = inf, waiting",
    "ppl: inf at initialisation is expected",
    "nan_to_num is applied to the logits",
    "Using nanmean to aggregate; nanoGPT preset 124M",
    "clip_grad_norm_(error_if_nonfinite=False)",
    "detect_anomaly=False, track_grad_norm=-1, terminate_on_nan=None",
    "Filled 0 NaN values in column age",
    "Using bfloat16 Automatic Mixed Precision (AMP)",
    "Saving model checkpoint to output/checkpoint-1500",
    "Trainer.fit stopped: max_steps=1000 reached.",
    "train_error: 0.1231, test_error: 0.2019",
    "mean absolute error = 0.012",
    "word error rate (WER): 12.3, character error rate: 4.1",
    "FutureWarning: `torch.cuda.amp.GradScaler(args...)` is deprecated. Please use `torch.amp.GradScaler('cuda', "
    "args...)`.",
    "UserWarning: Detected call of `lr_scheduler.step()` before `optimizer.step()`.",
    "UserWarning: This DataLoader will create 16 worker processes in total. Our suggested max number of worker in "
    "current system "
    "is 8, which is smaller than what this DataLoader is going to create. Please be aware that excessive worker "
    "creation might "
    "get DataLoader running slow or even freeze, lower the worker number to avoid potential slowness/freeze if "
    "necessary.",
    "Some weights of the model checkpoint were not used when initializing BertModel: ['cls.predictions.bias']",
    "Token indices sequence length is longer than the specified maximum sequence length for this model (712 > "
    "512). Running this "
    "sequence through the model will result in indexing errors",
    "The attention mask is not set and cannot be inferred from input because pad token is same as eos token.",
    "You should probably TRAIN this model on a down-stream task to be able to use it for predictions and inference.",
    "`use_cache=True` is incompatible with gradient checkpointing. Setting `use_cache=False`.",
    "huggingface/tokenizers: The current process just got forked, after parallelism has already been used. "
    "Disabling parallelism "
    "to avoid deadlocks...",
    "wandb: Run data is saved locally in wandb/run-1; run `wandb offline` to turn off syncing.",
    "wandb: WARNING Ignored wandb.init() arg project when running a sweep.",
    "WARNING: caught ConnectionResetError while logging metrics, retrying in 5 s",
    "WARNING urllib3.connectionpool: Retrying (Retry(total=4)) after connection broken by 'ReadTimeoutError': "
    "/api/files",
    "Exception ignored in: <function _MultiProcessingDataLoaderIter.__del__ at 0x7f1c>",
    # memory, GPU and driver, when all is well
    "Peak memory: 71.2 GiB allocated, 0 OOM events, 0 alloc retries",
    "Enabled expandable_segments to avoid CUDA out of memory",
    "Activation checkpointing is on, which prevents out of memory errors",
    "auto_find_batch_size: true, skip_oom_batches: true",
    "ECC errors: 0",
    "GPU 0: Volatile Uncorrectable ECC errors: 0, Aggregate: 0",
    "        Ecc Mode\n            Current                           : Enabled\n            Pending                "
    "           : Enabled",
    "            SRAM Uncorrectable                : 0\n            DRAM Uncorrectable                : 0",
    "    Remapped Rows\n        Correctable Error                 : 0\n        Uncorrectable Error               : "
    "0\n        Pending"
    "                           : No\n        Remapping Failure Occurred        : No",
    "| GPU  Name        Persistence-M| Bus-Id        Disp.A | Volatile Uncorr. ECC |",
    "| N/A   29C    P0              56W / 400W |      4MiB / 81920MiB |      0%      Default |",
    "dcgm health check: 0 errors, no Xid errors found",
    "NVLink: Link 0: 26.562 GB/s; Replay Errors: 0; CRC Errors: 0",
    "nvlink errors: 0",
    "GSP Firmware Version                  : 535.104.05",
    "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  535.104.05",
    "nvidia-fabricmanager: Successfully configured all the available NVSwitches to route GPU NVLink traffic.",
    "mce: [Hardware Error]: Machine check events logged, Corrected error, no action required.",
    "EDAC MC0: 1 CE memory read error on CPU_SrcID#0_MC#0 (corrected)",
    "NVRM: Xid (PCI:0000:1b:00): 43, pid=2812, name=python, Ch 00000010",
    "NVRM: Xid (PCI:0000:1b:00): 45, pid=2812, name=python, Ch 00000008",
    "NVRM: Xid (PCI:0000:1b:00): 154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)",
    "Linux ip-10-0-0-4 5.15.0-1031-aws #35-Ubuntu SMP PREEMPT_DYNAMIC x86_64 GNU/Linux",
    "mlx5_core 0000:0d:00.0 ens1np0: Link up",
    "mlx5_0: port 1 state ACTIVE, rate 400 Gb/sec (4X NDR)",
    "efa 0000:00:06.0: EFA device initialized",
    "EFA installer version: 1.30.0",
    # schedulers and the cloud
    "PreemptMode=REQUEUE, GraceTime=120",
    "Job resumed after preemption, continuing from step 12000",
    "Resuming training after node failure from checkpoint-4000",
    "preemption checkpointing enabled, signal SIGUSR1",
    "Registered SIGTERM handler for graceful shutdown",
    "Installed signal handlers for SIGTERM and SIGINT",
    "Listening for spot interruption notices on the instance metadata service",
    "srun: job 218211 queued and waiting for resources",
    "srun: job 218211 has been allocated resources",
    "slurmstepd: task_p_pre_launch: Using sched_affinity for tasks",
    "JobId=218211 State=COMPLETED ExitCode=0:0",
    "  exited with exit code 0",
    "All 16 nodes healthy, 0 node failures",
    "PULSE: the job is running for 1-07:27:33 on 48 nodes",
    "Requeue=1 Restarts=0 BatchFlag=1",
    "[2024-03-01] Reporting training SUCCESS",
    "sagemaker-training-toolkit INFO     Waiting for the process to finish and give a return code.",
    "sagemaker-training-toolkit INFO     Done waiting for a return code. Received 0 from exiting process.",
    "INFO  Cluster 'p5-train' status InService; interrupted nodes: 0",
    # storage and checkpoints
    "Checkpoint step 4000 verified: 64 of 64 shards, checksums match",
    "Restored from checkpoint s3://bucket/run/step_4000 in 41.2 s",
    "Uploading checkpoint to S3, 12.1 GiB/s, 0 errors",
    "Download retries: 0, failed downloads: 0",
    "s3transfer: retrying part 12 of the upload after SlowDown (attempt 1 of 5)",
    "Lustre: fsx-OST0003-osc: Connection restored to fsx-OST0003 (at 10.0.1.5@tcp)",
    "Filesystem      Size  Used Avail Use% Mounted on",
    "/dev/nvme1n1    3.5T  1.1T  2.4T  32% /local",
    "Disk space left: 2.4 TiB",
    "skip_corrupt_samples=True: 0 corrupted samples skipped",
    "Loading checkpoint shards: 100%|##########| 4/4 [00:12<00:00,  3.1s/it]",
    "dataset contains 120312 samples, 3 truncated to 2048 tokens",
    # text of the data itself, generated samples
    "sample: the segmentation of the market was a fault of the previous error in judgement",
    "prompt: how do I fix a memory leak? answer: find what holds the memory.",
    "Fault tolerance: enabled (max 3 restarts)",
    "timeouts: connect 10 s, read 60 s",
    "Watchdog enabled with timeout 600 s",
    "hang detection: no step for 0.0 s",
    "0 errors, 0 warnings",
    "Found 0 corrupted files",
    "Validation passed with no errors",
    "error_rate=0.00 retry_count=0",
    "tests passed: 120, failed: 0",
    "signal-to-noise ratio 12.3",
    "Loss function: CrossEntropyLoss(ignore_index=-100)",
    "loss: information bottleneck, weight 0.1",
    "Info: loss info written to loss_info.json",
    "inference batch size 8, infinite dataloader",
    "killed time series filter: off",
    "",
    "   ",
    "ok",
    "[W socket.cpp:601] [c10d] The client socket has failed to connect to [10.0.0.4]:29500 (errno: 111 - Connection "
    "refused).",
    "[rank3]:[W1119 13:21:12.512 socket.cpp:752] [c10d] The client socket cannot be initialized to connect to [head]",
    "amdgpu 0000:9d:00.0: {1}socket: 6, die: 1, 1533 new correctable hardware errors detected in xgmi_wafl block",
    "amdgpu 0000:9d:00.0: amdgpu: GPU recovery is enabled",
    "neuron: Neuron Driver loaded, 16 devices found",
)
