"""Extract the facts compared by `harness diff`, which are the same for two equivalent launches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from harness.core.clock import seconds
from harness.evidence.io.reader import Bundle
from harness.evidence.kubernetes.objects import mapping
from harness.evidence.schema.bundle import Manifest, Verdict
from harness.evidence.schema.ground_truth import TruthBlock, TruthCode, TruthStart
from harness.judge.users import judge
from harness.report.html.curves import Metric, metrics

WHOLE = "whole run"


@dataclass(frozen=True)
class Series:
    """The rows that one rank logged for one metric, and which of them are in the run."""

    values: Mapping[int, float] = field(default_factory=dict)
    """Maps the step of every known row to its value."""
    digests: dict[tuple[int, int], str] = field(default_factory=dict)
    """Maps each block of rows, as (first step, last step), to the SHA-256 of the rows. Contains only blocks
    for which the rows themselves are not known."""
    logged: int = 0
    missing: tuple[int, ...] = ()
    """The steps of rows missing from the run."""
    missing_in_blocks: int = 0

    @property
    def recorded(self) -> int:
        return self.logged - len(self.missing) - self.missing_in_blocks


@dataclass(frozen=True)
class Facts:
    """The facts extracted from a bundle.

    `checks` maps names to results such as "FAIL rank.killed". `causes` maps causes to the checks that report
    them.
    """

    bundle: str
    verdict: Verdict
    checks: dict[str, str] = field(default_factory=dict)
    causes: dict[str, str] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    job: dict[str, str] = field(default_factory=dict)
    stages: dict[str, float] = field(default_factory=dict)
    """Maps the name of each stage to its duration in seconds, in order, starting with the whole run."""
    series: dict[tuple[int, str], Series] = field(default_factory=dict)
    """Maps (rank, metric) to the logged rows."""
    mark: float | None = None
    """The number that the harness's own worker derives from the launch's nonce and logs. It is different for
    every launch, so this difference is ignored."""
    events: dict[tuple[str, str, str], int] = field(default_factory=dict)
    """Maps (type, reason, object kind) to the number of events."""


def facts(bundle: Bundle, name: str) -> Facts:
    """Extract a bundle's facts, even if it is damaged.

    The bundle is judged again, so that both bundles in a comparison are judged by the current judge.
    """
    verdict = judge(bundle)
    manifest = bundle.manifest or Manifest(nonce="", started_at="")
    checks: dict[str, list[str]] = {}
    causes: dict[str, list[str]] = {}
    for check in verdict.checks:
        checks.setdefault(check.name, []).append(" ".join(filter(None, [check.result, check.cause])))
        if check.cause:
            causes.setdefault(check.cause, []).append(check.name)
    return Facts(
        bundle=name,
        verdict=verdict,
        checks={check: ", ".join(results) for check, results in checks.items()},
        causes={cause: ", ".join(check_names) for cause, check_names in causes.items()},
        versions=manifest.versions,
        job={**_job(manifest), **_attempts(bundle, manifest), **_code(bundle, manifest)},
        stages=_stages(manifest),
        series=_series(bundle, manifest),
        mark=_mark(manifest.nonce),
        events=dict(_events(bundle)),
    )


def _job(manifest: Manifest) -> dict[str, str]:
    fields: dict[str, object] = {"name": manifest.job}
    if (expected := manifest.expected) is not None:
        fields |= {
            "nodes": expected.num_nodes,
            "ranks": expected.ranks,
            "nodes used": expected.min_nodes_used,
        }
        fields |= {"run id": expected.run_id, "project": expected.project, "queue": expected.queue}
    if manifest.launch is not None:
        fields |= {"launcher": manifest.launch.launcher, "kind": manifest.launch.kind}
    fields |= {f"cluster {name}": manifest.cluster.get(name) for name in ("name", "cpu_request")}
    return {name: str(value) for name, value in fields.items() if value is not None}


def _attempts(bundle: Bundle, manifest: Manifest) -> dict[str, str]:
    """Return each rank's number of attempts, or {} if no rank had more than one."""
    ranks = range(manifest.expected.ranks if manifest.expected else 0)
    attempt_counts = {
        rank: sum(isinstance(line, TruthStart) for _, line in bundle.truth_parts(rank)) or 1 for rank in ranks
    }
    text = ", ".join(f"rank {rank}: {count}" for rank, count in attempt_counts.items())
    return {"attempts": text} if any(count > 1 for count in attempt_counts.values()) else {}


def _code(bundle: Bundle, manifest: Manifest) -> dict[str, str]:
    """Return the digest of each file sent to the ranks, and the versions reported by rank 0."""
    code = manifest.code
    if code is None:
        return {}
    lines = (line for _, line in bundle.truth_parts(0) if isinstance(line, TruthCode))
    versions = {name: value for line in lines for kind, name, value in line.facts if kind == "stack"}
    stack = {
        name: versions[name] for name in ("python", "torch", "pluto", "pluto_files") if versions.get(name)
    }
    return {name: value[:12] for name, value in {**code.files, **stack}.items()}


def _stages(manifest: Manifest) -> dict[str, float]:
    durations: dict[str, float] = {}
    start, end = seconds(manifest.started_at), seconds(manifest.ended_at)
    if start is not None and end is not None:
        durations[WHOLE] = end - start
    for stage in manifest.stages:
        durations[stage.name] = durations.get(stage.name, 0) + stage.seconds
    return {name: round(value, 3) for name, value in durations.items()}


def _series(bundle: Bundle, manifest: Manifest) -> dict[tuple[int, str], Series]:
    if manifest.expected is None:
        return {}
    by_name = metrics(bundle, manifest.expected.run_id)
    by_cell = {
        (rank, name): Series(
            values=metric.truth[rank], logged=cell.logged, missing=tuple(sorted(set(cell.missing)))
        )
        for name, metric in by_name.items()
        for rank, cell in metric.cells.items()
    }
    for rank in range(manifest.expected.ranks):
        for _, line in bundle.truth_parts(rank):
            if isinstance(line, TruthBlock):
                key = rank, line.metric
                by_cell[key] = _with_block(by_cell.get(key, Series()), line, by_name.get(line.metric))
    return dict(sorted(by_cell.items()))


def _with_block(series: Series, block: TruthBlock, metric: Metric | None) -> Series:
    recorded = metric.recorded if metric else ()
    in_block = sum(block.first <= step <= block.last and step not in series.values for step in recorded)
    return Series(
        values=series.values,
        digests={**series.digests, (block.first, block.last): block.sha256},
        logged=series.logged + block.count,
        missing=series.missing,
        missing_in_blocks=series.missing_in_blocks + max(0, block.count - in_block),
    )


def _mark(nonce: str) -> float | None:
    try:
        return float(int(nonce, 16))
    except ValueError:
        return None


def _events(bundle: Bundle) -> Counter[tuple[str, str, str]]:
    return Counter(
        (
            str(state.object.get("type", "")),
            str(state.object.get("reason", "")),
            str(mapping(state.object, "involvedObject").get("kind", "")),
        )
        for state in bundle.last("event").values()
    )
