"""Judge whether every process that contacted the tracker was recorded, as the `processes` check requires.

The tracker stores the process named in each request. If a request from this launch does not name a process,
the process ran without the recorder. What else that process did is unknown, so the check cannot pass.
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.evidence.schema.ground_truth import TruthStart
from harness.evidence.schema.tracker import Attachment
from harness.evidence.worlds import PATH
from harness.judge.case import names
from harness.judge.finding import Finding, counted, not_passed, passed
from harness.judge.points.shared_run import Attached

REFS = ["tracker/attachments.jsonl", PATH]


def check(attached: Attached) -> Finding:
    """Run the `processes` check: every process that attached to a run or sent data to it was recorded."""
    case, summary = attached.case, attached.case.bundle.summary
    if not case.launch.recorder:
        return _without_recorder(attached)
    recorded = {_process(event.id) for _, event in case.bundle.processes()}
    number = counted(len(recorded), "process", "processes")
    if attached.attachments is None or summary is None or not summary.processes:
        return passed(
            "processes", f"{number} recorded; this tracker does not name the processes that sent requests"
        )
    unrecorded = dict.fromkeys(_strange(attached, recorded))
    if unrecorded:
        text = "processes that were not recorded reached the tracker"
        reasons = [
            "each ran without the harness's recorder: with another environment, with Python's -S, or as "
            "another program"
        ]
        return not_passed(
            "processes",
            "unification.unrecorded_process",
            text,
            details=list(unrecorded),
            why=reasons,
            evidence=REFS,
        )
    ranks = sorted({life.rank for lives in case.lives.values() for life in lives})
    return passed(
        "processes", f"{number} recorded, including those of {names(ranks)}; no other process attached", REFS
    )


def _without_recorder(attached: Attached) -> Finding:
    """Return a finding that is based on counts alone.

    One attachment is expected for each recorded attempt.
    """
    case = attached.case
    own = [one for _, one in attached.attachments or [] if one.launch in case.launches]
    lives = sum(
        isinstance(line, TruthStart) for rank in case.ranks for _, line in case.bundle.truth_parts(rank)
    )
    text = f"{counted(len(own), 'attachment')} of {counted(lives, 'recorded process', 'recorded processes')}"
    if len(own) > lives:
        text += ": no recorder was mounted (HARNESS_RECORDER=false), so the other processes are unknown"
        return not_passed("processes", "unification.unrecorded_process", text, evidence=REFS[:1])
    return passed("processes", f"{text}: the workers record by themselves, and no recorder was mounted")


def _strange(attached: Attached, recorded: set[tuple[str, str]]) -> Iterator[str]:
    case = attached.case
    for _, one in attached.attachments or []:
        if one.launch not in case.launches:
            continue  # The `only-our-job` check judges the attachments of other launches.
        if one.process is None or _process(one.process) not in recorded:
            yield f"{_who(attached, one)} attached to {attached.label(one.run_id)}"
    for _, writer in case.bundle.writers():
        if writer.launch not in case.launches or writer.kind not in {"metrics", "status", "data", "files"}:
            continue
        if writer.process is None or _process(writer.process) not in recorded:
            process = f"process {writer.process.split('/')[1]}" if writer.process else "a process"
            address = f" at {writer.peer}" if writer.peer else ""
            requests = f"{counted(writer.requests, 'request')} with {writer.kind}"
            yield f"{process}{address} sent {requests} to {attached.label(writer.run_id)}"


def _who(attached: Attached, one: Attachment) -> str:
    node = attached.node_of(one)
    location = f" in pod {attached.case.pods[node].name}" if node in attached.case.pods else ""
    location = location or (f" on host {one.hostname}" if one.hostname else "")
    pid = (
        f"process {one.process.split('/')[1]}" if one.process and one.process.count("/") == 2 else "a process"
    )
    return f"{pid}{location}{f' with RANK={one.rank}' if one.rank is not None else ''}"


def _process(id_: str) -> tuple[str, str]:
    """Return (the pod's UID, the process id) from a process's identifier.

    The start time in the identifier is dropped, because it may be unknown once the process has ended.
    """
    uid, _, rest = id_.partition("/")
    return uid, rest.partition("/")[0]
