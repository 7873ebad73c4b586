"""Explain failures in which every pod lost a peer, timed out waiting for one or could not connect to one."""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Iterable, Mapping

from harness.core.causes import CauseId
from harness.judge.case import Case, names
from harness.judge.cluster import service_mesh
from harness.judge.logs import error_patterns as log_clues
from harness.judge.logs import kernel_messages, known_errors, lost_peers
from harness.judge.pod_end import End, explained

NETWORK_ADVICE = (
    "suspect the network between the nodes, or a GPU: run the job with --netcheck, look for Xid errors "
    "(`dmesg | grep Xid` on the nodes), and set NCCL_DEBUG=INFO; if an operation may take that long, raise "
    "`timeout` of init_process_group"
)
_GLOO_ADVICE = (
    "gloo connects every pair of ranks through ports that it chooses: set GLOO_SOCKET_IFNAME to the "
    "interface of the pods' network, and allow all ports between the pods in NetworkPolicies and firewalls; "
    "--netcheck tests the connections"
)
_SUMMARY = re.compile(r"NCCL error in: .*(unhandled system|internal) error|nccl(System|Internal)Error: ")
"""Pattern for lines in which NCCL's exceptions only classify the error that a later line describes."""
_NUMBER = re.compile(r"\d+")


def without_peers(
    case: Case, cause: End, ends: Collection[End], logs: Mapping[int, list[tuple[str, str]]]
) -> End | None:
    """Return the `End` if all pods lost a peer or timed out waiting for one, or None.

    `logs` contains the lines of each pod's last attempt with their references. The `End` has no ranks,
    because the logs do not show which rank failed first.
    """
    other_error = _other_error(case, logs)
    refs = tuple(end.evidence[-1] for end in ends if end.evidence)[:2]
    cause_id: CauseId = "collective.failed"
    known = next(filter(None, (known_errors.advice(end.log_quote) for end in ends)), "")
    details, advice = list[str](), known or NETWORK_ADVICE
    waiting = [end for end in ends if end.peer_absent]
    lost = [end for end in ends if lost_peers.LOST.search(end.log_quote or end.text)]
    of_gloo = [lost_peers.MESH.search(end.log_quote) for end in ends]
    if of_gloo[0] and all(of_gloo):
        text = f"{names(case.ranks)} could not connect to each other ({of_gloo[0][0]})"
        advice = _GLOO_ADVICE
    elif len(waiting) == len(ends):
        cause_id, text = "collective.hung", f"{names(case.ranks)} timed out while they waited for a peer"
    elif len(lost) == len(ends):
        text = f"{names(case.ranks)} lost the connection to a peer"
        details = [f"{names(e.ranks)}: {e.log_quote}" if e.log_quote else e.text for e in lost[:2]]
    elif not cause.peer_absent and all(end in waiting or end in lost for end in ends):
        cause_id, text = "collective.hung", f"{_of_ends(waiting)} timed out while waiting for a peer"
        if all(end not in waiting or match for end, match in zip(ends, of_gloo, strict=True)):
            cause_id, text = "collective.failed", f"{_of_ends(waiting)} could not connect to a peer"
            advice = _GLOO_ADVICE
        text += f", and {_of_ends(end for end in lost if end not in waiting)} lost the connection to a peer"
    else:
        return None
    mesh = None if known or other_error else service_mesh.at_start(case)
    if mesh is not None:
        details, advice = [mesh.text, *details], mesh.advice
    text = "; ".join([f"{text}, and {other_error or 'no rank logged any other error'}", *details])
    return explained(cause, cause_id, [], text, refs, "" if other_error else advice)


def _of_ends(ends: Iterable[End]) -> str:
    return names(rank for end in ends for rank in end.ranks)


def _other_error(case: Case, logs: Mapping[int, list[tuple[str, str]]]) -> str:
    """Return a clause about an earlier error in the logs that is not the loss of a peer, or "".

    Errors that a pod logged after the loss of a peer may be consequences of it, so they do not count. Returns
    the error that the fewest pods logged. An error in the logs of all pods is probably one that the program
    catches, such as a failed optional import.
    """
    errors: dict[str, dict[int, str]] = {}
    for index, lines in logs.items():
        for text, _ in itertools.takewhile(lambda line: not lost_peers.is_of_a_peer(line[0]), lines):
            is_own = log_clues.is_error(text) and not _SUMMARY.search(text) and not log_clues.is_report(text)
            if is_own or kernel_messages.of_line(text):
                errors.setdefault(_NUMBER.sub("", text), {}).setdefault(index, text)
    rarest = min(errors.values(), key=len, default={})
    return next(
        (
            f"an earlier error in the log of {case.place(index)} may be the reason: {text[:200]}"
            for index, text in rarest.items()
        ),
        "",
    )
