"""Convert cause and check ids that were renamed in schema version 2, so that older bundles stay readable."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.core.causes import CauseId
from harness.core.checks import CheckId

CAUSES: dict[str, CauseId] = {
    "run.cut_off": "run.harness_killed",
    "rank.left_early": "rank.exited_early",
    "rank.exit_swallowed": "rank.exit_code_masked",
    "rendezvous.process_missing": "rendezvous.agent_missing",
    "controllers.jobset_idle": "controllers.jobset_not_reconciling",
    "controllers.kueue_idle": "controllers.kueue_not_reconciling",
    "launch.no_object": "launch.jobset_not_found",
}
CHECKS: dict[str, CheckId] = {
    "truth": "ground-truth-complete",
    "points-kept": "no-lost-points",
    "foreign": "no-unexpected-points",
    "run-fresh": "run-not-stale",
    "spread": "node-spread",
}


def upgraded(document: Any) -> Any:
    """Convert a version 1 manifest or verdict to the ids in version 2.

    Other values are returned unchanged.
    """
    if not isinstance(document, dict) or document.get("schema_version") != 1:
        return document
    stages = [_renamed(stage, "cause", CAUSES) for stage in _list(document, "stages")]
    checks = [
        _renamed(_renamed(check, "name", CHECKS), "cause", CAUSES) for check in _list(document, "checks")
    ]
    lists = {name: value for name, value in (("stages", stages), ("checks", checks)) if name in document}
    return {**_renamed(document, "cause", CAUSES), **lists}


def _list(document: dict[str, Any], name: str) -> list[Any]:
    value = document.get(name)
    return value if isinstance(value, list) else []


def _renamed(record: Any, field: str, names: Mapping[str, str]) -> Any:
    if not isinstance(record, dict) or not isinstance(record.get(field), str):
        return record
    return {**record, field: names.get(record[field], record[field])}
