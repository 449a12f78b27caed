"""Rules about what joins the ranks: InfiniBand, EFA, libfabric, NCCL's and gloo's own words, the store."""

from __future__ import annotations

from typing import Final

from rekindle.signatures.labels import Label
from rekindle.signatures.rule import Rule

NETWORK: Final[tuple[Rule, ...]] = (
    Rule(
        name="efa_setup",
        label=Label.EFA_FAILURE,
        # Set-up calls of the plugin: no transfer has begun.
        pattern=r"net/ofi.{0,80}(?:could(?:n't| not) (?:open|enable|bind|create|find|get|allocate|set|initiali[sz]e)"
        r"|unable to (?:register|find|open|create|get|alloc|set|init|bind|map)\w{0,5}"
        r"|failed to (?:init|open|create|register|find|get|allocate|set|load|bind|retrieve|query)"
        r"|(?:creating|opening) .{0,60}failed|no eligible provider|not find any optimal provider|no provider"
        r"|initiali[sz]ation failed|(?:disabling|enabling|setting) .{0,60}failed)"
        r"|aws-ofi-nccl initiali[sz]ation failed|unexpected number of remote rails|only efa provider is supported",
        example="register_mr_buffers:544 NCCL WARN NET/OFI Unable to register memory (type = 2) for device 0. "
        "RC: -22, Error: Invalid argument",
        source="github.com/aws/aws-ofi-nccl/issues/584, /889, /44; github.com/aws/deep-learning-containers/issues/2675",
    ),
    Rule(
        # The provider's own words; the plugin repeats them behind "Request completed with error".
        name="efa_provider",
        label=Label.EFA_FAILURE,
        pattern=r"\bunresponsive receiver\b|\b(?:my|peer|local|remote) efa addr\b|\bfi_addr_efa:|\bprov/efa/"
        r"|libfabric:\d{1,9}:\d{1,12}:{1,2}efa:.{0,120}(?:<critical>|\berr: -?\d|cq_handle_error|failed|unable to"
        r"|could not|cannot)",
        example="libfabric:451707:1708520807::efa:cq:efa_rdm_txe_handle_error():737<warn> err: 113, message: "
        "Unresponsive receiver. My EFA addr: fi_addr_efa://[fe80::1]:0:10",
        source="libfabric prov/efa efa_strerror.c, efa_rdm_ope.c; github.com/aws/aws-ofi-nccl/issues/346, /715; "
        "github.com/ofiwg/libfabric/issues/5716",
    ),
    Rule(
        name="ofi_transfer",
        label=Label.OFI_NETWORK_ERROR,
        # A request that was under way ended in error, or the completion queue could not be read.
        pattern=r"net/ofi.{0,80}(?:completed with error|cq error|completion (?:with )?error|fi_cq_read|error_?entry"
        r"|unexpected (?:status|request|message|cqe)|from unexpected request|unable to (?:post|retrieve completion"
        r"|process)|could(?:n't| not) (?:post|send|receive|process)|failed to (?:post|send|recv|receive|write|read"
        r"|process|flush)|remote (?:peer|endpoint)|connection (?:reset|closed|refused|timed))"
        r"|\bfi_(?:cq_read\w{0,4}|t?send\w{0,5}|t?recv\w{0,5}|write\w{0,4}|read\w{0,4})\b.{0,40}(?:failed"
        r"|returned error"
        r"|error: )|libfabric:.{0,120}(?:completion error|unreachable|connection (?:lost|reset)|remote peer)",
        example="ofi_process_cq:1033 NCCL WARN NET/OFI Request 0x7f completed with error. RC: 107. Error: Transport "
        "endpoint is not connected",
        source="aws-ofi-nccl process_err_completion; github.com/aws/aws-ofi-nccl/issues/161, /927",
    ),
    Rule(
        name="ofi_warn",
        label=Label.OFI_NETWORK_ERROR,
        pattern=r"nccl warn net/ofi (?!.{0,60}(?:deprecat|using|will be ignored|not recommended|falling back))",
        example="nccl_ofi_rdma.c:2011 NCCL WARN NET/OFI Invalid state of the receive communicator",
        source="aws-ofi-nccl NCCL_OFI_WARN, any other",
    ),
    Rule(
        name="efa_device",
        label=Label.EFA_FAILURE,
        pattern=r"\befa(?:_\d{1,3})?\b.{0,42}(?:failed to |unable to |fatal|cannot open device"
        r"|not responding|reset fail"
        r"|wait for completion \(\w{1,12}\) timeout|didn't send any completion"
        r"|aenq (?:error|fatal)|no (?:efa )?(?:devices?|provider) (?:was |were )?found|unresponsive|admin queue)"
        r"|\brdmap\d{1,3}s\d{1,3}\b:? .{0,20}failed to (?:process|submit) command"
        r"|fi_getinfo\b.{0,60}(?:fail|no data available|-61)|failed to (?:open|find|load) efa"
        r"|no (?:usable )?efa (?:devices?|interfaces?)\b",
        example="infiniband efa_0: Failed to process command ALLOC_PD (opcode 14) comp_status 1 err -12",
        source="Linux drivers/infiniband/hw/efa; libfabric EFA provider; github.com/aws/aws-ofi-nccl/issues/22",
    ),
    Rule(
        name="ib_completion",
        label=Label.IB_NETWORK_ERROR,
        pattern=r"net/ib ?:?.{0,80}(?:got completion|async (?:fatal )?event|failed|fatal|error|timed? ?out|unable to"
        r"|no device|retry exceeded|link down|port down)"
        r"|got completion (?:from peer .{0,80})?with (?:status|error)\b|\bvendor err \d{1,4}\b"
        r"|(?:call to )?\bibv_\w{3,30}.{0,60}(?:failed|error|errno|returned|timed out|unable|cannot)"
        r"|\bibv_wc_(?!success)\w{3,30}",
        example="ibvwrap.c:160 NCCL WARN Call to ibv_modify_qp failed with error Connection timed out",
        source="NCCL transport/net_ib.cc, misc/ibvwrap.cc; github.com/NVIDIA/nccl-tests/issues/227",
    ),
    Rule(
        name="ib_device",
        label=Label.IB_NETWORK_ERROR,
        pattern=r"\bmlx[45]_(?:core|ib|en|\d{1,3}).{0,100}(?:link down|port (?:is )?down|\bfatal\b|health (?:error"
        r"|compromised"
        r"|failed)|device's health|timed? ?out|firmware (?:error|fatal)|catastrophic|\bcr_error|err cqe"
        r"|cmd_work_handler|error cqe|critical error|failed)|\bport: ?\d{1,3} link down"
        r"|\binfiniband\b.{0,60}(?:link (?:is )?down|port (?:is )?down|\bfailed\b|\bfatal\b|\berror\b|flap)"
        r"|transport retry count(?:er)? exceeded|\bucx +(?:error|fatal)|rnr retry (?:count )?exceeded"
        r"|local catastrophic error|\b(?:rdma|roce)\b.{0,50}(?:\bfailed\b|\bfatal\b|error:|disconnected|link down)"
        r"|failed to modify qp|\bhca\b.{0,40}(?:link down|fatal|error state|failed)",
        example="mlx5_core 0000:0d:00.0 ens1np0: Link down",
        source="Linux drivers/net/ethernet/mellanox; UCX uct_ib; github.com/NVIDIA/nccl/issues/230",
    ),
)

