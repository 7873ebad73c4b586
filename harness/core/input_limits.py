"""Limits on user-supplied values, and the messages for values that exceed them.

The limits are checked before anything is created. docs/limits.md lists them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, Final

MAX_NODES: Final = 10_000
"""The maximum number of pods in a launch, which is also the limit in the TorchrunJob CRD. Kubernetes itself
is tested with up to 5,000 nodes.
"""
MAX_KONDUKTOR_NODES: Final = 1_000
"""Maximum number of pods in a konduktor job.

The host names of all pods are passed in one environment variable, which Linux limits to 128 KiB.
"""
MAX_PROCESSES: Final = 1_024
"""Maximum number of ranks per pod."""
MAX_RANKS: Final = 100_000
"""Maximum number of ranks in a launch: pods × ranks per pod."""
MAX_SCRIPT_BYTES: Final = 120 * 1024
"""Maximum size of a script, in bytes. The script is passed to a shell as a single argument, which Linux
limits to 128 KiB."""
MAX_VARIABLE_NAME: Final = 255
MAX_VARIABLE_BYTES: Final = 120 * 1024
"""Maximum size of an environment variable's value, in bytes. Linux limits `NAME=value` to 128 KiB."""
MAX_ENVIRONMENT_BYTES: Final = 512 * 1024
"""Maximum total size of a container's environment variables, in bytes. Kubernetes limits objects to 1.5
MiB."""
MAX_IMAGE: Final = 512
"""Maximum length of an image name in characters, including tag and digest."""
MAX_PROBLEMS: Final = 10
"""Maximum number of errors listed in a message."""
_MAX_SHOWN = 60
_IMAGE = re.compile(r"[A-Za-z0-9._/:@+-]+")


def shown(value: Any) -> str:
    """Return the repr of a value for a message, truncated to 60 characters."""
    try:
        text = repr(value)
    except ValueError:  # Python refuses to print integers with more than 4300 digits.
        return "a number with more than 4300 digits"
    return text if len(text) <= _MAX_SHOWN else f"{text[: _MAX_SHOWN - 1]}…"


def listed(problems: Iterable[str]) -> str:
    """Join error messages with semicolons.

    Messages after the first MAX_PROBLEMS are replaced by "and more". Returns "" if there are none.
    """
    first = list(islice(problems, MAX_PROBLEMS + 1))
    return "; ".join(first[:MAX_PROBLEMS]) + ("; and more" if len(first) > MAX_PROBLEMS else "")


def bounded_int(digits: str) -> int:
    """Return the integer represented by `digits`, capped at 10^18.

    `digits` can be long, and int() rejects strings with more than 4300 digits.
    """
    return int(digits) if len(digits) <= 18 else 10**18


def count_problem(field: str, value: Any, limit: int, unit: str) -> str | None:
    """Return an error message if the value is not an integer from 1 to `limit`, and otherwise None.

    `unit` is a plural noun for the message, such as "nodes".
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        return f"{field}: expected a positive whole number, found {shown(value)}"
    if value > limit:
        return f"{field}: expected at most {limit} {unit}, found {shown(value)}"
    return None


def ranks_problem(nodes: int, per_node: int) -> str | None:
    """Return an error message if a launch has too many ranks per node or in total, and otherwise None."""
    if per_node > MAX_PROCESSES:
        return (
            f"--nproc_per_node: expected at most {MAX_PROCESSES} processes per node, found {shown(per_node)}"
        )
    if nodes * per_node > MAX_RANKS:
        return (
            f"{nodes} nodes × {per_node} processes: expected at most {MAX_RANKS} ranks in total, "
            f"found {nodes * per_node}"
        )
    return None


def text_problem(field: str, text: str, limit: int) -> str | None:
    """Return an error message if the text is longer than `limit` bytes in UTF-8, and otherwise None."""
    size = len(text.encode(errors="replace"))
    return f"{field}: expected at most {limit} bytes, found {size}" if size > limit else None


def image_problem(field: str, image: str) -> str | None:
    """Return an error message if the image name is too long or contains invalid characters, and otherwise
    None."""
    if len(image) > MAX_IMAGE:
        return f"{field}: expected at most {MAX_IMAGE} characters, found {len(image)}"
    if not _IMAGE.fullmatch(image):
        return (
            f"{field}: an image name can contain only letters, digits and . _ - + / : @; found {shown(image)}"
        )
    return None


def environment_problems(field: str, variables: list[tuple[str, str]]) -> Iterator[str]:
    """Yield an error message for each environment variable that is too long, and one if all variables
    together are too large. `field` is the name of the field that sets the variables.
    """
    for name, value in variables:
        if len(name) > MAX_VARIABLE_NAME:
            yield (
                f"{field}: expected variable names of at most {MAX_VARIABLE_NAME} characters, found "
                f"{len(name)}"
            )
        elif problem := text_problem(f"{field}.{name}", value, MAX_VARIABLE_BYTES):
            yield problem
    total = sum(len(name) + len(value.encode(errors="replace")) for name, value in variables)
    if total > MAX_ENVIRONMENT_BYTES:
        yield (
            f"{field}: expected at most {MAX_ENVIRONMENT_BYTES} bytes of names and values in total, "
            f"found {total}"
        )
