"""Log excerpts that say something is wrong. Written for these tests in the words of the programs named; where one
is quoted (shortened) from a public thread, its address stands beside it.

The table is by label: label -> excerpts.
"""

from __future__ import annotations

from typing import Final

from rekindle.signatures import Label

L = Label

FAULTS: Final[dict[Label, tuple[str, ...]]] = {
    L.NCCL_TIMEOUT: (
        # ProcessGroupNCCL.cpp, versions 1.12 to 2.7
        "[E ProcessGroupNCCL.cpp:828] [Rank 5] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=2101, "
        "OpType=ALLGATHER, Timeout(ms)=1800000) ran for 1800421 milliseconds before timing out.",
        "[E ProcessGroupNCCL.cpp:455] Some NCCL operations have failed or timed out. Due to the asynchronous nature of "
        "CUDA kernels, subsequent GPU operations might run on corrupted/incomplete data.",
        "[E ProcessGroupNCCL.cpp:460] To avoid data inconsistency, we are taking the entire process down.",
        "[rank6]:[E1019 01:04:03.358023054 ProcessGroupNCCL.cpp:1413] [PG 3 Rank 6] Heartbeat monitor timed out! "
        "Process "
        "will be terminated after dumping debug info. workMetaList_.size()=121",  # sgl-project/sglang issue 1691
        "[rank2]:[F ProcessGroupNCCL.cpp:1224] [PG 3 Rank 2] ProcessGroupNCCL's watchdog got stuck for 600 seconds "
        "without making progress in monitoring enqueued collectives. This typically indicates a NCCL/CUDA API hang",
        "[rank0]:[E ProcessGroupNCCL.cpp:537] [Rank 0] NCCL watchdog thread terminated with exception: [Rank 0] "
        "Watchdog "
        "caught collective operation timeout: WorkNCCL(SeqNum=9, OpType=ALLREDUCE) ran for 600029 milliseconds",
        "terminate called after throwing an instance of 'c10::DistBackendError'\n  what():  [PG 0 Rank 1] NCCL "
        "watchdog "
        "thread terminated with exception: [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=3)",
        "[rank3]:[E1206 ProcessGroupNCCL.cpp:1785] [PG ID 0 PG GUID 0 Rank 3] Timeout at NCCL work: 4211, last "
        "enqueued "
        "NCCL work: 4211, last completed NCCL work: 4210.",
        "RuntimeError: [../third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:136] Timed out waiting 1800000ms for "
        "send operation to complete",
        "RuntimeError: Rank 0 timed out in monitoredBarrier after 60000 ms: ranks 3, 7 failed to pass monitoredBarrier",
        "[rank4]:[E ProcessGroupNCCL.cpp:1282] [PG 0 Rank 4] Received a global timeout from another rank and will "
        "start "
        "to dump the debug info. received a timeout signal from this local rank",
    ),
    L.NCCL_REMOTE_ERROR: (
        "node4:337:453 [6] proxy.cc:862 NCCL WARN Proxy Call to rank 14 failed (Connect)",
        "node4:337:453 [6] proxy.cc:1097 NCCL WARN [Proxy Service 14] Failed to execute operation Connect from "
        "rank 14, retcode 2",
        "gpu7:22:27 [3] proxy.cc:1143 NCCL WARN Socket recv failed while polling for opId=0x7f4774cc9620",
        "gpu7:22:22 [0] bootstrap.cc:45 NCCL WARN Bootstrap : no socket interface found",
        "torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/NCCLUtils.hpp:219, remote "
        "process exited or there was a network error, NCCL version 2.18.1",
        "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.",
        "RuntimeError: NCCL error in: ProcessGroupNCCL.cpp:784, unhandled system error, NCCL version 2.7.8\n"
        "ncclSystemError: System call (socket, malloc, munmap, etc) failed.",
        "node3:2217:2301 [1] include/socket.h:403 NCCL WARN Call to recv failed : Connection reset by peer",
        "ip-10-0-3-17:811:902 [0] misc/socket.cc:564 NCCL WARN socketProgress: Connection closed by remote peer "
        "ip-10-0-3-18<41322>",
        "node1:100:190 [3] misc/socket.cc:484 NCCL WARN socketStartConnect: Connect to 10.2.1.7<40321> failed : No "
        "route "
        "to host",
        "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:525] Connection closed by peer [10.1.2.3]:18221",
        "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection reset by peer",
        "init.cc:290 NCCL WARN Attempt to use communicator before the previous operation returned ncclSuccess",
        "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:3144, internal error - please report "
        "this issue to the NCCL developers\nncclInternalError: Internal check failed.\nLast error:\n",
        "[2]:RuntimeError: NCCL communicator was aborted on rank 2. Original reason for failure was: NCCL error: "
        "remote "
        "process exited or there was a network error",
        "bootstrap.cc:45 NCCL WARN Call to connect returned Connection refused",
    ),
    L.IB_NETWORK_ERROR: (
        "node-7:91:412 [2] transport/net_ib.cc:1295 NCCL WARN NET/IB : Got completion from peer 10.0.8.11<38122> with "
        "error 12, opcode 0, len 0, vendor err 129",
        "misc/ibvwrap.cc:187 NCCL WARN Call to ibv_modify_qp failed with error Network is unreachable",
        "ibvwrap.c:160 NCCL WARN Call to ibv_modify_qp failed with error Connection timed out",
        "transport/net_ib.cu:80 NCCL WARN NET/IB : Got async event : local catastrophic error",  # NVIDIA/nccl issue 230
        "node-0:139577:139678 [0] transport/net_ib.cc:154 NCCL WARN NET/IB : mlx5_1:1 async fatal event on QP "
        "(0x7309dc3bb338): invalid request local work queue error",  # NVIDIA/nccl issue 1919
        "NCCL WARN NET/IB : mlx5_0:1 Got async event : port error",
        "misc/ibvwrap.cc:112 NCCL WARN Call to ibv_reg_mr failed with error Cannot allocate memory\nncclSystemError: "
        "System call (e.g. socket, malloc) or external library call failed or device error.",
        "mlx5_core 0000:5e:00.0 ib3: Link down",
        "mlx5_core 0000:9c:00.0: mlx5_cmd_out_err:803: poll_health:825: Fatal error 1 detected",
        "mlx5_core 0000:3b:00.0: print_health_info: device's health compromised - reached miss count",
        "infiniband mlx5_2: port 1 link down",
        "ib_mlx5_log.c:171  UCX  ERROR Transport retry count exceeded on mlx5_0:1/IB (synd 0x15 vend 0x81 hw_synd 0/0)",
        "Failed to modify QP to RTR: Connection timed out",  # uccl-project/uccl issue 641
        "[rank1]: RuntimeError: ncclSystemError: ibv_poll_cq failed with IBV_WC_RETRY_EXC_ERR",
    ),
    L.EFA_FAILURE: (
        "process_err_completion:1512 NCCL WARN NET/OFI Request 0x55d8 completed with error. RC: 107. Error: 4110 "
        "(Unresponsive receiver). Completed length: 0",
        "libfabric:88:1708520807::efa:cq:efa_rdm_txe_handle_error():737<warn> err: 5, message: Invalid address My "
        "EFA addr: fi_addr_efa://[fe80::13]:0:107",
        "libfabric:17778:1732779731::efa:cq:efa_cq_ibv_cq_ex_open():92<warn> Unable to create extended CQ: Cannot "
        "allocate memory",
        "Unable to write to EQ: Missing or unavailable event queue. err: Input/output error (5) prov_errno: "
        "Unknown error -12 (-12) prov/efa/src/rxr/rxr.h:1343",
        "find_ofi_provider:601 NCCL WARN NET/OFI Only EFA provider is supported",
        "register_rail_mr_buffer:617 NCCL WARN NET/OFI Unable to register memory (type = 2) for device 4. RC: -22, "
        "Error: "
        "Invalid argument",  # awslabs/awsome-distributed-ai issue 203
        "create_nccl_ofi_component:496 NCCL WARN NET/OFI Couldn't enable endpoint. RC: -12, ERROR: Cannot allocate "
        "memory",
        "nccl_net_ofi_domain_get_ep:969 NCCL WARN NET/OFI Creating new endpoint for domain 0x7f9befa99380 failed: "
        "Invalid "
        "argument",  # aws/aws-ofi-nccl issue 889
        "get_ofi_provider:312 NCCL WARN NET/OFI Could not find any optimal provider",  # NVIDIA/nccl issue 229
        "algo-2:88:88 [0] nccl_net_ofi_create_plugin:209 NCCL WARN NET/OFI Failed to initialize rdma protocol",
        "algo-2:88:88 [0] nccl_net_ofi_create_plugin:260 NCCL WARN NET/OFI aws-ofi-nccl initialization failed",
        "NCCL WARN NET/OFI No eligible providers were found",
        "infiniband efa_0: Failed to process command ALLOC_PD (opcode 14) comp_status 1 err -12",
        "efa 0000:00:06.0: Failed to initialize the EFA admin queue",
        "libfabric:2231:1712345678:efa:domain:efa_domain_open():233<warn> fi_getinfo: -61 (No data available)",
        "ip-10-1-2-3:4141:4155 [6] NCCL WARN NET/OFI Couldn't open a fabric access domain. RC: -12, ERROR: Cannot "
        "allocate",
    ),
    L.OFI_NETWORK_ERROR: (
        "algo-1:462:609 [0] ofi_process_cq:1033 NCCL WARN NET/OFI Request 0x7f2c completed with error. RC: 21. Error: "
        "unknown error",
        "process_completions:1648 NCCL WARN NET/OFI Write complete from unexpected request type!",
        "get_req_from_imm_data:1411 NCCL WARN NET/OFI Unexpected status (0) for message 246",
        "[1,4]<stdout>:ip-10-0-0-9:731:799 [4] NCCL WARN NET/OFI Unable to retrieve completion queue entries. RC: -5, "
        "ERROR: Input/output error",
        "ofi_process_cq:890 NCCL WARN NET/OFI Could not send the flush request. RC: -107, error: fi_read failed",
    ),
    L.RENDEZVOUS_STORE_FAILURE: (
        "etcd.EtcdKeyNotFound: Key not found : /torch/elastic/store",
        "jaxlib.xla_extension.XlaRuntimeError: DEADLINE_EXCEEDED: Barrier timed out. Barrier_id: "
        "PjRT_Client_Connect. Timed out task names: /job:jax_worker/replica:0/task:6",
        "DEADLINE_EXCEEDED: Deadline Exceeded\nRPC: /tensorflow.CoordinationService/RegisterTask",
        "[E socket.cpp:793] [c10d] The client socket has timed out after 60s while trying to connect to (10.0.0.4, "
        "29500).",
        "torch.distributed.elastic.rendezvous.api.RendezvousConnectionError: The connection to the C10d store has "
        "failed. "
        "See inner exception for details.",
        "torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError",
        "torch.distributed.elastic.rendezvous.api.RendezvousClosedError",
        "torch.distributed.DistStoreError: Timed out after 301 seconds waiting for clients. 1/2 clients joined.",
        "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. "
        "port: "
        "29500, useIpv6: 0, code: -98, name: EADDRINUSE, message: address already in use",
        "RuntimeError: [3] is setting up NCCL communicator and retrieving ncclUniqueId from [0] via c10d key-value "
        "store by "
        "key '0', but store->get('0') got error: Connection reset by peer",
        "[rank2]:[W TCPStore.cpp:141] [c10d] recvValue failed on SocketImpl(fd=79, addr=[worker-1]:51120, "
        "remote=[head]:29500): failed to recv, got 0 bytes",
        "RuntimeError: Socket Timeout",
        "RuntimeError: Timed out initializing process group in store based barrier on rank: 1, for key: "
        "store_based_barrier_key:1 (world_size=8, worker_count=7, timeout=0:30:00)",
        "WARNING:torch.distributed.elastic.rendezvous.dynamic_rendezvous:The node 'worker-1_17_0' has failed to "
        "shutdown "
        "the rendezvous 'none' due to an error of type RendezvousConnectionError.",
        '[rank5]:[W ProcessGroupNCCL.cpp:1641] [PG 0 Rank 5] Failed to check the "should dump" flag on TCPStore, '
        "(maybe "
        "TCPStore server has shut down too early), with error: Connection reset by peer",
    ),
    L.XID_79_FALLEN_OFF_BUS: (
        "kernel: NVRM: nvAssertOkFailedNoLog: Assertion failed: GPU lost from the bus [NV_ERR_GPU_IS_LOST] "
        "(0x0000000F) returned from rmStatus @ kernel_ce_gv100.c:106",
        "kernel: NVRM: _issueRpcAndWait: rpcSendMessage failed with status 0x0000000f for fn 76!",
        "failed to get remapped rows for GPU-ac896b35: failed to get device remapped rows: ERROR_GPU_IS_LOST",
        "pcieport 0000:00:02.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer, "
        "id=0010(Receiver ID)",
        "[Tue Mar  5 04:11:09 2024] NVRM: Xid (PCI:0000:9d:00): 79, pid='<unknown>', name=<unknown>, GPU has "
        "fallen off "
        "the bus.",
        "[6781741.548786] NVRM: GPU 0000:91:00.0: GPU has fallen off the bus.",
        "kernel: NVRM: GPU at PCI:0000:18:00: GPU-5f1c7f9e has fallen off the bus and is not responding to commands.",
        "Unable to determine the device handle for GPU0000:C1:00.0: GPU is lost.  Reboot the system to recover "
        "this GPU",
        "Unable to determine the device handle for GPU 0000:B3:00.0: Unknown Error",
        "NVRM: RmInitAdapter failed! (0x62:0xffff:2351)",
        "gpud: xid 79 detected on GPU-9f2b, hardware inspection advised",
        "DCGM Policy Violation found XID Error 79 on GPU 3",
    ),
    L.XID_63_64_ROW_REMAP: (
        "NVRM: Xid (PCI:0000:3b:00): 63, pid='<unknown>', name=<unknown>, Row Remapper: New row "
        "(0x0000000005201c00) marked "
        "for remapping, reset gpu to activate.",
        "NVRM: Xid (PCI:0000:84:00): 64, pid=2311, name=python, Row Remapper Error: (0x0000000005201c00) - All "
        "reserved "
        "rows for bank are remapped",
        "kernel: NVRM: Xid (PCI:0000:07:00): 63, Dynamic Page Retirement: New page retired, reboot to activate "
        "(0x0012f31).",
        "nvidia-smi: Remapping Failure Occurred : Yes",
        "GPU 4: row remapping failure, the GPU qualifies for RMA",
        "NVRM: Xid (PCI:0000:04:00): 64, Dynamic Page Retirement: Failed to retire page at 0x0012f31",
    ),
    L.XID_119_GSP_TIMEOUT: (
        "kernel: NVRM: _issueRpcAndWait: rpcRecvPoll timedout for fn 76!",
        "NVRM: Xid (PCI:0000:1b:00): 119, pid=2812, name=python3, Timeout after 6s of waiting for RPC response "
        "from GPU2 "
        "GSP! Expected function 76 (GSP_RM_CONTROL) (0x20802a02 0x8).",
        "NVRM: Xid (PCI:0000:c3:00): 120, pid=112, name=nvidia-smi, GSP task timeout @ pc:0x1a2b, task: 1",
        "kernel: NVRM: _issueRpcAndWait: rpcSendMessage failed; Timeout waiting for RPC from GSP!",
        "[ 1044.1] NVRM: GPU0 GSP-RM heartbeat lost, kgspHealthCheck_TU102: crashed",
        "nvidia 0000:81:00.0: Failed to load GSP firmware",
        "Timeout after 45s of waiting for RPC response from GPU6 GSP! Expected function 4097 (GSP_INIT_DONE)",
    ),
    L.XID_31_MMU_FAULT: (
        "NVRM: Xid (PCI:0000:01:00): 31, Ch 0000005a, intr 10000000. MMU Fault: ENGINE GRAPHICS GPCCLIENT_T1_1 "
        "faulted @ "
        "0x0_00000000. Fault is of type FAULT_PDE ACCESS_TYPE_READ",  # doitsujin/dxvk issue 1027
        "[3629619.0] NVRM: Xid (PCI:0000:00:0e): 31, pid=810735, name=python, channel 0x0000000d, intr 00000000. "
        "MMU Fault: "
        "ENGINE GRAPHICS GPC1 GPCCLIENT_T1_3 faulted",
        "Xid 31: MMU fault on GPU 2",
        "kernel: NVRM: Xid (0000:44:00): 31, name=pt_main_thread, MMU Fault: ENGINE CE2 HUBCLIENT_CE0 faulted",
    ),
    L.XID_13_SM_EXCEPTION: (
        "NVRM: Xid (PCI:0000:cb:00): 13, pid='<unknown>', name=<unknown>, Graphics SM Warp Exception on (GPC 7, "
        "TPC 7, SM "
        "0): Illegal Instruction Parameter",  # leptonai/gpud pull 46
        "[93297.0] NVRM: Xid (PCI:0000:43:00): 13, Graphics Exception: ESR 0x52e7b0=0x101000e 0x52e7b4=0x4",
        "Feb 15 17:37:45 host kernel: NVRM: Xid (PCI:0000:41:00): 13, Graphics SM Global Exception on (GPC 1, TPC "
        "0, SM 0): "
        "Multiple Warp Errors",
        "NVRM: Xid (PCI:0000:01:00): 32, Channel ID 00000052 intr 02000000",
        "NVRM: Xid (PCI:0000:0a:00): 69, Class Error: ChId 0012, Class 0000c7c0, Offset 00000300",
    ),
    L.ECC_UNCORRECTABLE: (
        "RuntimeError: CUDA error: uncorrectable ECC error encountered\nCUDA kernel errors might be asynchronously "
        "reported at some other API call",
        "RuntimeError: CUDA error: unspecified launch failure\nNVRM: Xid (PCI:0000:17:00): 48, An uncorrectable "
        "double bit "
        "error (DBE) has been detected on GPU in the framebuffer at partition 6, subpartition 0.",
        "NVRM: Xid (PCI:0000:a1:00): 94, pid=71, name=python, Contained: SM (0x1). RST: No, D-RST: No",
        "NVRM: Xid (PCI:0000:a1:00): 95, pid='<unknown>', Uncontained: LTC TAG (0x2,0x0). RST: Yes, D-RST: No",
        "NVRM: Xid (PCI:0000:4e:00): 140, pid=1, Unrecovered ECC Error: DRAM",
        "torch.cuda.CudaError: CUDA_ERROR_ECC_UNCORRECTABLE",
        "cuda runtime error (214) : uncorrectable ECC error encountered at "
        "/pytorch/aten/src/THC/THCCachingHostAllocator.cpp",
        "dcgm: GPU 5: double-bit ECC error detected, volatile DBE count 2",
        "EDAC skx MC3: HANDLING MCE MEMORY ERROR: 1 UE memory read error on CPU_SrcID#1_MC#0_Chan#1_DIMM#0",
        "mce: [Hardware Error]: Uncorrected hardware memory error in user-access at 71c2b8c0",
        "node12: CUDA failure common.cu:892 'uncorrectable ECC error encountered'",
    ),
    L.NVLINK_ERROR: (
        "Job for nvidia-fabricmanager.service failed because the control process exited with error code.",
        "NVRM: Xid (PCI:0000:e3:00): 74, pid='<unknown>', name=<unknown>, NVLink: fatal error detected on link "
        "6(0x10000, "
        "0x0, 0x0, 0x0)",
        "nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 20034, Fatal, Link 63 LTSSM Fault Up",
        "NVRM: Xid (PCI:0000:00:00): 149, NETIR_LINK_EVT Fatal XC0 i0 Link 00 (0x026001c6 0x00000000)",
        "NVRM: Xid (PCI:0000:66:00): 145, RLW_REMAP Nonfatal XC1 i0 Link 05 (0x00000004 0x00000020)",
        "CUDA_ERROR_CONTAINED: Invalid access of peer GPU memory over nvlink or a hardware error",
        "CUDA failure: uncorrectable NVLink error detected during the execution",
        "nv-fabricmanager: NVLink failed: link training failure on NVSwitch 2 port 14",
        "nvidia-nvswitch2: SXid (PCI:0000:07:00.0): 22013, Non-fatal, Link 12 Minion Link DLREQ interrupt",
    ),
    L.CUDA_OOM: (
        "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.50 GiB (GPU 3; 79.15 GiB total "
        "capacity; 76.1 "
        "GiB already allocated; 1.06 GiB free; 77.0 GiB reserved in total by PyTorch) If reserved memory is >> "
        "allocated "
        "memory try setting max_split_size_mb to avoid fragmentation.",
        "[rank0]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 896.00 MiB. GPU 0 has a total "
        "capacity of "
        "39.39 GiB of which 520.31 MiB is free.",
        'Traceback (most recent call last):\n  File "train.py", line 88, in <module>\n    '
        "loss.backward()\nRuntimeError: "
        "CUDA out of memory. Tried to allocate 20.00 MiB",
        "RuntimeError: CUDA error: out of memory",
        "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "E tensorflow/stream_executor/cuda/cuda_driver.cc:825] failed to allocate 2.20G (2361786368 bytes) from "
        "device: "
        "CUDA_ERROR_OUT_OF_MEMORY: out of memory",
        "tensorflow.python.framework.errors_impl.ResourceExhaustedError: OOM when allocating tensor with "
        "shape[64,512,512]",
        "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate "
        "17179869184 bytes.",
        "node1:17:99 [3] NCCL WARN Cuda failure 'out of memory'",
        "RuntimeError: cuda runtime error (2) : out of memory at /pytorch/aten/src/THC/generic/THCStorage.cu:58",
        "torch.OutOfMemoryError: HIP out of memory. Tried to allocate 2.00 GiB.",
        "RuntimeError: NCCL Error 1: unhandled cuda error (run with NCCL_DEBUG=INFO for details)\nLast "
        "error:\nCuda failure "
        "2 'out of memory'",
    ),
    L.CUDA_ILLEGAL_MEMORY: (
        "RuntimeError: CUDA error: an illegal memory access was encountered\nCUDA kernel errors might be "
        "asynchronously "
        "reported at some other API call, so the stacktrace below might be incorrect.",
        "[E ProcessGroupNCCL.cpp:915] [Rank 2] NCCL watchdog thread terminated with exception: CUDA error: an "
        "illegal memory "
        "access was encountered",
        "CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access was encountered",
        "cudaErrorIllegalAddress",
        "RuntimeError: cuda runtime error (700) : an illegal memory access was encountered at THCReduceAll.cuh:327",
        "RuntimeError: CUDA error: misaligned address",
        "node3:8:77 [1] enqueue.cc:1012 NCCL WARN Cuda failure 700 'an illegal memory access was encountered'",
        "Error polling for event status: failed to query event: CUDA_ERROR_ILLEGAL_ADDRESS",
    ),
    L.CUDA_CONTEXT_TIMEOUT: (
        "NVRM: Xid (PCI:0000:cb:00): 109, pid=1797828, name=pt_main_thread, Ch 00000008, errorString CTX SWITCH "
        "TIMEOUT, Info "
        "0x58005",
        "RuntimeError: CUDA error: the launch timed out and was terminated",
        "CUDA_ERROR_LAUNCH_TIMEOUT: the launch timed out and was terminated; not marking stream as bad",
        "THCudaCheck FAIL file=THCStorage.cpp line=36 error=6 : the launch timed out and was terminated",
        "terminate called after throwing an instance of 'c10::Error'\n  what():  CUDA error: the launch timed out "
        "and was "
        "terminated",
        "Xid 109 Context Switch Timeout Error on 0000:5d:00.0",
    ),
    L.CUDA_UNKNOWN_ERROR: (
        "RuntimeError: CUDA error: unknown error",
        "RuntimeError: CUDA unknown error - this may be due to an incorrectly set up environment, e.g. changing "
        "env variable "
        "CUDA_VISIBLE_DEVICES after program start. Setting the available devices to be zero.",
        "RuntimeError: CUDA error: unspecified launch failure",
        "THCudaCheck FAIL file=/opt/pytorch/aten/src/THC/THCGeneral.c line=70 error=30 : unknown error",
        "RuntimeError: cuda runtime error (999) : unknown error at THCGeneral.cpp:50",
        "RuntimeError: cuDNN error: CUDNN_STATUS_EXECUTION_FAILED",
        "RuntimeError: CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasGemmEx`",
        "CUDA_ERROR_UNKNOWN: unknown error",
        "RuntimeError: CUDA error: initialization error",
        "RuntimeError: CUDA error: all CUDA-capable devices are busy or unavailable",
        "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:1970, unhandled cuda error, NCCL "
        "version "
        "2.20.5\nncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nCuda failure 'unknown error'",
        "F tensorflow/stream_executor/cuda/cuda_driver.cc:153] CUDA_ERROR_LAUNCH_FAILED",
    ),
    L.CUDA_DEVICE_ASSERT: (
        "RuntimeError: CUDA error: device-side assert triggered\nCUDA kernel errors might be asynchronously reported",
        "/pytorch/aten/src/ATen/native/cuda/Indexing.cu:1236: indexSelectSmallIndex: block: [12,0,0], thread: [64,0,0] "
        "Assertion `srcIndex < srcSelectDimSize` failed.",
        "../aten/src/ATen/native/cuda/Loss.cu:271: nll_loss_forward: block: [0,0,0], thread: [5,0,0] Assertion `t "
        ">= 0 && t < "
        "n_classes` failed.",
        "RuntimeError: cuda runtime error (59) : device-side assert triggered at THCTensorMath.cu:26",
        "CUDA_ERROR_ASSERT: device-side assert triggered",
        "cudaErrorAssert: device-side assert triggered",
    ),
    L.HOST_OOM_KILLED: (
        "[Sun Jul  7 02:17:11 2024] Out of memory: Killed process 81723 (python) total-vm:412983044kB, "
        "anon-rss:390012kB",
        "kernel: python invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0",
        "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0-1,oom_memcg=/slurm/uid_1000",
        "slurmstepd: error: Detected 3 oom-kill event(s) in StepId=71.batch. Some of your processes may have been "
        "killed by "
        "the cgroup out-of-memory handler.",
        "srun: error: gpu-12: task 5: Out Of Memory",
        "slurmstepd: error: Exceeded job memory limit at some point.",
        "    Last State:     Terminated\n      Reason:       OOMKilled\n      Exit Code:    137",
        "Warning  Evicted  pod/trainer-3  The node was low on resource: memory.",
        "RuntimeError: [enforce fail at alloc_cpu.cpp:114] data. DefaultCPUAllocator: can't allocate memory: you "
        "tried to "
        "allocate 53687091200 bytes. Error code 12 (Cannot allocate memory)",
        "OSError: [Errno 12] Cannot allocate memory",
        "numpy.core._exceptions._ArrayMemoryError: Unable to allocate 48.2 GiB for an array with shape (80000, 80000)",
        "MemoryError",
        "terminate called after throwing an instance of 'std::bad_alloc'",
        "ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.",
        "torch.distributed.elastic.multiprocessing.api: [ERROR] failed (exitcode: -9) local_rank: 2 (pid: 750662) "
        "of binary: "
        "/opt/conda/bin/python",
        "  traceback : Signal 9 (SIGKILL) received by PID 88123",
        "subprocess.CalledProcessError: Command '['python', 'train.py']' died with <Signals.SIGKILL: 9>.",
        "run.sh: line 31: 41231 Killed                  python train.py --bs 64",
    ),
    L.SEGFAULT: (
        "ERROR:composer.cli.launcher:Global rank 0 (PID 208865) exited with code -11",
        "Segmentation fault (core dumped)",
        "Fatal Python error: Segmentation fault",
        "python[71120]: segfault at 7f00 ip 00007f9b3c sp 00007ffc0 error 4 in "
        "libcuda.so.535.104.05[7f9b3b000000+9d000]",
        "torch.distributed.elastic.multiprocessing.api: [ERROR] failed (exitcode: -11) local_rank: 1 (pid: 750662)",
        "  traceback : Signal 11 (SIGSEGV) received by PID 6421",
        "subprocess.CalledProcessError: Command '['python', 'train.py']' died with <Signals.SIGSEGV: 11>.",
        "[node4:31101] *** Process received signal ***\n[node4:31101] Signal: Segmentation fault (11)",
        "Caught signal 11 (Segmentation fault: address not mapped to object at address 0x18)",
        "*** SIGSEGV (@0x7fc639d53c30) received by PID 11889 (TID 0x7fd433d72700); stack trace: ***",
        "double free or corruption (!prev)\nAborted (core dumped)",
        "traps: pt_main_thread[9911] general protection fault ip:7f sp:7ffd error:0 in libnccl.so.2",
        "srun: error: node9: task 2: Segmentation fault",
    ),
    L.PYTHON_EXCEPTION_USER_CODE: (
        "NCCL error in: ProcessGroupNCCL.cpp:1287, invalid usage, NCCL version 2.17.1 ncclInvalidUsage: This "
        "usually reflects invalid usage of NCCL library.",
        'Traceback (most recent call last):\n  File "train.py", line 12, in <module>\n    main()\nValueError: not '
        "enough "
        "values to unpack (expected 3, got 2)",
        "ModuleNotFoundError: No module named 'flash_attn'",
        "AttributeError: 'NoneType' object has no attribute 'shape'",
        "RuntimeError: mat1 and mat2 shapes cannot be multiplied (8x512 and 768x512)",
        "RuntimeError: Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!",
        "[rank3]: TypeError: forward() missing 1 required positional argument: 'attention_mask'",
        "AssertionError: world size 14 is not divisible by tensor parallel size 4",
        "FileNotFoundError: [Errno 2] No such file or directory: 'data/train.jsonl'",
        "omegaconf.errors.ConfigAttributeError: Key 'lr' is not in struct",
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:",
        "Error executing job with overrides: ['trainer.devices=8']",
        "E0213 12:07:20.086000 870572 torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: 1) "
        "local_rank: "
        "0 (pid: 876053) of binary: /usr/bin/python3",
        "srun: error: gpu042: task 3: Exited with exit code 1",
        "subprocess.CalledProcessError: Command '['python', 'train.py']' returned non-zero exit status 1.",
        "RuntimeError: Error(s) in loading state_dict for GPT: size mismatch for wte.weight",
        "json.decoder.JSONDecodeError: Expecting value: line 1 column 1 (char 0)",
        "[rank1]: IndexError: list index out of range",
    ),
    L.DATALOADER_CRASH: (
        "RuntimeError: DataLoader worker (pid 4123) is killed by signal: Killed.",
        "RuntimeError: DataLoader worker (pid(s) 4123, 4125) exited unexpectedly",
        "RuntimeError: DataLoader worker (pid 812) is killed by signal: Segmentation fault.",
        "ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory (shm).",
        "RuntimeError: DataLoader worker (pid 93) is killed by signal: Bus error. It is possible that dataloader's "
        "workers are "
        "out of shared memory. Please try to raise your shared memory limit.",
        "RuntimeError: Caught RuntimeError in DataLoader worker process 3.\nOriginal Traceback (most recent call "
        "last):\n  File "
        '"fetch.py", line 49\nRuntimeError: stack expects each tensor to be equal size',
        "RuntimeError: DataLoader timed out after 120 seconds",
        "KeyError: Caught KeyError in DataLoader worker process 0.",
        "RuntimeError: unable to open shared memory object </torch_1_2> in read-write mode",
    ),
    L.DISK_FULL: (
        "OSError: [Errno 28] No space left on device",
        "cp: error writing '/fsx/ckpt/step_100.pt': No space left on device",
        "RuntimeError: [enforce fail at inline_container.cc:471] . PytorchStreamWriter failed writing file "
        "data/46: file write "
        "failed",
        "RuntimeError: [enforce fail at inline_container.cc:337] . unexpected pos 2107625152 vs 2107625040",
        "OSError: [Errno 122] Disk quota exceeded: '/fsx/ckpt/optimizer.pt'",
        "ClientError: Artifact upload failed: Insufficient disk space",
        "Warning  Evicted  pod/trainer-0  The node was low on resource: ephemeral-storage.",
        "RuntimeError: unable to write to file </torch_1234_0>: No space left on device (28)",
        "write /var/lib/docker/overlay2/x: no space left on device",
    ),
    L.STORAGE_IO_ERROR: (
        "OSError: [Errno 5] Input/output error: '/fsx/data/shard_00017.bin'",
        "OSError: [Errno 116] Stale file handle",
        "OSError: [Errno 121] Remote I/O error: '/mnt/nfs/corpus.idx'",
        "OSError: [Errno 108] Cannot send after transport endpoint shutdown: '/fsx/ckpt/latest'",
        "OSError: [Errno 107] Transport endpoint is not connected: '/mnt/s3/data'",
        "OSError: [Errno 30] Read-only file system: '/checkpoints/step-5'",
        "LustreError: 11-0: fsx-OST0003-osc-ffff9d: operation ost_write to node 10.0.1.5@tcp failed: rc = -107",
        "Lustre: fsx-MDT0000-mdc-ffff: Connection to fsx-MDT0000 (at 10.0.3.9@tcp) was lost; in progress "
        "operations using this "
        "service will wait for recovery to complete",
        "LustreError: 167-0: fsx-OST0001-osc: This client was evicted by fsx-OST0001; in progress operations using "
        "this service "
        "will fail.",
        "nfs: server 10.0.4.4 not responding, timed out",
        "botocore.exceptions.ClientError: An error occurred (SlowDown) when calling the PutObject operation "
        "(reached max "
        "retries: 4): Please reduce your request rate.",
        "botocore.exceptions.EndpointConnectionError: Could not connect to the endpoint URL: "
        '"https://b.s3.amazonaws.com/k"',
        "botocore.exceptions.ReadTimeoutError: Read timeout on endpoint URL: "
        '"https://b.s3.us-east-1.amazonaws.com/ckpt"',
        "blk_update_request: I/O error, dev nvme1n1, sector 93323264 op 0x0:(READ)",
        "nvme nvme2: controller is down; will reset: CSTS=0xffffffff, PCI_STATUS=0xffff",
        "EXT4-fs error (device nvme1n1): ext4_find_entry:1455: inode #2: comm python: reading directory lblock 0",
        "XFS (nvme0n1p1): Metadata I/O Error (0x1) detected. Shutting down filesystem.",
        "OSError: [Errno 117] Structure needs cleaning: '/local/cache'",
    ),
    L.CHECKPOINT_CORRUPT: (
        "    deserialized_objects[key]._set_from_file(f, offset, f_should_read_directly)\nRuntimeError: storage "
        "has wrong size: expected 0 got 512",
        "RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory",
        "RuntimeError: PytorchStreamReader failed reading file data/128: file read failed",
        "RuntimeError: unexpected EOF, expected 170260432 more bytes. The file might be corrupted.",
        "safetensors_rust.SafetensorError: Error while deserializing header: MetadataIncompleteBuffer",
        "safetensors_rust.SafetensorError: Error while deserializing header: HeaderTooLarge",
        'Traceback (most recent call last):\n  File "resume.py", line 14\n    magic_number = '
        "pickle_module.load(f)\nEOFError: Ran "
        "out of input",
        "_pickle.UnpicklingError: invalid load key, '\\x00'.",
        "_pickle.UnpicklingError: pickle data was truncated",
        "zipfile.BadZipFile: File is not a zip file",
        "RuntimeError: Invalid magic number; corrupt file?",
        "ValueError: checkpoint step_4000 is incomplete or corrupted: missing shard 3 of 8",
        "torch.distributed.checkpoint.api.CheckpointException: CheckpointException ranks:dict_keys([1]) EOFError: "
        "Ran out of input",
    ),
    L.NAN_LOSS: (
        "Nan grad norm occurs, please check it",
        "{'loss': nan, 'grad_norm': nan, 'learning_rate': 4.55e-06, 'epoch': 0.66}",
        "{'loss': 0.0, 'grad_norm': nan, 'learning_rate': 1.2e-05, 'epoch': 1.2}",
        "Loss is nan, stopping training",
        "step 4120: train loss nan, val loss nan",
        "Epoch 3: 41%|####  | 120/290 [01:10<01:39, 1.70it/s, loss=nan, v_num=3]",
        " iteration     5427/  250000 | consumed samples: 43416 | learning rate: 2.999E-04 | loss scale: 1.0 | "
        "grad norm: nan | "
        "number of skipped iterations:   0 | number of nan iterations:   0 |",
        " iteration      120/  9000 | lm loss: NAN | loss scale: 1.0 | number of nan iterations:   0 |",
        " iteration        9/      10 | loss scale: 1.0 | number of skipped iterations:   1 | number of nan "
        "iterations:   1 |",
        "RuntimeError: Rank 12, node p5-3, device 4, iteration 8812: Unexpected result nan (message='found NaN in "
        "local forward "
        "loss calculation')",
        "AssertionError: Rank 3: found NaN in local forward loss calculation. Device: 3, node: gpu-17",
        "FloatingPointError: Loss became infinite or NaN at iteration=2211!",
        "RuntimeError: Function 'MulBackward0' returned nan values in its 0th output.",
        "WARNING: NaN or Inf found in input tensor.",
        "train: step=900 loss=inf lr=3e-4",
        "ValueError: The loss is not finite: nan at global step 311",
        "Training diverged: loss went to NaN at step 1201",
        "Detected nan gradient in layer blocks.11.mlp.fc2",
        "[rank0] step 512 | train_loss: tensor(nan, device='cuda:0') | lr 1e-4",
    ),
    L.LOSS_SCALE_COLLAPSE: (
        "| WARNING: overflow detected, setting loss scale to: 0.0001220703125",
        "Exception: Current loss scale already at minimum - cannot decrease scale anymore. Exiting run.",
        "FloatingPointError: Minimum loss scale reached (0.0001). Your loss is probably exploding. Try lowering "
        "the learning rate",
        "Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to 4.930380657631324e-32",
        "Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to 0.0",
        "Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to 0.0009765625",
        "[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 1, reducing to 1",
        "OVERFLOW! Skipping step, Attempted loss scale: 2, reducing to 1",
    ),
    L.SLURM_NODE_FAIL: (
        "salloc: Prolog failure on node k003-006\nsalloc: Job allocation 235454 has been revoked.",
        "slurmstepd: error: Prolog hung on node worker-3",
        "compute001      1     main*       down*   12   12:1:1  64267        0      1   (null) Not responding",
        "[2024-01-04T16:16:54.789] error: Node ping apparently hung, many nodes may be DOWN or configured "
        "SlurmdTimeout should be increased",
        "ORTE has lost communication with a remote daemon.\n\n  HNP daemon   : [[10831,0],0] on node gpu1",
        "cyclecloud_node_fail slurm     2022-11-22T13:25:08 viz3d-1",
        "srun: error: Node failure on gpu-st-p4d-7",
        "slurmstepd: error: *** JOB 9921 ON p5-2 CANCELLED AT 2024-08-01T03:00:11 DUE TO NODE FAILURE, SEE "
        "SLURMCTLD LOG FOR "
        "DETAILS ***",
        "slurmctld: error: Nodes ip-10-1-8-21 not responding, setting DOWN",
        "JobId=771 State=NODE_FAIL ExitCode=0:1",
        "Node ip-10-0-1-1 status is now: NodeNotReady",
        "slurmctld: Node compute-4 unexpectedly rebooted boot_time=2024-05-01T11:22:09",
        "slurmd: error: prolog failed: rc:256 on node gpu7",
        "sacct: 88123  train  gpu  acct  256  NODE_FAIL  1:0",
    ),
    L.PREEMPTION: (
        "controller.py:208] The cluster is preempted or failed. Recovering...",
        "slurmstepd: error: *** JOB 32391783 ON cn119 CANCELLED AT 2021-06-18T13:05:36 DUE TO PREEMPTION ***",
        "slurmstepd: error: *** STEP 608.0 ON gpu1 CANCELLED AT 2022-08-12T02:06:12 DUE TO JOB REQUEUE ***",
        "submitit WARNING (2022-08-12 02:06:11,453) - Caught signal SIGUSR2 on gpu-3: this job is preempted.",
        "torch.distributed.elastic.multiprocessing.api.SignalException: Process 1183 got signal: 15",
        "W0520 torch/distributed/elastic/agent/server/api.py:704] Received 15 death signal, shutting down workers",
        "EC2 Spot Instance interruption notice: action=terminate time=2024-06-01T08:22:00Z",
        "Spot instance i-0a1b2c3d4e is marked for termination in 2 minutes",
        "Normal  Preempted  pod/trainer-2  Preempted by pod 8f1 on node ip-10-0-0-4",
        "Received SIGTERM, saving checkpoint and exiting",
        "slurmstepd: error: *** JOB 494583 ON gpu-2 CANCELLED AT 2024-04-20T09:09:37 DUE TO TIME LIMIT ***",
        "JobState=PREEMPTED Reason=None",
        "[trainer] SIGTERM received at step 5120, checkpointing before shutdown",
        "EC2 instance rebalance recommendation received for i-0123456789abcdef0",
        "MaxRuntimeExceeded: training job exceeded MaxRuntimeInSeconds",
    ),
    L.USER_CANCELLED: (
        "spot_utils.py:381] Logs finished for job 1 (status: CANCELLING).",
        "KeyboardInterrupt",
        '^CTraceback (most recent call last):\n  File "train.py", line 9, in <module>\nKeyboardInterrupt',
        "slurmstepd: error: *** JOB 218211 ON node042 CANCELLED AT 2024-05-14T09:31:02 ***",
        "slurmstepd: error: *** STEP 63532.0 ON cn106 CANCELLED AT 2020-12-14T09:43:55 ***",
        "srun: interrupt (one more within 1 sec to abort)",
        "torch.distributed.elastic.multiprocessing.api.SignalException: Process 911 got signal: 2",
        "Detected KeyboardInterrupt, attempting graceful shutdown ...",
        "wandb: Ctrl + C detected. Stopping sync.",
        "18211 train gpu acct 64 CANCELLED by 1001 0:0",
        "W0110 torch/distributed/elastic/agent/server/api.py:704] Received 2 death signal, shutting down workers",
        "srun: sending Ctrl-C to StepId=4412.0",
        "Training interrupted by user at step 300",
        "srun: forcing job termination",
    ),
    L.GPU_FAULT: (
        "[76914.214195] amdgpu 0000:dd:00.0: amdgpu: GPU reset begin!",
        "HW Exception by GPU node-7 (Agent handle: 0x9f2c1b0) reason :GPU Hang",
        "amdgpu 0000:9d:00.0: amdgpu: socket: 6, die: 1, 2 new uncorrectable hardware errors detected in umc block",
    ),
    L.NEURON_DEVICE_ERROR: (
        "kernel: NEURON_HW_ERR=NC_UNCORRECTABLE_ERROR nd-id=0 nc-id=0 action=TERMINATE_INSTANCE",
        "kernel: NEURON_HW_ERR=HBM_UNCORRECTABLE_ERROR affecting neuron devices",
        "ERROR NRT:nrt_infodump Failure: NRT_EXEC_HW_ERR_DMA_ABORT in nrt_execute()",
        "RuntimeError: nrt_execute failed with status code 1202",
        "ERROR TDRV:tdrv_get_dev_info No neuron device available",
        "[MLA 0][NC 0] DMA TX engine 0 is in an abort state",
        "NRT_EXEC_SW_NQ_OVERFLOW",
    ),
    L.CAPACITY: (
        "CapacityError: Unable to provision requested ML compute capacity. Please retry.",
        "An error occurred (InsufficientInstanceCapacity) when calling the RunInstances operation: We currently do not "
        "have sufficient p5.48xlarge capacity in the Availability Zone you requested",
        "sagemaker.exceptions.CapacityError: Error for Training job llm: Failed. Reason: CapacityError: Unable",
    ),
    L.PLATFORM_FAILURE: (
        "InternalServerError: We encountered an internal error. Please try again.",
        "Repairing training cluster due to hardware failure",
    ),
    L.LAUNCH_FAILED: (
        "srun: error: Task launch for StepId=51.0 failed on node p5-2: Job credential expired",
        "srun: error: Application launch failed: Job credential expired",
        "sbatch: error: Batch job submission failed: Requested topology configuration is not available",
        "slurmstepd: error: execve(): train.py: No such file or directory",
        "Slurm BOOT_FAIL: NodeDown",
    ),
    L.BAD_REQUEST: ("ClientError: Data download failed: no S3 objects found under the prefix",),
}
