"""Generate a Grafana dashboard for the controller's metrics.

`python -m harness.torchrun_controller.objects.dashboard` prints manifests/torchrun-monitoring/dashboard.json.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

RATE = "$__rate_interval"
"""The Grafana variable for the range in `rate()`. Grafana derives it from the scrape interval."""
NAMESPACE = "$namespace"
_OF_TEAM = f'namespace=~"{NAMESPACE}"'
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_WIDTH, _HEIGHT = 12, 8


@dataclass(frozen=True)
class Panel:
    """A dashboard panel with a single query."""

    title: str
    query: str
    legend: str
    unit: str = "short"
    description: str = ""


def _quantile(quantile: float, metric: str, by: str, labels: str = "") -> str:
    return f"histogram_quantile({quantile:g}, sum by (le, {by}) (rate({metric}_bucket{labels}[{RATE}])))"


PANELS = (
    Panel(
        "Jobs by phase",
        f"sum by (phase) (max by (namespace, phase) (torchrun_jobs{{{_OF_TEAM}}}))",
        "{{phase}}",
        description="Only the leader counts jobs.",
    ),
    Panel(
        "Wait for admission, 95th percentile",
        _quantile(0.95, "torchrun_queue_wait_seconds", "namespace, queue", f"{{{_OF_TEAM}}}"),
        "{{namespace}}/{{queue}}",
        "s",
        "From a job's creation, resumption, queueing or preemption to Kueue's admission.",
    ),
    Panel(
        "Admitted jobs per hour",
        f"sum(rate(torchrun_queue_wait_seconds_count{{{_OF_TEAM}}}[{RATE}])) * 3600",
        "",
    ),
    Panel(
        "Leaders",
        "sum(torchrun_leader)",
        "leaders",
        description="1, except for a few seconds while the leader changes.",
    ),
    Panel(
        "Reconciles per second",
        f"sum by (kind) (rate(torchrun_reconcile_seconds_count[{RATE}]))",
        "{{kind}}",
        "ops",
    ),
    Panel(
        "Duration of a reconcile, 99th percentile",
        _quantile(0.99, "torchrun_reconcile_seconds", "kind"),
        "{{kind}}",
        "s",
    ),
    Panel(
        "Failed reconciles", f"sum by (kind) (increase(torchrun_reconcile_errors_total[{RATE}]))", "{{kind}}"
    ),
    Panel(
        "Requests to the API server",
        f"sum by (verb, resource) (rate(torchrun_api_requests_total[{RATE}]))",
        "{{verb}} {{resource}}",
        "reqps",
    ),
    Panel(
        "Refused requests to the API server",
        f'sum by (verb, resource, code) (increase(torchrun_api_requests_total{{code=~"[45].."}}[{RATE}]))',
        "{{code}} {{verb}} {{resource}}",
        description="409 means that two writers were in conflict. The request is repeated.",
    ),
    Panel("Events that were not posted", f"sum(increase(torchrun_events_failed_total[{RATE}]))", "events"),
    Panel(
        "Memory",
        "process_resident_memory_bytes and on (job, instance) torchrun_leader",
        "{{instance}}",
        "bytes",
        "The manifests set a memory limit of 512 MiB.",
    ),
    Panel("Version", "count by (image, api) (torchrun_build_info)", "{{image}} {{api}}"),
)


def document() -> dict[str, Any]:
    """Return the dashboard as Grafana's JSON model."""
    return {
        "title": "torchrun controller",
        "uid": "torchrun-controller",
        "tags": ["torchrun"],
        "schemaVersion": 38,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {"list": _variables()},
        "panels": [_panel(index, panel) for index, panel in enumerate(PANELS)],
    }


def _variables() -> list[dict[str, Any]]:
    namespaces = "label_values(torchrun_jobs, namespace)"
    return [
        {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Data source"},
        {
            "name": NAMESPACE[1:],
            "type": "query",
            "label": "Namespace",
            "datasource": _SOURCE,
            "query": {"query": namespaces, "refId": "namespaces"},
            "definition": namespaces,
            "refresh": 2,
            "includeAll": True,
            "allValue": ".*",
            "multi": True,
        },
    ]


def _panel(index: int, panel: Panel) -> dict[str, Any]:
    row, column = divmod(index, 2)
    return {
        "id": index + 1,
        "type": "timeseries",
        "title": panel.title,
        "description": panel.description,
        "datasource": _SOURCE,
        "gridPos": {"x": column * _WIDTH, "y": row * _HEIGHT, "w": _WIDTH, "h": _HEIGHT},
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "targets": [
            {
                "refId": "A",
                "datasource": _SOURCE,
                "expr": panel.query,
                "legendFormat": panel.legend,
                "range": True,
            }
        ],
    }


def text() -> str:
    """Return the content of dashboard.json."""
    return json.dumps(document(), indent=2) + "\n"


if __name__ == "__main__":
    print(text(), end="")
