"""Remove the text that launchers, loggers and terminals add to a program's log lines.

Ray, pdsh, `srun --label`, `torchrun --tee`, `mpirun --tag-output` and many loggers begin each line with a
prefix, such as "(RayTrainWorker pid=7) ". A prefix of unknown form is recognized in a traceback, where the
line "Traceback (most recent call last):" and the "File …" lines below it begin with the same text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from harness.core import terminal_text
from harness.evidence.io.harness_log_lines import is_own
from harness.judge.logs import error_details

Lines = list[tuple[int, str]]
MAX_CHARACTERS = 1000
"""Maximum number of characters that are read at the beginning and at the end of a line. Some patterns take
quadratic time."""
_MAX_PREFIXES = 20
"""Maximum number of different texts that are tried as prefixes."""
_MAX_PREFIX_CHARACTERS = 120
_STACK_LINES = 50
"""Maximum number of lines from the beginning of a traceback to one of its "File …" lines. Lines from other
processes can be in between."""
_TIME = re.compile(r"^\d{4}-\d\d-\d\dT[\d:.]+(Z|[+-]\d\d:\d\d) ?")
_PROCESS = re.compile(r"^(?P<process>\([\w.:-]{1,80} pid=\d{1,9}(, ip=[\w.:]{1,80})?\)) ?")
"""Pattern for the prefix that Ray and vLLM add to the lines of each process."""
_LABEL = re.compile(
    r"^(?P<process>[^\s\[]{1,80}:|\[[a-z_]+\d+\]:) ?(?=\[rank\d+\]:)"
    r"|^(?P<local>\[default\d+\]): ?|^(?P<mpi>\[\d+,\d+\]<std(out|err)>): ?"
    r"|^\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d.{0,80}?(?=\[rank\d+\]: )"
)
"""Pattern for the prefix that `torchrun --tee`, `mpirun --tag-output` or a logger adds to each line of a
process."""
_GROUP = re.compile(r"^ {2,}[|+] (?=\S)")
"""Pattern for the prefix that Python adds to each line about an exception within an ExceptionGroup."""
_RANK = re.compile(r"\[rank\d+\]: ?$")
_BEGINS = re.compile(r"Traceback \(most recent call last\):|terminate called after throwing an instance of ")
_CONTINUES = re.compile(r" {2}(File \"|what\(\):)")
_NOT_AN_ERROR = re.compile(r"\b(WARN(ING)?|DEBUG)\b|^\[?[WID]\d{4} |torch/distributed/elastic")
"""Pattern for the prefixes of warnings and other messages whose tracebacks did not end the program."""
_LOGGED_ERROR = re.compile(
    r"^(?=.{0,40}\d\d:\d\d:\d\d)[^\n]{0,100}?\b(ERROR|CRITICAL|FATAL)\b[^\n]{0,100}?[ :\]](?=[A-Za-z_][\w.]*"
    r"(Error|Exception)(: |$))"
)
"""Pattern for a logger's prefix, with a time and a level, in a line with the name and message of an
exception."""
_LOCAL_RANK = re.compile(r"^\[[a-z_]+(\d{1,4})\]")


def plain(tail: Lines, limit: int = MAX_CHARACTERS) -> Lines:
    """Return the program's own lines, without prefixes, control characters and the harness's lines.

    A line with more than twice `limit` characters is reduced to its beginning and its end. Text that a
    terminal would no longer show, such as an error overwritten by a progress bar, becomes a separate line.
    """
    return with_processes(tail, limit)[0]


def with_processes(tail: Lines, limit: int = MAX_CHARACTERS) -> tuple[Lines, dict[int, str]]:
    """Return the lines that `plain` returns, and a map from line numbers to prefixes that identify processes.

    The map contains only lines with such a prefix, for example "[default1]:".
    """
    labelled = [_labelled(number, text) for number, text in _shown(tail, limit)]
    prefixes = _prefixes([text for _, text, _ in labelled])
    lines, processes = [], {}
    for number, text, process in labelled:
        match = next(filter(None, (prefix.match(text) for prefix in prefixes)), None)
        prefix = match[0].strip() if match else ""
        own = text[match.end() :] if match else text
        lines.append((number, _GROUP.sub("", _LOGGED_ERROR.sub("", own))))
        if identity := process or (prefix if " " not in prefix else ""):
            processes[number] = identity
    return list(error_details.unboxed(lines)), processes


def local_rank(process: str) -> int | None:
    """Return the local rank in a prefix that torchrun adds, such as "[default1]", or None."""
    match = _LOCAL_RANK.match(process)
    return int(match[1]) if match else None


def _shown(tail: Lines, limit: int) -> Iterator[tuple[int, str]]:
    for number, text in tail:
        if not is_own(text):
            for row in terminal_text.rows(_TIME.sub("", text)):
                yield number, _shortened(row.text, limit)


def _labelled(number: int, text: str) -> tuple[int, str, str]:
    """Return a line without its known prefixes, and the prefix that identifies the process, or ""."""
    process = ""
    for pattern in (_PROCESS, _LABEL):
        if match := pattern.match(text):
            text = text[match.end() :]
            process = process or next(filter(None, match.groupdict().values()), "")
    return number, text, process


def _prefixes(texts: list[str]) -> list[re.Pattern[str]]:
    """Return patterns for the prefixes of unknown form in traceback lines, except those of warnings.

    Numbers in a prefix, such as the time, can differ from line to line.
    """
    patterns: dict[str, re.Pattern[str] | None] = {}
    for position, text in enumerate(texts):
        inside = _CONTINUES.search(text, 0, _MAX_PREFIX_CHARACTERS)
        head = _RANK.sub("", text[: inside.start()]) if inside else ""
        if not re.search(r"\w", head) or head[0].isspace() or _NOT_AN_ERROR.search(head):
            continue
        source = _pattern(head)
        if patterns.get(source) is None and (source in patterns or len(patterns) < _MAX_PREFIXES):
            prefix = re.compile(source)
            before = texts[max(0, position - _STACK_LINES) : position]
            is_prefix = any(_BEGINS.search(line) and prefix.match(line) for line in before)
            patterns[source] = prefix if is_prefix else None
    return [pattern for pattern in patterns.values() if pattern is not None]


def _pattern(head: str) -> str:
    text = head.rstrip()
    parts = re.split(r"(\d+)", text)
    own = "".join(r"\d+" if part.isdigit() else re.escape(part) for part in parts)
    return rf"{own}(?:{' ' * (len(head) - len(text))}|\s*$)"


def _shortened(text: str, limit: int) -> str:
    return text if len(text) <= 2 * limit else f"{text[:limit]} … {text[-limit:]}"
