"""Match the errors of ranks that lost a peer, timed out waiting for one, or received unexpected data."""

from __future__ import annotations

import re

from harness.judge.logs import network_cards

NCCL_CONNECTS = r"(socket(Start|Poll)Connect|NCCL (WARN|warned:) Net ?): [Cc]onnect to "
LINK_LOCAL = r"127\.|169\.254\.|::1<|fe80:"
"""Pattern for addresses that can be reached only from the same host or the same network link."""
NCCL_CONNECT = rf"{NCCL_CONNECTS}(?!{LINK_LOCAL}|.{{0,200}}, retrying \().{{0,200}}"
"""Beginning of a pattern for NCCL's message that it could not connect to the address of another host.

The pattern excludes attempts that NCCL repeats, which it logs with NCCL_DEBUG=INFO, because repeated attempts
are normal while other ranks start.
"""
_BROKEN = r"Call to (recv|send|read|write)( \w+ \S+)? failed : (Connection timed out|No route to host)"
"""Pattern for NCCL's message that an established connection to a peer broke."""
_OTHER_NETWORK = r"socketFinalizeAccept: wrong type \d != \d"
"""Pattern for NCCL's error that a peer uses another network, for example InfiniBand instead of TCP."""
_GLOO_CONNECT = r"tcp/pair\.cc:\d+\] connect \["
"""Beginning of a pattern for the message in which older versions of gloo report a failed connection."""
MESH = re.compile(rf"connectFullMesh failed|{_GLOO_CONNECT}\S+: [A-Z][\w ]+")
"""Pattern for gloo's errors that it could not connect to a peer."""
ADVERTISED = (
    rf"{NCCL_CONNECTS}({LINK_LOCAL})"
    rf"|(connectFullMesh failed.* remote=\[|{_GLOO_CONNECT})(127\.|::1\]|fe80:)"
    # A peer without the interface in NCCL_SOCKET_IFNAME sends an address that is not initialized.
    r"|ncclSocketInit: connecting to address .{0,80}is neither AF_INET"
    # gloo resolves the pod's own host name. If the name is a number, it is taken for an address.
    r"|ifa != nullptr\. Unable to find interface for: "
)
"""Pattern for messages of gloo (tcp/pair.cc, tcp/device.cc) and NCCL (socket.cc) about an address that other
hosts cannot reach."""
LOST = re.compile(
    r"Connection (closed|reset) by (remote )?peer|RendezvousC(onnection|losed)Error|Broken pipe"
    r"|remote process exit|Socket closed"
    rf"|[Ff]ailed to recv, got 0 bytes|{network_cards.ERRORS}|{NCCL_CONNECT}Connection refused"
    rf"|{_OTHER_NETWORK}|{_BROKEN}"
)
"""Pattern for the errors of a rank whose connection to a peer broke."""
OF_A_PEER = re.compile(
    rf"{LOST.pattern}|SignalException|Received 15 death signal"
    # Messages from NCCL and from TCPStore, whose server runs in rank 0.
    r"|Connection was likely closed|NCCL communicator was aborted|Socket recv failed while polling"
    r"|ray\.exceptions\.(ActorDied|ActorUnavailable|RayActor|NodeDied|WorkerCrashed)Error"
)
"""Pattern for the errors of a rank that lost a peer, or that was stopped because another rank had failed."""
ABSENT = re.compile(
    r"Timed out waiting \d+ms for (recv|send) operation|wait timeout after \d+ms, keys:"
    r"|Watchdog caught collective operation timeout"
    r"|Received a dump signal due to a collective timeout from (this local )?rank"
    r"|Observed flight recorder dump signal from another rank"
    r"|failed to pass monitoredBarrier|Detected mismatch between collectives on ranks"
    # Errors of a rank that waited for a peer's key in the store, or for a peer's connection.
    r"|retrieving ncclUniqueId from \[\d+\]|(Runtime|DistStore)Error: Socket Timeout|Timeout waiting for key"
    r"|in store based barrier on rank|connectFullMesh failed with (?!.*remote=\[(127\.|::1\]|fe80:))"
    rf"|{_GLOO_CONNECT}(?!127\.|::1\]|fe80:)"
    r"|Getting socket times out|Application timeout caused pair closure"
    # MosaicML's streaming library prints this in a rank that waits for another rank in the same pod.
    r"|Waiting for local rank \d+, bailing out"
    r"|Timed out receiving the shared seed|reached monitoredBarrier, but received errors"
)
DIFFERENT = re.compile(
    # NCCL: transport/net_socket.cc, bootstrap.cc, transport/net_ib.cc and, up to version 2.4, init.cc
    r"(?P<nccl>[Mm]essage truncated : receiv(?:ed|ing) \d+ bytes instead of \d+"
    r"|collective mismatch error, local size \d+ remote size \d+"
    r"|Mismatched collective detected)"
    r"|(?P<group>Bootstrap Root : mismatch in rank count from procs \d+ : \d+)"
    # gloo (transport/tcp/pair.cc). Larger numbers are not sizes, but data from another program.
    r"|op\.preamble\.length <= op\.nbytes\. \d{1,13} vs \d{1,13}(?!\d)"
)
"""Pattern for the errors of a rank that received less or more data from a peer than it expected."""


CLOSED = "RendezvousClosedError"
"""The exception of a torchrun that joins a rendezvous which another torchrun has closed by ending."""


def is_of_a_peer(text: str) -> bool:
    """Return whether the text reports that a peer ended, did not respond or called something different."""
    return any(pattern.search(text) for pattern in (OF_A_PEER, ABSENT, DIFFERENT))
