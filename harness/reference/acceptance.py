"""Document the acceptance tests: the limits and their sources, the causes, and the report schema."""

from __future__ import annotations

import json

from harness.evidence.schema.acceptance import AcceptanceReport
from harness.judge.acceptance.node_comparison import ADVICE as OF_FLEET
from harness.reference.note import WRITTEN
from harness.report.markdown import code, table
from harness.workers.acceptance.causes import ADVICE
from harness.workers.acceptance.limits import MARGIN, Limits, Row

HEAD = f"""# Acceptance tests: limits and causes

{WRITTEN}

[Acceptance](../acceptance.md) explains how to use these tests. [acceptance.json](acceptance.json) is the JSON
schema of the pods' reports.

## Limits

If no row matches a measurement, the report shows the measurement with the verdict UNKNOWN. A measurement that
passes but is within {MARGIN:.0%} of its limit gets the verdict WARN. A row that does not specify ranks, nodes
or a payload applies to any number of ranks, any number of nodes, or any payload.
"""


def markdown() -> str:
    """Return the text of docs/reference/acceptance.md."""
    rows = [_cells(row) for row in Limits.load().rows.values()]
    limits = table(["check", "GPU", "where", "passes", "made from", "source"], rows)
    causes = table(
        ["cause", "what to do"], [[code(cause), text] for cause, text in sorted((ADVICE | OF_FLEET).items())]
    )
    return "\n".join([HEAD, *limits, "## Causes", "", *causes]).rstrip() + "\n"


def schema() -> str:
    """Return the text of docs/reference/acceptance.json."""
    return json.dumps(AcceptanceReport.model_json_schema(), indent=1) + "\n"


def _cells(row: Row) -> list[str]:
    conditions = [
        f"{row.ranks} ranks" if row.ranks is not None else "",
        f"{row.nodes} nodes" if row.nodes is not None else "",
        f"from {row.payload / 2**30:g} GiB" if row.payload else "",
        row.algorithm or "",
    ]
    sign = {">=": "≥", "<=": "≤", "==": "="}[row.relation]
    kind = row.kind if row.limit == row.value else f"{row.kind} {row.value:g}"
    return [
        code(row.check),
        code(row.model),
        ", ".join(filter(None, conditions)),
        f"{sign} {row.limit:.4g} {row.unit}",
        kind,
        row.source,
    ]
