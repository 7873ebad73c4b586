"""Public API for writing judges that check properties of your job that the harness itself does not check.

    from collections.abc import Iterator
    from harness.judge.users import Bundle, Check, TruthRow, failed, passed

    def loss_falls(bundle: Bundle) -> Iterator[Check]:
        rows = [row for _, row in bundle.truth(0) if isinstance(row, TruthRow) and row.metric == "loss/mean"]
        if rows and rows[-1].value < rows[0].value:
            yield passed("loss-falls", f"from {rows[0].value:.3f} to {rows[-1].value:.3f}")
        else:
            yield failed("loss-falls", "the mean loss did not fall", evidence=["truth/0.jsonl"])

`harness run`, `harness judge` and the `launch` fixture call every judge that an installed package declares in
this entry point group:

    [project.entry-points."pluto_e2e_harness.judges"]
    loss-falls = "my_package:loss_falls"

The cause of a FAIL is `user.loss-falls`, or `user.<cause>` with `failed(…, cause=…)`. A judge can turn a PASS
into FAIL or UNKNOWN, but no other verdict into PASS: if the harness's own verdict is not PASS, your checks
are listed without changing it. If a judge raises, yields no check or reads damaged evidence, the verdict is
UNKNOWN. Judges are called only if the launch created a job. A judge must read only the bundle, because no
cluster or network is available when the bundle is judged again.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib.metadata import EntryPoint, entry_points

from harness.evidence.io.reader import Bundle
from harness.evidence.kubernetes.objects import ObjectState, Pod
from harness.evidence.schema.bundle import Check, Manifest, Verdict
from harness.evidence.schema.ground_truth import TruthRow
from harness.evidence.schema.tracker import Point, TrackerRun
from harness.judge import engine
from harness.judge.user_checks import Judge, Named, failed, passed, unknown

__all__ = [
    "GROUP",
    "Bundle",
    "Check",
    "Judge",
    "Manifest",
    "ObjectState",
    "Pod",
    "Point",
    "TrackerRun",
    "TruthRow",
    "Verdict",
    "failed",
    "installed",
    "judge",
    "passed",
    "unknown",
]
GROUP = "pluto_e2e_harness.judges"


def installed() -> list[Named]:
    """Return (name, judge) for each judge that an installed package declares.

    A judge is imported only when it is called.
    """
    entries = sorted(entry_points(group=GROUP), key=lambda entry: (entry.name, entry.value))
    return [(entry.name, _loading(entry)) for entry in entries]


def judge(bundle: Bundle) -> Verdict:
    """Return the verdict on a bundle from the harness's checks and the installed judges. Never raises."""
    return engine.judge(bundle, installed())


def _loading(entry: EntryPoint) -> Judge:
    """Return a judge that is imported when it is called, so that a broken package fails only at that time."""

    def judge(bundle: Bundle) -> Iterable[Check]:
        loaded: Judge = entry.load()
        return loaded(bundle)

    return judge
