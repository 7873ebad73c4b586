"""Say how the script around a program hid its exit code, as far as the script shows it, and what to write."""

from __future__ import annotations

import re

from harness.evidence.kubernetes.objects import items
from harness.judge.case import Case

_KONDUKTOR = re.compile(r"^\($\n(.*?)^\)$\n# Capture", re.DOTALL | re.MULTILINE)
"""The user's own script, in the middle of konduktor's."""
_STARTS, _LAUNCHERS = r"(^|[\s;&|(/'\"])", r"torchrun|python[\d.]*|accelerate|deepspeed"
LAUNCHER = re.compile(rf"{_STARTS}({_LAUNCHERS})(\s|$)|torch\.distributed")
"""What starts a training program in a line of a script."""
_PROGRAM = re.compile(rf"{_STARTS}({_LAUNCHERS}|bash|sh)(\s|$)")
_COMPOUND = re.compile(r"^(!|if|while|until|for|case|function)\b|^!|[({]\s*$|^trap\b")
"""A line of a command around others, or of a trap: it decides about their exit codes."""
_WAITS = re.compile(r"\b(wait|fg)\b|\bkill\s+-0\b|--pid\b")

_WAYS = (
    (r"&\s*wait\s*$", "`wait` alone ends with 0 whatever it waited for: write `wait $!` for each command"),
    (r"\bfind\b.*-exec\b", "`find -exec` hides it: call the command in a loop, with `set -e`"),
    (r"^(?!.*--return)script\s+(?!-\w*e)", "`script` hides it: write `script -e`"),
)
"""What the line that starts the program may have around it, and what hides the exit code then."""
_BEHIND = re.compile(r"(?<![&>])&\s*(disown)?\s*$")
"""The end of a line that starts a program in the background."""


def script(case: Case, index: int) -> str:
    """Return the script that a pod's container runs, without comments and with joined lines, or ""."""
    pod = case.pods.get(index)
    containers = items(pod.last.object, "spec", "containers") if pod else []
    for container in containers:
        if container.get("name") != case.launch.container:
            continue
        words = [*(container.get("command") or []), *(container.get("args") or [])]
        text = max(map(str, words), key=_weight, default="")
        own = _KONDUKTOR.search(text)
        return own[1] if own else text
    return ""


def leaves_behind(text: str) -> bool:
    """Return whether a script starts its program in the background and never waits for it."""
    lines = lines_of(text)
    started = [line for line in lines if _PROGRAM.search(line)]
    return bool(started) and bool(_BEHIND.search(started[-1])) and not any(map(_WAITS.search, lines))


def passes_on(text: str) -> bool:
    """Return whether a script surely ends with the exit code of the one program that it starts."""
    lines = lines_of(text)
    started = [line for line in lines if _PROGRAM.search(line)]
    if not lines or started != lines[-1:] or any(map(_COMPOUND.search, lines)):
        return False
    return not re.search(r"[|;&`(]", lines[-1])


def _weight(word: str) -> tuple[bool, int]:
    """Order words by how likely they are the user's script: one that starts a program, and the longest."""
    own = _KONDUKTOR.search(word) or ("/opt/harness/" not in word and _PROGRAM.search(word))
    return bool(own), len(word)


def way(text: str) -> str:
    """Return one sentence on how a script hid an exit code, with what to write, or ""."""
    lines = lines_of(text)
    at = next((n for n in range(len(lines) - 1, -1, -1) if _PROGRAM.search(lines[n])), None)
    if at is None:
        return ""
    line, before, after = lines[at], lines[:at], lines[at + 1 :]
    return _in_its_line(line, before) or _later(line, before, after) or _trap(lines)


def _in_its_line(line: str, before: list[str]) -> str:
    """Return how the line that starts the program hides its exit code, or ""."""
    if found := re.search(r"\|\|\s*(true|:|echo|exit\s+0)(?=\s|;|$)", line):
        return f"`|| {found[1]}` behind the command hides it: leave that out"
    # With pipefail, the shell reports the first command of a pipe that failed.
    if re.search(r"(?<![|>])\|(?!\|)", line) and not any("pipefail" in one for one in before):
        return "a pipe hides it: write `set -o pipefail` before it"
    for pattern, said in _WAYS:
        if re.search(pattern, line):
            return said
    if _BEHIND.search(line):
        return "the command runs in the background: write `wait $!` after it, and `exit` with its code"
    return ""


def _later(line: str, before: list[str], after: list[str]) -> str:
    """Return how the lines after the program hide its exit code, or ""."""
    if _set(before, r"-\w*e") and not _set(before, r"\+\w*e"):
        return ""
    if any(re.match(r"(exit|return)\s+0\b", one) for one in after):
        return "`exit 0` at the end hides it: write `set -e` at the beginning"
    later = re.search(r";\s*(\S.*)", line)
    last = after[-1] if after else later[1] if later else ""
    return f"a later command (`{last[:40]}`) hides it: write `set -e` at the beginning" if last else ""


def _trap(lines: list[str]) -> str:
    """Return that a trap which runs at the end replaces the exit code, or ""."""
    trap = next((line for line in lines if re.match(r"trap\s.*\b(EXIT|0|ERR)\b", line)), "")
    if trap and any(re.search(r"\bexit\s+0\b", line) for line in lines):
        return (
            f"`exit 0` in what `{trap[:40]}` runs hides it: leave that out, or `exit` with the code in `$?`"
        )
    return ""


def _set(lines: list[str], option: str) -> bool:
    """Return whether the script sets a shell option."""
    return any(re.match(rf"set\s+(\S+\s+)*{option}", line) for line in lines)


def lines_of(text: str) -> list[str]:
    """Return the commands of a script: continued lines joined, comments and empty lines left out."""
    joined = re.sub(r"\\\n\s*", "", text)
    lines = [re.sub(r"(^|\s)#.*$", "", line).strip() for line in joined.splitlines()]
    return [line for line in lines if line and line not in {"fi", "done", "}", ")"}]
