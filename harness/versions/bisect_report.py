"""Show the result of `harness bisect` on a terminal, and as a report for another project's issue tracker.

The report contains no secrets and no paths on this machine.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.text import Text

from harness.core import proxies
from harness.evidence.io.redaction import Redactor, secret_variables
from harness.report.amounts import ranges
from harness.report.diff import text as diff_text
from harness.report.diff.compare import Change, Diff
from harness.report.markdown import code, table, text
from harness.settings import Settings
from harness.versions.bisect_result import Changed, Changes, Result, Side

_MAX_FILES: Final = 40
_MAX_SUSPECTS: Final = 20
_ABSOLUTE: Final = re.compile(r"(?P<before>(?:[^=/]*=)?(?:git\+file://)?)/.*?(?P<name>[^/]*)")
"""Matches an absolute path that is a command's entire argument, or that is in the SPEC of --replace."""
_STACK: Final = ("harness", "kubernetes", "jobset", "kueue", "konduktor", "pluto")


def headline(result: Result) -> str:
    """Return the result of a search in one sentence."""
    package, bad, good = result.package, result.bad, result.good
    if result.ending in ("found", "unsure") and bad is not None and good is not None:
        prefix = "" if result.ending == "found" else "Probably, but not certainly: "
        if len(result.suspects) > 1:
            first = "ends" if result.fix else "begins"
            return (
                f"{prefix}{bad.verdict} {first} in one of {len(result.suspects)} versions of {package} after "
                f"{(bad if result.fix else good).label}, up to {(good if result.fix else bad).label}: the "
                "versions in between could not be judged"
            )
        if result.fix:
            return (
                f"{prefix}{package} {good.label} is the first version without {bad.verdict}; "
                f"{bad.label} still has this failure"
            )
        return f"{prefix}{package} {bad.label} is the first bad version: {bad.verdict}"
    if result.ending == "newest_good":
        label = good.label if good is not None else "the bad end"
        return (
            f"nothing to search for: {package} {label} was expected to be bad, but does not show the failure"
        )
    if result.ending == "oldest_bad":
        label = bad.label if bad is not None else "the good end"
        return f"no good version: {package} {label} is bad, and no version before it is known to be good"
    return f"too few versions of {package} could be judged"


def advice(result: Result) -> str:
    """Return advice on what to do if the search did not find a single version, otherwise ""."""
    if result.ending == "newest_good":
        return "choose another version with --bad; if the failure is rare, run the command again"
    if result.ending == "oldest_bad":
        return "choose an older version with --good, or omit --good"
    if result.ending == "not_judged":
        return "read why the other versions were skipped"
    if result.ending == "unsure":
        return (
            "some launches contradict each other; --max-error sets the maximum probability of a wrong answer"
        )
    return ""


def show(result: Result, console: Console) -> None:
    """Print the result of a search to the console."""
    mark, style = ("✓", "bold green") if result.certain else ("?", "bold yellow")
    console.print(Text(f"{mark} {headline(result)}", style=style))
    for side in (result.good, result.bad):
        if side is not None:
            ranks = f" rank {ranges(side.ranks)}" if side.ranks else ""
            console.print(Text(f"  {side.label}  {_dated(side)}{side.verdict}{ranks} ({_times(side)})"))
            if side.explanation and not side.verdict.startswith("PASS"):
                console.print(Text(f"    {side.explanation}"), soft_wrap=True)
    console.print(Text(f"  {_search_text(result)}"))
    for label, reason in result.skipped.items():
        console.print(Text(f"  skipped {label}: {reason}"), soft_wrap=True)
    if help_text := advice(result):
        console.print(Text(f"  → {help_text}"))
    if result.changes is not None:
        console.print()
        console.print(Text("changes in the package", style="bold"))
        for line in _changes_lines(result.changes):
            console.print(Text(f"  {line}"), soft_wrap=True)
    if result.diff is not None:
        console.print()
        diff_text.render(result.diff, console)
    console.print()
    if result.bad is not None:
        console.print(Text(f"again   {result.again}"), soft_wrap=True)
    console.print(Text(f"report  {Path(result.folder, 'report.md')}"), soft_wrap=True)


def markdown(result: Result, settings: Settings) -> str:
    """Return the report as Markdown. Secrets and paths on this machine are replaced."""
    lines = [f"### {text(headline(result))}", ""]
    rows = [
        [role, code(side.label), side.date, code(side.verdict), text(side.explanation), _times(side)]
        for role, side in (("good", result.good), ("bad", result.bad))
        if side is not None
    ]
    lines += table(["", "version", "date", "verdict", "explanation", "seen in"], rows)
    lines += [text(_search_text(result)), ""]
    if len(result.suspects) > 1:
        lines += ["Candidates:", "", *(f"- {code(each)}" for each in result.suspects[:_MAX_SUSPECTS])]
        if len(result.suspects) > _MAX_SUSPECTS:
            lines += [f"- and {len(result.suspects) - _MAX_SUSPECTS} more"]
        lines += [""]
    lines += [*_repeat_lines(result), *_changes(result.changes), *_differences(result.diff)]
    if result.skipped:
        rows = [[code(label), text(reason)] for label, reason in result.skipped.items()]
        lines += ["**Versions without a result**", "", *table(["version", "reason"], rows)]
    if (side := result.bad or result.good) is not None:
        stack = [f"{name} {side.versions[name]}" for name in _STACK if name in side.versions]
        lines += [f"Stack: {text(', '.join(stack))}" if stack else ""]
    folders = {Path(result.folder): "BISECT"}
    if result.repository:
        folders[Path(result.repository)] = "REPOSITORY"
    return public("\n".join(lines).rstrip() + "\n", settings, folders)


