"""Find commands that a run script or a supervisor retried after failures until they succeeded.

Such a script reacts to the failure and therefore does not hide it. A loop over seeds or folds also runs the
same command several times. This is not a retry, because the loop continues in the same way after a failure as
after a success.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise
from pathlib import PurePath

from harness.evidence.worlds import PodProcesses, ProcessRecord
from harness.judge.case import Case
from harness.judge.ranks import exit_masking

_TRIES_AGAIN = re.compile(r"\b(until|while|break)\b|\|\|")
_RESUMES = re.compile(r"^-+\S*(resum|restor|restart|continu|checkpoint|ckpt)", re.IGNORECASE)
_MEETING = re.compile(r"--?(rdzv[-_]id|master[-_]port)(?P<value>=.*)?$", re.DOTALL)
MAX_ADDED = 2
"""Maximum number of arguments that a retry can add, for example `--resume PATH`."""


@dataclass(frozen=True)
class _Run:
    """One execution of torchrun, or of a program started without torchrun."""

    process: ProcessRecord
    failed: bool


def retried(case: Case, index: int) -> list[tuple[ProcessRecord, ProcessRecord]]:
    """Return pairs of a failed process in a node's pod and the process that retried its command."""
    of_pod = case.processes.get(index)
    if of_pod is None:
        return []
    chains: list[list[_Run]] = []
    for run in _runs(of_pod):
        chain = next((chain for chain in chains if _is_retry(chain[-1].process, run.process)), None)
        if chain is None:
            chains.append([run])
        else:
            chain.append(run)
    text = exit_masking.script(case, index)
    return [
        (before.process, after.process)
        for chain in chains
        if all(run.failed for run in chain[:-1]) and _may_try_again(text, chain[0].process)
        for before, after in pairwise(chain)
    ]


def _runs(of_pod: PodProcesses) -> list[_Run]:
    """Return the commands executed in a pod, oldest first."""
    torchruns = [*of_pod.agents, *of_pod.agents_without_ranks]
    agents = [_Run(agent, agent_failed(agent)) for agent in torchruns]
    alone = [_Run(process, _failed(process)) for process in of_pod.commands]
    return sorted([*agents, *alone], key=lambda run: run.process.began)


def agent_failed(agent: ProcessRecord) -> bool:
    """Return whether torchrun failed.

    If torchrun only printed its help, it has an exit code but no result.
    """
    if agent.result is None and not agent.rounds and agent.end is not None:
        return agent.end.code != 0
    return agent.result is None or agent.result.state != "SUCCEEDED"


def _failed(process: ProcessRecord) -> bool:
    return process.end is None or bool(process.end.code)


def _is_retry(before: ProcessRecord, after: ProcessRecord) -> bool:
    """Return whether `after` repeats or resumes the command in `before`, which had ended by then."""
    if not before.argv or before.env("RANK") != after.env("RANK") or before.last_ms > after.began:
        return False
    first, second = _without_meeting(before.argv), _without_meeting(after.argv)
    return first == second or _resumes(first, second)


def _without_meeting(argv: list[str]) -> list[str]:
    """Return a command line without the rendezvous id and port, which differ between attempts."""
    kept_words: list[str] = []
    words = iter(argv)
    for word in words:
        option = _MEETING.match(word)
        if option is None:
            kept_words.append(word)
        elif not option["value"]:
            next(words, None)
    return kept_words


def _resumes(before: list[str], after: list[str]) -> bool:
    """Return whether `after` is the same command line as `before` with an added resume option."""
    added_words, remaining = [], list(before)
    for word in after:
        if remaining and word == remaining[0]:
            remaining.pop(0)
        else:
            added_words.append(word)
    return not remaining and 0 < len(added_words) <= MAX_ADDED and _RESUMES.match(added_words[0]) is not None


def _may_try_again(text: str, process: ProcessRecord) -> bool:
    """Return whether a script, or a program that it starts, might retry a failed command."""
    return _TRIES_AGAIN.search(text) is not None or not named(text, process)


def named(text: str, process: ProcessRecord) -> bool:
    """Return whether a script starts the process's program directly rather than through another script."""
    programs = [PurePath(word).name for word in process.argv if not word.startswith("-")]
    programs = [name for name in programs if not re.fullmatch(r"python[\d.]*|torchrun", name)]
    launcher_lines = [line for line in exit_masking.lines_of(text) if exit_masking.LAUNCHER.search(line)]
    return not programs or any(programs[0] in line for line in launcher_lines)
