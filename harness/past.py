"""`harness runs` and `harness diff`: the commands about bundles of the past. They touch no cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from harness.errors import UsageError
from harness.evidence import folder
from harness.evidence.retention import Keep, prune
from harness.options import Json, RunsDir, dump
from harness.report import runs as listing
from harness.report.terminal import wide
from harness.settings import load


def runs(
    runs_dir: RunsDir = None,
    last: Annotated[int | None, typer.Option(min=1, help="only the newest so many")] = None,
    to_keep: Annotated[
        str | None,
        typer.Option(
            "--prune",
            metavar="failed|last:N",
            help="remove bundles of launches that passed: with failed all of them, with last:N all but the "
            "newest N",
        ),
    ] = None,
    as_json: Json = False,
) -> int:
    """Past bundles, the newest last: also those that are damaged, cut off or still written.

    --prune removes, and says what and how many bytes. What did not pass always
    stays, and so does the newest bundle (runs/latest).
    """
    runs_dir = load(runs_dir=runs_dir).runs_dir
    if to_keep is not None:
        if last is not None:
            raise UsageError("--prune and --last do not go together", hint=f"--prune last:{last}")
        return _prune(runs_dir, to_keep, as_json)
    found = folder.past(runs_dir)
    rows = [listing.row(one) for one in found[-(last or len(found)) :]]
    if as_json:
        dump([each.model_dump() for each in rows])
    elif rows:
        listing.show(rows, wide())
    return 0


def _prune(runs_dir: Path, to_keep: str, as_json: bool) -> int:
    keep = Keep.parse(to_keep)
    if keep.last is None:
        raise UsageError("--prune all would keep all", hint="--prune failed, or --prune last:N")
    removed = prune(runs_dir, keep)
    total = sum(each.bytes for each in removed)
    if as_json:
        gone = [{"bundle": str(each.bundle), "bytes": each.bytes} for each in removed]
        dump({"keep": to_keep, "removed": gone, "bytes": total})
    else:
        for each in removed:
            print(f"removed {each.bundle}  {listing.amount(each.bytes)}")
        print(f"{len(removed)} bundles removed, {total} bytes ({listing.amount(total)})")
    return 0
