"""What libraries print in a rank whose peer ended or does not answer, in the words of public reports.

pytorch#153586, nccl#795, #1486 and #2076, LlamaFactory#6849, gloo#511, sglang#3226, gpustack#2125,
dmlcloud#47, vllm#14025, aws-ofi-nccl#156 and #161, mosaicml/examples#292,
nccl#426, #1170, #1405, #1664 and #1814.
"""

_NCCL = "torch.distributed.DistBackendError: "

LOST_A_PEER = {
    "store": "torch.distributed.DistNetworkError: failed to recv, got 0 bytes",
    "store-2.8": "torch.distributed.DistNetworkError: Failed to recv, got 0 bytes. Connection was likely "
    "closed. Did the remote server shutdown or crash?",
    "nccl": f"{_NCCL}NCCL error: remote process exited or there was a network error, NCCL version 2.28.8",
    "nccl-own": "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting "
    "prematurely.",
    "nccl-socket": "socket.cc:538 NCCL WARN Net : Connection closed by remote peer 10.0.0.1<47861>",
    "nccl-abort": f"{_NCCL}NCCL communicator was aborted on rank 0.",
    "nccl-watchdog": f"{_NCCL}[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, "
    "OpType=ALLREDUCE, Timeout(ms)=1800000) ran for 1800012 milliseconds before timing out.",
    "gloo-read": "RuntimeError: [gloo/pair.cc:589] Read error [10.0.0.1]:25266: Connection reset by peer",
    "gloo-write": "RuntimeError: [gloo/pair.cc:457] writev [10.0.0.1]:25266: Broken pipe",
    "gloo-recv": "RuntimeError: [gloo/buf.cc:81] Timed out waiting 1800000ms for recv operation to complete",
    "nccl-unique-id": f"{_NCCL}[1] is setting up NCCL communicator and retrieving ncclUniqueId from [0] via "
    "c10d key-value store by store->get('0'), but store->get('0') got error: Socket Timeout",
    "nccl-internal": "ncclInternalError: Internal check failed. Last error: Socket recv failed while polling "
    "for opId=0x7f",
    "store-timeout": "torch.distributed.DistStoreError: Socket Timeout",
    "store-barrier": "RuntimeError: Timed out initializing process group in store based barrier on rank: 1, "
    "for key: store_based_barrier_key:1 (world_size=2, worker_count=1, timeout=0:30:00)",
    "store-clients": "torch.distributed.DistStoreError: Timed out after 1801 seconds waiting for clients. "
    "1/2 clients joined.",
    "gloo-connect": "RuntimeError: Gloo connectFullMesh failed with [tcp/pair.cc:144] timed out connecting: "
    "SO_ERROR: Connection timed out, remote=[10.0.0.1]:35141",
    "gloo-send": "RuntimeError: [gloo/buf.cc:118] Timed out waiting 1800000ms for send operation to complete",
    "gloo-closure": "RuntimeError: Application timeout caused pair closure",
    "gloo-mesh": "RuntimeError: Gloo connectFullMesh failed with [gloo/transport/tcp/pair.cc:144] no error",
    "gloo-mesh-timeout": "RuntimeError: Gloo connectFullMesh failed with [gloo/transport/tcp/pair.h:301] "
    "Connect timeout [none]",
    "local-rank-0": "RuntimeError: Waiting for local rank 0, bailing out: 60.000 < 60.033 sec.",
    "ib": "ncclSystemError: System call failed. Last error: NET/IB : Got completion from peer "
    "10.0.0.2<4567> with status=12 opcode=0 len=0 vendor err 129",
    "ib-old": "NCCL WARN NET/IB : Got completion with error 12, opcode 1, len 0, vendor err 129",
    "ib-plugin": "NCCL WARN NET/IBP:Got completion from peer 7.6.13.83<36315> with status=5 opcode=1 len=2",
    "local-dump": "Received a dump signal due to a collective timeout from this local rank and we will try "
    "our best to dump the debug info.",
    "ofi": "NCCL WARN NET/OFI Request 0x7fbb944701b8 completed with error. RC: 20. Error: unknown error.",
    "ofi-context": "NCCL WARN NET/OFI Operation with NULL context completed with error",
    "ofi-cq": "NCCL WARN NET/OFI Request completed with error. RC: 21. Error: unknown error.",
}
