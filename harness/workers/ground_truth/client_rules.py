"""Predict how the Pluto client (pluto-ml 0.0.29) renames metrics, and changes or drops values.

The rules are derived from the client's code: `get_char` (util.py), `_log_via_sync` and
`_process_log_item_sync` (op.py), and `upload_metrics_batch` (sync/process.py). The client does not sample
values or shorten metric names. A test compares these rules with the installed client. This module uses only
the standard library.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

_PLAIN = re.compile(r"^[ -~]+$")
_OTHER = re.compile(r"[^ -~]")
LONGEST_TEXT = 200
"""Maximum length of a string in characters. The client drops longer strings."""
MAX_STEP = (1 << 63) - 1
EXACT = 1 << 53
"""A double can represent every integer up to this value exactly."""


@dataclass(frozen=True)
class Sent:
    """The data that the client sends for one logged value."""

    values: tuple[float, ...] = ()
    """The numbers in the logged value as doubles, in order. Only the last number remains in the run."""
    kept: bool = True
    """Whether the last number in `values` reaches the run. False if the client or Pluto drops it."""
    why: str = ""
    """How and why the client changes or drops the value. "" if the value is sent unchanged."""


def sent_name(name: str) -> str:
    """Return the name that the client sends, in which `-` replaces all but printable ASCII characters."""
    return name if _PLAIN.match(name) else _OTHER.sub("-", name)


def whole(step: Any) -> int | None:
    """Convert a step of any type (NumPy number, tensor, text) to an integer. Returns None if that fails.

    The recorder, its frames and the comparison with the client's queue all use this function.
    """
    if not isinstance(step, (int, float, str)) and callable(getattr(step, "item", None)):
        try:
            step = step.item()
        except Exception:  # The step contains more than one number.
            return None
    if isinstance(step, bytes):  # The client's queue stores NumPy steps as bytes.
        return int.from_bytes(step, "little", signed=True)
    try:
        return int(step) if isinstance(step, (int, float, str)) else None
    except (ValueError, OverflowError):
        return None


def sent(value: Any, step: Any = 0) -> Sent:
    """Return the data that the client sends for `run.log({name: value}, step=step)`."""
    reason = refused(step)
    one = _list(value) if isinstance(value, list) else _scalar(value)
    if not reason:
        return one
    return Sent(one.values if whole(step) is not None else (), kept=False, why=reason)


def _list(items: list[Any]) -> Sent:
    """Return the data that the client sends for a list.

    Items are logged in order, so the last number is kept.
    """
    values: list[float] = []
    reasons = [] if items else ["the list is empty, so the client sends nothing"]
    for item in items:
        one = _scalar(item)
        reasons += [f"in a list: {one.why}"] if one.why else []
        if one.kept:
            values += one.values
        elif one.values and hasattr(item, "item"):
            values = []  # This item replaces the earlier numbers, but the uploader drops the item.
    if len(values) > 1:
        reasons.append(f"of the {len(values)} numbers in a list, the client keeps only the last")
    return Sent(tuple(values), kept=bool(values) or not reasons, why="; ".join(dict.fromkeys(reasons)))


def _scalar(value: Any) -> Sent:
    kind = type(value).__name__
    if isinstance(value, str) and hasattr(value, "item"):
        return Sent(
            kept=False, why=f"the client treats NumPy strings as numbers and leaves them out ({kind})"
        )
    if isinstance(value, str):
        is_too_long = len(value) > LONGEST_TEXT
        reason = f"the client leaves out strings longer than {LONGEST_TEXT} characters" if is_too_long else ""
        return Sent(kept=not is_too_long, why=reason)
    number = value
    if not isinstance(value, (int, float)) and callable(getattr(value, "item", None)):
        try:
            number = value.item()
        except Exception as error:
            return Sent(
                kept=False, why=f"the client leaves out values that are not a single number ({kind}: {error})"
            )
    if isinstance(number, bool):
        return Sent((float(number),), kept=False, why=f"the client leaves out booleans ({kind})")
    if isinstance(number, (int, float)):
        return _number(number)
    return _no_number(value)


def _no_number(value: Any) -> Sent:
    if type(value).__module__.partition(".")[0] == "pluto":
        return Sent()  # Files, tables and other Pluto objects are not logged as metrics.
    kind = type(value).__name__
    try:
        values = () if value is None else (float(value),)
    except Exception:  # The value's own __float__ can raise any exception.
        values = ()
    return Sent(values, kept=False, why=f"the client leaves out values that are not int or float ({kind})")


def _number(number: float) -> Sent:
    try:
        double = float(number)
    except OverflowError:
        return Sent(kept=False, why="Pluto refuses an integer that exceeds the range of a double")
    if isinstance(number, int) and int(double) != number:
        return Sent((double,), why=f"Pluto keeps doubles: {number} becomes {int(double)}")
    return Sent((double,))


def refused(step: Any) -> str:
    """Return the reason why values logged with this step do not reach the run, or "" if the step is valid."""
    if isinstance(step, str):  # The client's queue converts a string of digits to a number.
        number = whole(step)
        return refused(number) if number is not None else f"Pluto refuses step {step[:40]!r}"
    if not isinstance(step, (int, float)):
        kind = type(step).__name__
        return f"the client cannot send a step of type {kind}, nor the values logged with it: use int(step)"
    if isinstance(step, float) and (not math.isfinite(step) or step != int(step)):
        return f"Pluto refuses step {step}, which is not a whole number, and all values sent with it"
    if isinstance(step, (int, float)) and not 0 <= step <= MAX_STEP:
        return f"Pluto refuses step {step}, and all values sent with it"
    return ""
