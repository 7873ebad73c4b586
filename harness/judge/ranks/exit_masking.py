"""Find out how a run script hid the exit code of its program, and how to fix the script."""

from __future__ import annotations

import re

from harness.evidence.kubernetes.objects import items
from harness.judge.case import Case

_KONDUKTOR = re.compile(r"^\($\n(.*?)^\)$\n# Capture", re.DOTALL | re.MULTILINE)
"""Pattern that finds the user's own script within the script that konduktor generates."""
_STARTS, _LAUNCHERS = r"(^|[\s;&|(/'\"])", r"torchrun|python[\d.]*|accelerate|deepspeed"
LAUNCHER = re.compile(rf"{_STARTS}({_LAUNCHERS})(\s|$)|torch\.distributed")
"""Pattern for a command in a script line that starts a training program."""
_PROGRAM = re.compile(rf"{_STARTS}({_LAUNCHERS}|bash|sh)(\s|$)")
_COMPOUND = re.compile(r"^(!|if|while|until|for|case|function)\b|^!|[({]\s*$|^trap\b")
"""Pattern for a line with a compound command or a trap. Both can replace the exit codes of other commands."""
_WAITS = re.compile(r"\b(wait|fg)\b|\bkill\s+-0\b|--pid\b")

_CLOSED = re.compile(r"^(((fi|done|esac)\b|[})]|el(se|if)\b.*?;\s*fi\b)\s*;?\s*)+")
"""Pattern for words such as `fi` and `done`, which end a compound command and run no other command."""
_LOOP = re.compile(r"\b(for|while|until)\b.*\bdo\b.*\bdone\b")

_WAYS = (
    (r"&\s*wait\s*$", "`wait` without arguments always exits with 0: write `wait $!` for each command"),
    (r"\bfind\b.*-exec\b", "`find -exec` hides the exit code: call the command in a loop, with `set -e`"),
    (
        rf"^(!\s|(if|while|until)(?=\s)((?!\b(then|do)\b).)*{_STARTS}({_LAUNCHERS}|bash|sh)\s)",
        "a condition hides the exit code: call the command on a line of its own",
    ),
    (
        r"\|\|(?!.*\b(exit|return)\s+[1-9$\"])",
        "the commands after `||` replace the exit code: end them with `exit 1`",
    ),
    (r"^(?!.*--return)script\s+(?!-\w*e)", "`script` hides the exit code: write `script -e`"),
)
"""Pairs of (pattern for the line that starts the program, explanation of how this line hides the exit
code)."""
_BEHIND = re.compile(r"(?<![&>])&\s*(disown)?\s*$")
"""Pattern for the end of a line that starts a program in the background."""


def script(case: Case, index: int) -> str:
    """Return the run script from the command of the node's rank container, or ""."""
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
    program_lines = [line for line in lines if _PROGRAM.search(line)]
    return (
        bool(program_lines) and bool(_BEHIND.search(program_lines[-1])) and not any(map(_WAITS.search, lines))
    )


def passes_on(text: str) -> bool:
    """Return whether a script always exits with the exit code of the only program that it starts."""
    lines = lines_of(text)
    program_lines = [line for line in lines if _PROGRAM.search(line)]
    if not lines or program_lines != lines[-1:] or any(map(_COMPOUND.search, lines)):
        return False
    return not re.search(r"[|;&`(]", lines[-1])


def _weight(word: str) -> tuple[bool, int]:
    """Return a sort key that is highest for the user's script.

    The user's script is probably the longest argument that contains a command to start a program.
    """
    own = _KONDUKTOR.search(word) or ("/opt/harness/" not in word and _PROGRAM.search(word))
    return bool(own), len(word)


def way(text: str) -> str:
    """Return a sentence that explains how a script hid an exit code and how to fix the script, or ""."""
    lines = lines_of(text)
    at = next((n for n in range(len(lines) - 1, -1, -1) if _PROGRAM.search(lines[n])), None)
    if at is None:
        return ""
    line, before, after = lines[at], lines[:at], lines[at + 1 :]
    return _in_its_line(line, before) or _later(line, before, after) or _trap(lines)


def _in_its_line(line: str, before: list[str]) -> str:
    """Return a sentence if the line that starts the program hides the program's exit code, or ""."""
    if ending := re.search(r"\|\|\s*(true|:|echo|exit\s+0)(?=\s|;|$)", line):
        return f"`|| {ending[1]}` after the command hides the exit code: remove it"
    # With pipefail, a pipeline exits with the code of its last command that failed.
    if re.search(r"(?<![|>])\|(?!\|)", line) and not any("pipefail" in one for one in before):
        return "a pipe hides the exit code: write `set -o pipefail` before the command"
    for pattern, sentence in _WAYS:
        if re.search(pattern, line):
            return sentence
    if _BEHIND.search(line):
        return "the command runs in the background: write `wait $!` after it, and `exit` with its code"
    return ""


def _later(line: str, before: list[str], after: list[str]) -> str:
    """Return a sentence if lines after the program hide its exit code, or ""."""
    loop = "a loop hides the exit code: write `|| exit` after the command" if _LOOP.search(line) else ""
    if _set(before, r"-(\w*e|o\s+errexit)") and not _set(before, r"\+(\w*e|o\s+errexit)"):
        return loop
    if any(re.match(r"(exit|return)\s+0\b", one) for one in after):
        return "`exit 0` at the end hides the exit code: write `set -e` at the beginning"
    if loop:
        return loop
    program = _PROGRAM.search(line)
    remainder = "" if "||" in line else line[program.end() if program else 0 :]
    later = re.search(r";\s*(\S.*)", remainder)
    last = after[-1] if after else _CLOSED.sub("", later[1]) if later else ""
    return (
        f"a later command (`{last[:40]}`) hides the exit code: write `set -e` at the beginning"
        if last
        else ""
    )


def _trap(lines: list[str]) -> str:
    """Return a sentence if a trap at the end of the script replaces the exit code, or ""."""
    trap = next((line for line in lines if re.match(r"trap\s.*\b(EXIT|0|ERR)\b", line)), "")
    if trap and any(re.search(r"\bexit\s+0\b", line) for line in lines):
        return f"`exit 0` in `{trap[:40]}` hides the exit code: remove it, or `exit` with the code in `$?`"
    return ""


def _set(lines: list[str], option: str) -> bool:
    """Return whether the lines set the given shell option."""
    return any(re.match(rf"set\s+(\S+\s+)*{option}", line) for line in lines)


def lines_of(text: str) -> list[str]:
    """Return a script's lines without comments and empty lines, with continued lines joined."""
    joined = re.sub(r"\\\n\s*", "", text)
    lines = [re.sub(r"(^|\s)#.*$", "", line).strip() for line in joined.splitlines()]
    return [line for line in lines if line and line not in {"fi", "done", "}", ")"}]