ECHOES: Final[tuple[Rule, ...]] = (
    Rule(
        name="nccl_watchdog",
        label=Label.NCCL_TIMEOUT,
        pattern=r"watchdog caught collective operation timeout|(?:either an error or timeout\) )detected by watchdog"
        r"|collective operation timeout: ?\w{4,12}nccl|ran for \d{1,12} milliseconds before timing out"
        r"|some nccl operations have failed or timed out|heartbeat monitor timed out"
        r"|watchdog got stuck for \d{1,9} seconds|timeout at nccl work|nccl (?:collective )?(?:operation )?(?:has )?"
        r"timed out\b|received a (?:global )?(?:timeout|dump) signal|timeout detected in (?:operation|collective)"
        r"|observed flight recorder dump signal|attempting to dump debug info"
        r"|nccl communicator was aborted.{0,40}(?:timeout|timed out)"
        r"|to avoid (?:this|data) inconsistency, we are taking the entire process down"
        r"|nccl watchdog.{0,60}(?:timeout|timed out)|nccl (?:error|failure).{0,80}(?:operation )?timed out"
        r"|rendezvous\.cc:\d{1,5}\] termination timeout",
        example="[Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=120, OpType=ALLREDUCE, "
        "Timeout(ms)=600000) ran for 600061 milliseconds before timing out.",
        source="PyTorch torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp; XLA service/rendezvous.cc",
    ),
    Rule(
        name="gloo_timeout",
        label=Label.NCCL_TIMEOUT,
        pattern=r"timed out waiting \d{1,12}ms for (?:recv|send) operation|monitoredbarrier.{0,120}(?:timeout|timed out"
        r"|failed)|ranks? \d.{0,60}failed to (?:pass|reach) (?:the )?(?:monitored)?barrier"
        r"|collective .{0,40}timed out waiting",
        example="RuntimeError: [../third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting "
        "1800000ms for recv operation to complete",
        source="gloo unbound_buffer.cc; PyTorch ProcessGroupGloo monitoredBarrier",
    ),
    Rule(
        name="store",
        label=Label.RENDEZVOUS_STORE_FAILURE,
        pattern=r"tcpstore.{0,100}(?:shut ?down too early|fail|broken pipe|connection (?:reset|refused|closed"
        r"|was closed)"
        r"|timed? ?out|could not connect|exited|unreachable|error)"
        r"|failed to check the .{0,12}should dump.{0,4} flag"
        r"|rendezvous\w{0,16}(?:timeout|connection|closed|state|graceful\w{0,4}|infrastructure)error"
        r"|rendezvous.{0,80}(?:timed? ?out|fail|has been closed|closederror|could not|unable to|not complete)"
        r"|c10d store.{0,60}(?:fail|timed? ?out|error|reset|refused)"
        r"|(?:client|server) sockets? (?:has |have )?(?:timed out|failed to)|diststoreerror|distnetworkerror"
        r"|store->get\(.{0,60}got error|nccluniqueid.{0,160}(?:error|timed? ?out|timeout|reset|refused|fail)"
        r"|timed out.{0,60}store based barrier|(?:store ?based ?barrier|waiting for clients).{0,120}(?:timed? ?out"
        r"|joined|timeout)"
        r"|timed out after \d{1,6} seconds waiting for clients|\bsocket timeout\b"
        r"|(?:sendbytes|recvvalue|recvbytes|recvvector) failed|\betcd\w{0,24}.{0,60}(?:fail|timed? ?out|exception"
        r"|refused)|\betcd\.etcd\w{3,30}"
        r"|\bbarrier timed out\. (?:barrier_)?id\b|/tensorflow\.coordinationservice/"
        r"|coordination[ _]service.{0,100}(?:error|fail|timed? ?out|unavailable|heartbeat)"
        r"|jax distributed service (?:detected|has).{0,20}\berror",
        example="torch.distributed.elastic.rendezvous.api.RendezvousConnectionError: The connection to the C10d store "
        "has failed. See inner exception for details.",
        source="PyTorch TCPStore.cpp, socket.cpp, torch/distributed/elastic/rendezvous; pytorch/pytorch issue 67547; "
        "TSL coordination service, jax-ml/jax issue 35905",
    ),
    Rule(
        # The store's client: its bare words have neither the store's name nor a peer's.
        name="store_peer",
        label=Label.RENDEZVOUS_STORE_FAILURE,
        pattern=r"\bruntimeerror: (?:broken pipe|connection reset by peer|connection refused)\b",
        example="RuntimeError: Broken pipe",
        source="PyTorch torch/csrc/distributed/c10d/socket.cpp, Utils.hpp; pytorch/pytorch issue 116974",
    ),
    Rule(
        name="nccl_remote",
        label=Label.NCCL_REMOTE_ERROR,
        pattern=r"ncclremoteerror|ncclsystemerror|ncclinternalerror|remote process exited or there was a network error"
        r"|unhandled system error|connection closed by remote peer|nccl.{0,60}\bremote error\b"
        r"|gloo/.{0,80}(?:connection (?:closed|reset|refused)|broken pipe|read error|write error|no route to host)"
        r"|nccl warn .{0,160}(?:connection (?:closed|reset|refused|timed out)|broken pipe|no route to host"
        r"|unreachable|call to (?:connect|recv|send|poll|read|write|accept|bind) .{0,40}(?:failed|returned|error))"
        r"|nccl warn .{0,60}(?:socketprogress|socketpollconnect|socketstartconnect|bootstrap).{0,80}"
        r"(?:closed|fail|refused|reset|error|time|no socket)"
        # NCCL's proxy threads say of a peer that is gone no more than that their call failed.
        r"|nccl warn (?!.{0,80}failed to (?:open|find|load|dlsym)).{0,160}\b(?:failed|failure)\b"
        r"|process group has been aborted|nccl communicator (?:was|has been) "
        r"aborted|nccl error in.{0,200}(?:system error|internal error|network error|remote)"
        r"|attempt to use communicator before the previous operation"
        r"|\bccom warn\b.{0,160}\b(?:failed|closed|refused|reset)\b",
        example="ncclRemoteError: A call failed possibly due to a network error or a remote process exiting "
        "prematurely.",
        source="NCCL ncclResult_t, proxy.cc, and CCOM, AWS Neuron's fork of it; "
        "gloo transport/tcp/pair.cc; github.com/NVIDIA/nccl/issues/2076, /914",
    ),
)
