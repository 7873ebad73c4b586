"""Run nvidia-smi, and read its output even if it fails."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import tempfile

from . import smi_parser
from .smi_errors import MAX_LETTERS, Reading, unparsed

SECONDS = 60.0
"""Timeout in seconds for one call. Without persistence mode, a call takes up to 20 s if there are eight
GPUs."""
_KILL_SECONDS = 2.0


def ask(*arguments: str, seconds: float = SECONDS) -> tuple[str, int]:
    """Run nvidia-smi. Return its output, including stderr, and its exit code.

    Raises FileNotFoundError if nvidia-smi is missing, and TimeoutError if it does not finish in time. A
    process that hangs in the driver cannot be killed, so it is left running.
    """
    command = shutil.which("nvidia-smi")
    if command is None:
        raise FileNotFoundError(
            "nvidia-smi is not in this container (NVIDIA_DRIVER_CAPABILITIES must include utility)"
        )
    # Use files instead of pipes. A pipe would stay open as long as a child process of nvidia-smi is alive.
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = subprocess.Popen([command, *arguments], stdout=out, stderr=err, stdin=subprocess.DEVNULL)
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_KILL_SECONDS)
            raise TimeoutError(
                f"nvidia-smi did not end within {seconds:g} s: the driver does not respond"
            ) from None
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read().decode(errors="replace"))
    return "\n".join(texts), code


def read(seconds: float = SECONDS) -> Reading:
    """Return the parsed output of `nvidia-smi -q -x`, or the reason why it cannot be parsed."""
    try:
        text, code = ask("-q", "-x", seconds=seconds)
    except FileNotFoundError as error:
        return Reading(None, str(error))
    except OSError as error:
        # This includes TimeoutError, which is an OSError. A timeout means that the driver does not respond.
        return Reading(None, str(error), failed=True)
    parsed = smi_parser.parse(text, code)
    if parsed is None:
        return Reading(None, unparsed(text, code), failed=True, code=code)
    return Reading(parsed)


def links() -> dict[str, list[float]]:
    """Return the speeds of each GPU's NVLinks in GB/s, keyed by the GPU's UUID.

    Raises OSError like `ask`. If nvidia-smi fails and prints no data, raises ValueError with the end of its
    output.
    """
    text, code = ask("nvlink", "-s")
    speeds = smi_parser.parse_links(text)
    if code and not speeds:
        raise ValueError(f"nvidia-smi ended with exit code {code}: {text.strip()[-MAX_LETTERS:]}")
    return speeds