def public(document: str, settings: Settings, folders: Mapping[Path, str]) -> str:
    """Return the text with secrets removed, and with folders on this machine replaced by names.

    `folders` maps additional folders to the names that replace them.
    """
    secrets = [*secret_variables(os.environ).values(), *proxies.secrets()]
    if settings.pluto_api_key is not None:
        secrets.append(settings.pluto_api_key.get_secret_value())
    document = Redactor(secrets).text(document)
    names = {
        **folders,
        settings.runs_dir.absolute(): "RUNS",
        settings.cache_dir.absolute(): "CACHE",
        settings.state_dir.absolute(): "STATE",
        Path(tempfile.gettempdir()): "TMP",
        Path(sys.prefix): "PYTHON",
        Path.cwd(): ".",
        Path.home(): "~",
    }
    for path, name in sorted(names.items(), key=lambda pair: -len(str(pair[0]))):
        if len(path.parts) > 1:
            document = re.sub(rf"(?<![\w.~]){re.escape(str(path))}(?![\w-])", name, document)
    return document


def _search_text(result: Result) -> str:
    error = "less than 0.01 %" if result.error < 1e-4 else f"{result.error:.2%}"
    parts = [f"{result.launches} launches among {result.candidates} versions"]
    if result.skipped:
        parts.append(f"{len(result.skipped)} skipped")
    if result.ending in ("found", "unsure"):
        parts.append(f"probability of a wrong answer: {error}")
    return ", ".join(parts)


def _repeat_lines(result: Result) -> list[str]:
    if result.bad is None:
        return []
    words = [_public_word(word) for word in shlex.split(result.again)]
    command = shlex.join(words)
    return ["**To see it again**", "", "```bash", command, "```", ""]


def _public_word(word: str) -> str:
    """Return a command's argument with the folder of an absolute path replaced by PATH/TO."""
    match = _ABSOLUTE.fullmatch(word)
    if match is None:
        return word
    return f"{match['before']}{'/' if match['before'].endswith('//') else ''}PATH/TO/{match['name']}"


def _changes(changes: Changes | None) -> list[str]:
    if changes is None:
        return []
    head = ["file", "before", "after"] if changes.unit == "bytes" else ["file", "deleted", "added"]
    rows = [[code(each.name), *_sizes(each, changes.unit)] for each in changes.files[:_MAX_FILES]]
    lines = [f"**What changed in the package** ({changes.unit})", "", *table(head, rows)]
    lines += [f"- {text(line)}" for line in _other_lines(changes)]
    return [*lines, ""]


def _differences(diff: Diff | None) -> list[str]:
    if diff is None:
        return []

    def cells(changes: Sequence[Change]) -> Iterator[list[str]]:
        for each in changes:
            yield [text(each.what), *("–" if side is None else text(side) for side in (each.a, each.b))]

    rows = [*cells(diff.verdict), *cells(diff.checks), *cells(diff.versions)]
    lines = ["**Differences between the launches** (`harness diff`)", "", *table(["", "good", "bad"], rows)]
    if diff.points:
        lines += [f"The points of {len(diff.points)} pairs of rank and metric differ.", ""]
    return lines


def _changes_lines(changes: Changes) -> Iterator[str]:
    for each in changes.files[:_MAX_FILES]:
        before, after = _sizes(each, changes.unit)
        yield (
            f"{each.name}  {before} → {after} {changes.unit}"
            if changes.unit == "bytes"
            else (f"{each.name}  -{before} +{after} lines")
        )
    yield from _other_lines(changes)


def _other_lines(changes: Changes) -> Iterator[str]:
    if len(changes.files) > _MAX_FILES:
        yield f"and {len(changes.files) - _MAX_FILES} more files"
    yield from (f"requirement added: {each}" for each in changes.requirements_added)
    yield from (f"requirement removed: {each}" for each in changes.requirements_removed)
    if changes.problem:
        yield f"could not be compared: {changes.problem}"
    if not (changes.files or changes.requirements_added or changes.requirements_removed or changes.problem):
        yield "no file differs"


def _sizes(each: Changed, unit: str) -> list[str]:
    if unit == "lines":
        return ["binary" if size == -1 else str(size) for size in (each.before, each.after)]
    return ["–" if size is None else f"{size:,}" for size in (each.before, each.after)]


def _dated(side: Side) -> str:
    return f"{side.date}  " if side.date else ""


def _times(side: Side) -> str:
    if side.launches < side.launches_in_all:
        return f"{side.launches} of {side.launches_in_all} launches"
    return "1 launch" if side.launches == 1 else f"{side.launches} launches"
