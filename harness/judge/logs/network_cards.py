"""Match NCCL's messages about a network card that received no response from its peer."""

ERRORS = (
    r"NET/OFI .*completed with error|NET/OFI Unable to insert remote address"
    r"|NET/IBP? ?:? ?Got completion (from peer \S+ )?(with )?(status=|error )(5|12|13)\b"
)
"""Pattern for messages from NCCL's libfabric plug-in, and for messages about InfiniBand with status 5
(flushed), or with 12 or 13 (too many retries)."""
