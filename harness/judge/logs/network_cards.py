"""Match messages about a network card whose peer does not respond."""

ERRORS = (
    r"NET/OFI .*completed with error|NET/OFI Unable to insert remote address"
    r"|NET/IB(P|/GIN)? ?:? ?Got completion (from peer \S+ )?(with )?(status=|error )"
    r"(IBV_WC_\w+\()?(5|12|13)\b"
    r"|ibv_modify_qp failed with (error|1\d\d) (Connection timed out|Network is unreachable|No route to host)"
    r"|\bTransport retry count exceeded on \w+:\d"
)
"""Pattern for messages from NCCL, its plug-in for libfabric, and UCX. The statuses 5 (flushed), 12
and 13 (too many retries) are those of InfiniBand's completions. When a queue pair is connected with RoCE,
ibv_modify_qp looks up the peer's address."""
