"""`harness faults`: inject faults, or undo what was left."""

from __future__ import annotations

import json
import secrets
import sys
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rich.table import Table

from harness import process, provision
from harness import run as running
from harness.errors import UsageError
from harness.faults.fault import Fault, catalogue, load
from harness.faults.inject import Injector, journals
from harness.faults.matrix import Matrix, Progress
from harness.faults.rows import Row, expected, table
from harness.faults.undo import replay
from harness.launchers.job_file import JobFile
from harness.settings import Settings


def chosen(names: list[str]) -> list[Fault]:
    """By name, by what they strike, or by file; all when nothing is named. Raises UsageError."""
    known = catalogue()
    if not names:
        return list(known.values())
    found: dict[str, Fault] = {}
    for name in names:
        here = [fault for fault in known.values() if name in (fault.name, fault.strikes)]
        if not here and Path(name).is_file():
            here = [load(Path(name))]
        if not here:
            raise UsageError(f"there is no fault {name!r}", hint="`harness faults --list` names them")
        found |= {fault.name: fault for fault in here}
    return list(found.values())


def undo_left(settings: Settings, progress: Progress) -> int:
    """What killed runs left injected. The number of faults that could not be undone."""
    failed = 0
    for journal in sorted(journals(settings).glob("*.json")):
        progress(f"undoing {journal.stem}")
        problems = replay(journal)
        failed += bool(problems)
        for problem in problems:
            progress(problem)
    return failed


def inject(
    names: list[str], settings: Settings, parallel: int, job: Path, progress: Progress
) -> tuple[list[Row], Path, dict[str, str]]:
    """Every chosen fault on one cluster, which is made if need be and stays if it was there. Rows, their folder,
    and the versions of the stack."""
    faults = chosen(names)
    undo_left(settings, progress)
    out = settings.runs_dir / f"faults-{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(2)}"
    with process.signals_as_interrupt():
        ready = running.up(settings, progress)
        try:
            injector = Injector(ready, JobFile.load(job), settings, out.absolute())
            matrix = Matrix(injector, faults, parallel, progress).start()
            rows: list[Row] = []
            try:
                for fault in matrix.faults:
                    rows.append(matrix.row(fault.name))
                    with (out / "ledger.jsonl").open("a") as ledger:
                        ledger.write(rows[-1].model_dump_json() + "\n")
            finally:
                matrix.stop()
        finally:
            if ready.created and not settings.keep_cluster:
                provision.down(settings, progress)
    return rows, out, ready.versions


def show(rows: list[Row], console: Console) -> None:
    shown = Table(box=None, pad_edge=False)
    for column in ("", "fault", "got", "expected", "visible→verdict"):
        shown.add_column(column, overflow="fold")
    for row in rows:
        visible = "" if row.visible_seconds is None else f"{row.visible_seconds:.1f} s"
        shown.add_row(
            "✓" if row.right else "✗",
            row.fault,
            row.got,
            "" if row.right else f"{row.expected}: {row.wrong}",
            visible,
        )
    console.print(shown)
    console.print(f"{sum(row.right for row in rows)} of {len(rows)} rows right")


def command(
    settings: Settings,
    progress: Progress,
    names: list[str],
    *,
    only_list: bool,
    only_undo: bool,
    parallel: int,
    job: Path,
    table_file: Path | None,
    as_json: bool,
) -> int:
    """The whole command. Exit code 0 when every row is right."""
    if only_undo:
        return 2 if undo_left(settings, progress) else 0
    if only_list:
        for fault in chosen(names):
            print(f"{fault.name:32} {fault.strikes:12} {expected(fault):50} {fault.about}")
        return 0
    rows, out, versions = inject(names, settings, parallel, job, progress)
    if table_file is not None:
        table_file.write_text(table(rows, [f for f in catalogue().values() if f.cannot], versions))
    if as_json:
        print(json.dumps([row.model_dump() for row in rows], indent=2))
    else:
        show(rows, Console())
        print(f"ledger  {out / 'ledger.jsonl'}", file=sys.stderr)
    return 0 if all(row.right for row in rows) else 1
