"""`harness bisect`: validate the input, search for the first bad version, and write the result."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import asdict, replace
from pathlib import Path

from harness.context import RunContext
from harness.core.errors import HarnessError, UsageError
from harness.core.input_limits import shown
from harness.core.locks import locked
from harness.core.replacements import python_package
from harness.judge.catalogue import CAUSES
from harness.report.ci import github
from harness.versions.bisect_report import markdown
from harness.versions.bisect_result import Result, result_of
from harness.versions.bisect_versions import (
    Version,
    Versions,
    ends_of_index,
    of_repository,
    with_versions_between,
)
from harness.versions.bisection import ANY, Bisection
from harness.versions.cell import Cell, Launcher


def bisect(
    name: str,
    good: str | None,
    bad: str | None,
    repository: Path | None,
    job: Path,
    cause: str | None,
    max_error: float,
    context: RunContext,
) -> Result:
    """Search for the first bad version, and write result.json and report.md into the search's folder.

    In GitHub Actions, the report is also appended to the workflow's job summary. Raises UsageError for bad
    input, before anything is created, and HarnessError if the search is interrupted.
    """
    if cause not in (None, ANY) and cause not in CAUSES and not str(cause).startswith("user."):
        raise UsageError(
            f"--cause: expected a cause id or {ANY}, found {shown(cause)}",
            hint="see the cause ids in docs/causes.md",
        )
    probe = Launcher(job, context.settings, Path())
    probe.check([python_package(name)])
    if repository is not None:
        versions = of_repository(name, repository, good, bad or "HEAD")
    else:
        versions = ends_of_index(name, good, bad or "latest", context)
    folder = context.settings.runs_dir.absolute() / _folder_name(versions, probe.key(Cell(())), cause)
    launcher = Launcher(job, context.settings, folder)
    folder.mkdir(parents=True, exist_ok=True)

    def refuse() -> None:
        raise UsageError(
            f"another process is searching in {folder}", hint="wait for the other search to end, or stop it"
        )

    with locked(folder / "lock", refuse):
        if repository is None:
            versions = _list_versions(versions, folder / "versions.json", context)
        context.progress(f"{len(versions.versions)} versions of {versions.package}; ledger in {folder}")
        bisection = Bisection(versions, launcher, folder, cause, context)
        try:
            end = bisection.run(max_error)
        except KeyboardInterrupt:
            count = len(bisection.ledger.records)
            raise HarnessError(
                f"the search was interrupted after {count} results, which are in {folder}",
                hint="run the same command again to continue the search",
            ) from None
        result = result_of(bisection, end, job, folder, context)
        (folder / "result.json").write_text(result.model_dump_json(indent=2))
        report = markdown(result, context.settings)
        (folder / "report.md").write_text(report)
        if (summary := github.summary_file()) is not None:
            github.append(summary, report)
    return result


def _list_versions(end_versions: Versions, file: Path, context: RunContext) -> Versions:
    """Return all versions between the two ends, from the file that an earlier process wrote or from the
    index."""
    try:
        versions_found = tuple(Version(**each) for each in json.loads(file.read_text()))
        return replace(end_versions, versions=versions_found)
    except (OSError, ValueError, TypeError):
        versions = with_versions_between(end_versions, context)
        file.write_text(json.dumps([asdict(each) for each in versions.versions]))
        return versions


def _folder_name(versions: Versions, facts: str, cause: str | None) -> str:
    """Return the name of the search's folder, which is the same if the same search is started again.

    `facts` depends on the job and the settings.
    """
    end_ids = [versions.versions[0].id if versions.good_known else None, versions.versions[-1].id]
    question = json.dumps([facts, versions.package, end_ids, str(versions.repository), cause])
    digest = hashlib.sha256(question.encode()).hexdigest()[:8]
    return f"bisect-{re.sub(r'[^a-z0-9.-]', '-', versions.package)}-{digest}"
