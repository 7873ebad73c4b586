"""Check this repository's training, in addition to the checks that the harness makes for every job."""

from collections.abc import Iterator

from harness.judge.users import Bundle, Check, TruthRow, failed, passed, unknown

METRIC = "loss/mean"


def loss_falls(bundle: Bundle) -> Iterator[Check]:
    """Check that the mean loss that rank 0 logged at the last step is lower than at the first step."""
    rows = [(n, row) for n, row in bundle.truth(0) if isinstance(row, TruthRow) and row.metric == METRIC]
    if len(rows) < 2:
        yield unknown("loss-falls", f"rank 0 logged {METRIC} {len(rows)} times", ranks=[0])
        return
    (first, start), (last, end) = rows[0], rows[-1]
    text = f"{METRIC}: {start.value:.4f} at step {start.step}, {end.value:.4f} at step {end.step}"
    evidence = [f"truth/0.jsonl:{first}", f"truth/0.jsonl:{last}"]
    if end.value < start.value:
        yield passed("loss-falls", text, evidence=evidence)
    else:
        yield failed("loss-falls", text, ranks=[0], evidence=evidence)
