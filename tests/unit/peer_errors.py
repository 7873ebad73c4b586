"""What libraries print in a rank whose peer ended or does not answer, in the words of public reports.

pytorch#153586, nccl#795, #1486 and #2076, LlamaFactory#6849, gloo#511.
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
    "gloo-send": "RuntimeError: [gloo/buf.cc:118] Timed out waiting 1800000ms for send operation to complete",
}
