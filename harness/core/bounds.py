"""Bounds of what a user may write, and the sentence that refuses a value beyond its bound.

They are checked before anything is created. docs/limits.md lists them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, Final

MAX_NODES: Final = 10_000
"""Pods of one launch. The CRD of TorchrunJobs has the same bound; Kubernetes is tested with 5,000 nodes."""
MAX_KONDUKTOR_NODES: Final = 1_000
"""konduktor puts the host names of all nodes into one variable, and Linux limits a variable to 128 KiB."""
MAX_PROCESSES: Final = 1_024
"""Ranks of one pod."""
MAX_RANKS: Final = 100_000
"""Ranks of one launch: pods × ranks of each pod."""
MAX_SCRIPT_BYTES: Final = 120 * 1024
"""A script is one argument of a shell, and Linux limits an argument to 128 KiB."""
MAX_VARIABLE_NAME: Final = 255
MAX_VARIABLE_BYTES: Final = 120 * 1024
"""Linux limits `NAME=value` to 128 KiB."""
MAX_ENVIRONMENT_BYTES: Final = 512 * 1024
"""Names and values of one container together. An object of Kubernetes takes at most 1.5 MiB."""
MAX_IMAGE: Final = 512
"""Characters of an image's name with tag and digest."""
MAX_PROBLEMS: Final = 10
"""Mistakes that one message lists."""
_SHOWN = 60
_IMAGE = re.compile(r"[A-Za-z0-9._/:@+-]+")


def shown(value: Any) -> str:
    """Return a value for a message: its repr, at most 60 characters of it."""
    try:
        text = repr(value)
    except ValueError:  # Python prints no whole number of more than 4300 digits
        return "a number of more than 4300 digits"
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"


def listed(problems: Iterable[str]) -> str:
    """Return mistakes for a message, or "" where there is none. No more than MAX_PROBLEMS are looked for."""
    found = list(islice(problems, MAX_PROBLEMS + 1))
    return "; ".join(found[:MAX_PROBLEMS]) + ("; and more" if len(found) > MAX_PROBLEMS else "")


def bounded_int(digits: str) -> int:
    """Return the number that digits stand for, and 10^18 for every larger one.

    Python refuses texts of more than 4300 digits.
    """
    return int(digits) if len(digits) <= 18 else 10**18


def count_problem(field: str, value: Any, most: int, unit: str) -> str | None:
    """Return what is wrong with a count from 1 to `most`, or None for one that fits.

    `unit` is a plural: "nodes".
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        return f"{field}: a whole number from 1 on; seen {shown(value)}"
    if value > most:
        return f"{field}: at most {most} {unit} can be launched; seen {shown(value)}"
    return None


def ranks_problem(nodes: int, per_node: int) -> str | None:
    """Return what is wrong with the size of a world, or None for one that fits."""
    if per_node > MAX_PROCESSES:
        return f"--nproc_per_node: at most {MAX_PROCESSES} processes per node; seen {shown(per_node)}"
    if nodes * per_node > MAX_RANKS:
        return (
            f"{nodes} nodes × {per_node} processes: at most {MAX_RANKS} ranks can be launched; "
            f"seen {nodes * per_node}"
        )
    return None


def text_problem(field: str, text: str, most: int) -> str | None:
    """Return what is wrong with the length of a text in bytes of UTF-8, or None for one that fits."""
    size = len(text.encode(errors="replace"))
    return f"{field}: at most {most} bytes; seen {size}" if size > most else None


def image_problem(field: str, image: str) -> str | None:
    """Return what is wrong with the characters of an image's name, or None for one that may be an image's."""
    if len(image) > MAX_IMAGE:
        return f"{field}: at most {MAX_IMAGE} characters; seen {len(image)}"
    if not _IMAGE.fullmatch(image):
        return f"{field}: an image's name has letters, digits and . _ - + / : @ alone; seen {shown(image)}"
    return None


def environment_problems(field: str, variables: list[tuple[str, str]]) -> Iterator[str]:
    """Yield what is too long among environment variables. `field`: where they are written."""
    for name, value in variables:
        if len(name) > MAX_VARIABLE_NAME:
            yield f"{field}: a name has at most {MAX_VARIABLE_NAME} characters; seen {len(name)}"
        elif problem := text_problem(f"{field}.{name}", value, MAX_VARIABLE_BYTES):
            yield problem
    total = sum(len(name) + len(value.encode(errors="replace")) for name, value in variables)
    if total > MAX_ENVIRONMENT_BYTES:
        yield f"{field}: names and values have at most {MAX_ENVIRONMENT_BYTES} bytes together; seen {total}"
