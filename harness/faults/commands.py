"""`harness faults`: inject faults, undo leftovers of killed runs, and report results."""

from __future__ import annotations

import json
import secrets
from pathlib import Path

from harness import run
from harness.context import RunContext
from harness.core.clock import CLOCK
from harness.core.errors import UsageError
from harness.core.user_files import MAX_RECORD_BYTES, read_text
from harness.evidence.io.reader import Bundle
from harness.faults import results_table
from harness.faults.catalogue_run import Matrix
from harness.faults.fault_file import Fault, catalogue, load
from harness.faults.inject import Injector, journals
from harness.faults.programs import ledger as program_ledger
from harness.faults.random import oracle_table
from harness.faults.random.generator import PREFIX, by_name, drawn
from harness.faults.recorded_bundles import record
from harness.faults.results import Row, expected
from harness.faults.shards import Shard, recorded_seconds
from harness.faults.undo import replay
from harness.launch.konduktor.job_file import JobFile
from harness.report.terminal.console import Console
from harness.settings import Settings

DRAWS_BETWEEN_CONTROLS = 4
"""Number of random faults that run alone, one after the other, before a control runs. After each fault, the
injector waits until the cluster works again."""


def chosen(names: list[str]) -> list[Fault]:
    """Return the faults with the given names, targets or files, or all faults if there are no names.

    The name of a random fault reproduces this fault. Raises UsageError for an unknown name.
    """
    faults_by_name = catalogue()
    if not names:
        return list(faults_by_name.values())
    selected: dict[str, Fault] = {}
    for name in names:
        matches = [fault for fault in faults_by_name.values() if name in (fault.name, fault.target)]
        if not matches and (draw := by_name(name)):
            matches = [draw]
        if not matches and Path(name).is_file():
            matches = [load(Path(name))]
        if not matches:
            raise UsageError(
                f"there is no fault named {name!r}", hint="list all faults with `harness faults --list`"
            )
        selected |= {fault.name: fault for fault in matches}
    return list(selected.values())


def faults(
    names: list[str], random: int, seed: int, skip: int, shard: str | None = None, generated: bool = False
) -> list[Fault]:
    """Return the faults with the given names, or `random` faults generated from a seed.

    The first `skip` random faults are skipped. With `generated`, the ranks run generated programs while
    random faults are injected. With `shard`, such as 2/4, only that shard of the named faults is returned.
    Raises UsageError if a name or the shard is not valid.
    """
    if not random:
        selected = chosen(names)
        return Shard.parse(shard).of(selected, recorded_seconds()) if shard else selected
    return [drawn(seed, number, generated) for number in range(skip, skip + random)]


def show(faults: list[Fault]) -> None:
    """Print a line for each fault, with its name, its expected result and its description."""
    for fault in faults:
        print(f"{fault.name:36} {expected(fault):52} {fault.about}")


def undo_leftovers(context: RunContext) -> bool:
    """Undo faults that killed runs left in place. Return False if a fault could not be undone."""
    problems = []
    for journal in sorted(journals(context.settings).glob("*.json")):
        context.progress(f"undoing {journal.stem}")
        problems += replay(journal)
    for problem in problems:
        context.progress(problem)
    return not problems


def folder(settings: Settings) -> Path:
    """Return the path of a new folder for the ledger and the bundles of one `harness faults` run."""
    name = f"faults-{CLOCK.stamp()}-{secrets.token_hex(2)}"
    return settings.runs_dir.absolute() / name


def inject(
    faults: list[Fault], parallel: int, job: Path, context: RunContext
) -> tuple[list[Row], dict[str, str]]:
    """Inject all faults on one cluster. Create the cluster if it does not exist, and keep an existing one.

    Returns each fault's result and the versions of the stack. An interruption ends the running launches and
    undoes their faults.
    """
    settings = context.settings
    undo_leftovers(context)
    job_file = JobFile.load(job)
    with run.cluster(context) as ready:
        injector = Injector(ready, job_file, settings, folder(settings))
        drawn_alone = all(by_name(fault.name) for fault in faults)
        matrix = Matrix(
            injector,
            faults,
            parallel,
            context.progress,
            alone_between_controls=DRAWS_BETWEEN_CONTROLS if drawn_alone else 1,
        ).start()
        try:
            return [matrix.row(fault.name) for fault in matrix.faults], ready.versions
        finally:
            matrix.stop()


def recorded(ledgers: list[Path]) -> tuple[list[Row], dict[str, str]]:
    """Return the results from the ledgers of earlier runs, and the versions of the stack.

    Faults from the catalogue come first, in catalogue order, followed by random faults. If a fault is in
    several ledgers, the result from the last of these ledgers is used. Raises UsageError if a file is not a
    ledger.
    """
    rows: dict[str, Row] = {}
    for ledger in ledgers:
        try:
            for line in read_text(ledger, "ledger", max_bytes=MAX_RECORD_BYTES).splitlines():
                row = Row.model_validate_json(line)
                rows[row.fault] = row
        except ValueError as error:
            raise UsageError(f"{ledger} is not a valid ledger of faults: {error}") from None
    versions: dict[str, str] = {}
    for row in rows.values():
        manifest = Bundle.open(Path(row.bundle)).manifest if row.bundle else None
        versions = manifest.versions if manifest and manifest.versions else versions
    random = sorted(name for name in rows if name.startswith(PREFIX))
    return [rows[name] for name in (*catalogue(), *random) if name in rows], versions


def report(
    rows: list[Row],
    versions: dict[str, str],
    settings: Settings,
    table_file: Path | None,
    records: Path | None,
    programs: Path | None,
    as_json: bool,
) -> int:
    """Print the results, and write the table and small copies of the bundles if requested.

    Returns the exit code: 0 if all results are as expected, otherwise 1. If all faults are random,
    oracle_table.good determines the exit code instead. `programs` is the ledger for random faults whose ranks
    ran generated programs.
    """
    random = bool(rows) and all(row.oracle for row in rows)
    if programs is not None:
        ledger = program_ledger.Ledger.read(programs)
        ledger.add_draws(rows)
        ledger.write(programs)
    if table_file is not None:
        faults = list(catalogue().values())
        text = oracle_table.markdown(rows) if random else results_table.markdown(rows, faults, versions)
        table_file.write_text(text)
    if records is not None:
        places = {
            str(settings.runs_dir.absolute()): "/runs",
            str(settings.state_dir.absolute()): "/state",
            str(settings.cache_dir.absolute()): "/cache",
            str(Path.cwd()): "/work",
            str(Path.home()): "/home",
        }
        for row in rows:
            if row.right and row.bundle:
                manifest = Bundle.open(Path(row.bundle)).manifest
                program = manifest.command[0] if manifest and manifest.command else ""
                own = {program.partition("/.venv/")[0]: "/work"} if "/.venv/" in program else {}
                record(Path(row.bundle), records / f"{row.fault}.tar.xz", places | own)
    if as_json:
        print(json.dumps([row.model_dump() for row in rows], indent=2))
    else:
        summary = oracle_table.summary(rows) if random else results_table.summary(rows)
        Console().print(results_table.terminal(rows, summary))
    all_right = oracle_table.good(rows) if random else all(row.right for row in rows)
    return 0 if all_right else 1
