"""Encode and decode ground truth: authenticated lines on a rank's stdout that record what the rank logged.

This module uses only the standard library, because ranks import it in their pods. The harness imports it to
read logs.

A frame is one line, at most MAX_LINE bytes (one atomic pipe write):

    @truth1 <base64 of compact JSON> <first 32 hex digits of HMAC-SHA256(nonce, base64 text)>

The JSON has "k" (kind), "r" (rank), "a" (attempt), "q" (sequence number), and fields specific to the kind:
    {"k":"start","t":time_ms,"host":hostname,"pid":n,"restart":n,"max_restarts":n,"world":n}
    {"k":"rows","n":first_row_number,"rows":[[metric, step, value, time_ms], ...]}
    {"k":"block","metric":m,"first":step,"last":step,"count":c,"sha256":hex}
        and "ordered": whether the metric's steps have been strictly ascending so far. With "kept": true, the
        block contains the rows that Pluto keeps of a metric whose steps went back or repeated, sorted by
        step. "again" is then the number of steps with different values, and "older" the number of steps
        for which Pluto keeps an older value.
    {"k":"code","facts":[[what, name, value], ...]}     see code_digest.py
    {"k":"client","whole":bool,"sent":{m:[[first,last],...]},"unsent":{...},"error":text}
    {"k":"settings","mode":text,"uploads":bool,"queue":path}    and "cpu_frequency":false if there was none
    {"k":"fault","text":why_rows_may_be_missing}
    {"k":"batching","rows":n}    from now on, up to n - 1 rows can wait for the next frame
    {"k":"init","number":n,"same_run":bool}    the next rows come from the n-th init of the process
    {"k":"left","left":[[key, type, why, values, first_step, last_step], ...]}
    {"k":"account","handed":n,"logged":n,"left":n,"past":n,"unseen":text}
    {"k":"rewrite","metric":m,"step":text,"was":text,"kept":bool,"why":text}
    {"k":"metrics","metrics":[[metric, rows, sha256], ...]}    only for an attempt with blocks, before its end
    {"k":"end","count":rows_in_all,"sha256":root}
A "left" frame is written when the client drops a value for a new reason. Before the "account" frame, all
"left" entries are written again with their final counts (queued_values.py). "init" is written when rows
come from a different init than the previous rows. A "fault" with a negative "q" was written by one of the
rank's child processes, and is not part of the sequence. Frames from the recorder that wraps the client
(client_calls.py) also have "s":"outside". A rank has several attempts if torchrun restarts it or its pod is
recreated. Each attempt has its own id; "restart" is torchrun's restart count, or null without torchrun. "q"
numbers an attempt's frames, starting at 0, so a gap means that a frame was lost. Rows beyond the row limit
are not in the log; blocks represent them. A line whose MAC does not match the launch's nonce is not ground
truth. Finite values are JSON numbers. Other values are the strings "NaN", "Infinity", "-Infinity".
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import math
import re
from collections.abc import Iterable, Iterator
from typing import Any

MARK = "@truth1 "
PROCESS_MARK = "@process1 "
"""Prefix of the lines in which recorder/process_events.py records a process's identity and how it ends."""
EXIT_MARK = "@exit1 "
"""Prefix of worker_init.sh's line "@exit1 <nonce> <the command's exit code>" (harness/launch/files)."""
MAX_LINE = 4000
_compact = json.JSONEncoder(separators=(",", ":")).encode
_FRAMES = {
    mark: re.compile(mark + r"([A-Za-z0-9+/=]+) ([0-9a-f]{32})(?![0-9a-f])") for mark in (MARK, PROCESS_MARK)
}


def encode_value(value: float) -> float | str:
    """Return the value in a form that JSON can represent. Non-finite floats become strings."""
    value = float(value)
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return value


def decode_value(value: float | str) -> float:
    """Return the float from the JSON value that `encode_value` returned."""
    return float(value)


def row_bytes(metric: str, step: int, value: float) -> bytes:
    """Return the canonical encoding of a row for digests. Identical doubles have identical encodings."""
    return _compact([metric, int(step), encode_value(value)]).encode() + b"\n"


def digest(rows: Iterable[tuple[str, int, float]]) -> str:
    """Return the SHA-256 hex digest of the canonical encodings of rows (metric, step, value), in order."""
    total = hashlib.sha256()
    for metric, step, value in rows:
        total.update(row_bytes(metric, step, value))
    return total.hexdigest()


def block_digest(rows: Iterable[tuple[str, int, float]]) -> str:
    """Return the digest of a block of rows, for the comparison with the tracker's rows.

    0.0 and -0.0 have the same digest, because a tracker can lose the sign: JavaScript writes -0 as 0.
    """
    return digest((metric, step, float(value) + 0.0) for metric, step, value in rows)


def _mac(nonce: str, body: str) -> str:
    return hmac.digest(nonce.encode(), body.encode(), "sha256").hex()[:32]


def encode(nonce: str, payload: dict[str, Any], mark: str = MARK) -> str:
    """Return a frame as one line without a newline. Raises ValueError if it would exceed MAX_LINE bytes."""
    body = base64.b64encode(_compact(payload).encode()).decode()
    line = f"{mark}{body} {_mac(nonce, body)}"
    if len(line) + 1 > MAX_LINE:
        raise ValueError(f"the frame has {len(line)} bytes; the maximum is {MAX_LINE - 1}")
    return line


def _payload(body: str) -> Any:
    try:
        return json.loads(base64.b64decode(body))
    except RecursionError:
        raise ValueError("the frame is nested too deeply") from None


def decode(nonce: str, lines: Iterable[str], mark: str = MARK) -> Iterator[dict[str, Any]]:
    """Yield the payload of each authentic frame in the log lines. Everything else is skipped.

    Other text may precede a frame on its line, because several processes share one pipe. Raises ValueError
    for an authentic frame whose payload cannot be read.
    """
    for line in lines:
        if mark not in line:
            continue
        for body, mac in _FRAMES[mark].findall(line):
            if hmac.compare_digest(mac, _mac(nonce, body)):
                yield _payload(body)
