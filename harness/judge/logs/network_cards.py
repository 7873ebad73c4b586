"""Match NCCL's messages about a network card whose peer does not respond."""

ERRORS = (
    r"NET/OFI .*completed with error|NET/OFI Unable to insert remote address"
    r"|NET/IBP? ?:? ?Got completion (from peer \S+ )?(with )?(status=|error )(5|12|13)\b"
)
"""Pattern for messages from NCCL's plug-in for libfabric, and for messages about InfiniBand with status 5
(flushed), 12 or 13 (too many retries)."""
