"""Did the job complete."""

from __future__ import annotations

from harness.verdict import pods
from harness.verdict.admission import eviction, queue_and_admission
from harness.verdict.case import Case, Finding, condition, found, passed, unknown
from harness.verdict.ends import End


def completed(case: Case, ends: dict[int, End]) -> Finding:
    """What the JobSet itself says, or why it came to no end."""
    jobset = case.jobset
    if jobset is None and not case.launch.uid:
        return unknown("completed", "there was no job")
    if jobset is None:
        return found(
            "completed", "run.evidence_missing", f"no state of {case.launch.object_name} was recorded"
        )
    refs, ranks, cause = [jobset.ref], list[int](), None
    if case.terminal == "Completed":
        return passed("completed", f"JobSet {jobset.name} is Completed", refs)
    if case.terminal == "Failed":
        failed = condition(jobset, "Failed")
        why = f"{failed.get('reason', 'no reason')}: {failed.get('message', 'no message')}"
        cause, text = "run.not_completed", f"JobSet {jobset.name} failed: {why}"
    elif case.by_signal:
        text = "the harness was stopped before the job ended"
    elif case.timed_out:
        ranks, last = pods.stalled(case, ends)
        cause, text = "run.timed_out", f"JobSet {jobset.name} did not end: {case.deadline}"
        text += f"; {last}" if last else ""
    elif jobset.type == "DELETED":
        cause, text = "run.deleted", f"JobSet {jobset.name} was deleted before it ended"
    else:
        text = f"JobSet {jobset.name} was not seen to end"
    if cause is None:
        return unknown("completed", text, evidence=refs)
    return found("completed", cause, text, ranks=ranks, evidence=refs)


def idle(case: Case) -> Finding | None:
    """A resumed JobSet that no pod came of: its controller does nothing."""
    jobset = case.jobset
    if jobset is None or case.pods or case.terminal or not case.timed_out:
        return None
    resumed = jobset.object.get("spec", {}).get("suspend") is not True
    if not resumed or case.bundle.history("job") or case.broken("objects/workload.jsonl"):
        return None
    return found(
        "rank-pods",
        "controllers.jobset_idle",
        f"JobSet {jobset.name} was resumed, and its controller made no Job for it",
        ranks=range(case.expected.ranks),
        evidence=[jobset.ref],
    )


def checks(case: Case, ends: dict[int, End]) -> list[Finding]:
    """All of them, in the order in which a job goes through them."""
    return [
        *queue_and_admission(case),
        pods.scheduling(case),
        pods.image(case),
        idle(case) or pods.rank_pods(case),
        eviction(case),
        *pods.rank_ends(case, ends),
        completed(case, ends),
        pods.spread(case),
        pods.logs(case),
    ]
