"""Match NCCL's messages about a network card whose peer does not respond."""

ERRORS = (
    r"NET/OFI .*completed with error|NET/OFI Unable to insert remote address"
    r"|NET/IBP? ?:? ?Got completion (from peer \S+ )?(with )?(status=|error )(5|12|13)\b"
)
"""Pattern for messages from NCCL's plug-in for libfabric, and from InfiniBand (5: flushed, 12 and 13: too
many retries)."""
