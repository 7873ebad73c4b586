"""The ground-truth wire format: authenticated lines on a rank's stdout that record what it logged.

Standard library only, because ranks import this module in their pods. The harness imports it to read logs.

A frame is one line, at most MAX_LINE bytes (one atomic pipe write):

    @truth1 <base64 of compact JSON> <first 32 hex digits of HMAC-SHA256(nonce, base64 text)>

The JSON has "k" (kind), "r" (rank), "a" (attempt), "q" (sequence number), and fields that depend on the kind:
    {"k":"start","t":time_ms,"host":hostname,"pid":n,"restart":n,"max_restarts":n,"world":n}
    {"k":"rows","n":first_row_number,"rows":[[metric, step, value, time_ms], ...]}
    {"k":"block","metric":m,"first":step,"last":step,"count":c,"sha256":hex}
        and "ordered": whether the metric's steps have only risen so far. With "kept": true, the block has the
        rows that Pluto keeps of a metric whose steps fell or repeated, sorted by step. "again" is then the
        number of points with different values, and "older" the number of points that keep an older value.
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
A "left" frame is written when the client drops a value for a new reason, and once more, with all counts,
before the "account" frame (outside_account.py). "init" is written when rows come from a different init than
the previous rows. A "fault" with a negative "q" was written by a child process of the rank, and
is not part of the sequence.
Frames of the recorder around the client (outside_client.py) also have "s":"outside".
A rank has several attempts if torchrun restarts it or its pod is created again. Each attempt has its own id;
"restart" is torchrun's restart count, or null without torchrun.
"q" counts an attempt's frames from 0, so a gap means a lost frame. Blocks represent the rows beyond the row
limit, which are not in the log. A line whose MAC does not match the launch's nonce is not ground truth.
Finite values are JSON numbers. Other values are the strings "NaN", "Infinity", "-Infinity".
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
"""Prefix of the lines in which outside_process.py records a process's identity and end."""
EXIT_MARK = "@exit1 "
"""Prefix of a line from harness/launch/files/worker_init.sh: "@exit1 <nonce> <exit code of the command>"."""
MAX_LINE = 4000
_compact = json.JSONEncoder(separators=(",", ":")).encode
_FRAMES = {
    mark: re.compile(mark + r"([A-Za-z0-9+/=]+) ([0-9a-f]{32})(?![0-9a-f])") for mark in (MARK, PROCESS_MARK)
}


def encode_value(value: float) -> float | str:
    """Return a float in a form that JSON supports: non-finite values become strings."""
    value = float(value)
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return value


def decode_value(value: float | str) -> float:
    """Return the float that `encode_value` encoded."""
    return float(value)


def row_bytes(metric: str, step: int, value: float) -> bytes:
    """Return the canonical bytes of one row, for digests. Identical doubles give identical bytes."""
    return _compact([metric, int(step), encode_value(value)]).encode() + b"\n"


def digest(rows: Iterable[tuple[str, int, float]]) -> str:
    """Return SHA-256 hex over the canonical bytes of rows (metric, step, value), in order."""
    total = hashlib.sha256()
    for metric, step, value in rows:
        total.update(row_bytes(metric, step, value))
    return total.hexdigest()


def _mac(nonce: str, body: str) -> str:
    return hmac.digest(nonce.encode(), body.encode(), "sha256").hex()[:32]


def encode(nonce: str, payload: dict[str, Any], mark: str = MARK) -> str:
    """Return one frame line without its newline. Raises ValueError if it would exceed MAX_LINE bytes."""
    body = base64.b64encode(_compact(payload).encode()).decode()
    line = f"{mark}{body} {_mac(nonce, body)}"
    if len(line) + 1 > MAX_LINE:
        raise ValueError(f"the frame has {len(line)} bytes; the maximum is {MAX_LINE - 1}")
    return line


def decode(nonce: str, lines: Iterable[str], mark: str = MARK) -> Iterator[dict[str, Any]]:
    """Yield the payload of every authentic frame in log lines, and skip everything else.

    Other text may precede a frame on its line, because several processes share one pipe.
    """
    for line in lines:
        if mark not in line:
            continue
        for body, mac in _FRAMES[mark].findall(line):
            if hmac.compare_digest(mac, _mac(nonce, body)):
                yield json.loads(base64.b64decode(body))
