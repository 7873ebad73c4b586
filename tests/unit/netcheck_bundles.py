"""Synthetic bundles of launches in whose pods netcheck ran."""

from __future__ import annotations

import bundles
from bundles import at

from harness.evidence.schema.netcheck import NetcheckCell, NetcheckDiagnosis, NetcheckRecord, NetcheckStep
from harness.workers.netcheck.finding import CAUSES as SAID

NODES = 4
SERVICE = bundles.JOBSET
LABELS = {"jobset.sigs.k8s.io/jobset-name": bundles.JOBSET}


def diagnosis(cause: str | None = None, *ranks: int, whole: bool = True, **cells: str) -> NetcheckDiagnosis:
    """Return a diagnosis. `cells` are outcomes by pair, `c01="tcp.refused"`; all others are ok."""
    steps = [NetcheckStep(step="dns", status="ok", text="12 of 12 pairs")]
    if cause:
        text = f"the text of {cause}"
        steps = [NetcheckStep(step=SAID[cause], status="failed", text=text, cause=cause, ranks=list(ranks))]
    rows = {
        sender: {
            receiver: NetcheckCell(outcome=cells.get(f"c{sender}{receiver}", "ok"), host=f"job-{receiver}")
            for receiver in range(NODES)
            if receiver != sender
        }
        for sender in range(NODES)
    }
    word = "failed" if cause else "ok"
    return NetcheckDiagnosis(
        verdict=word,  # type: ignore[arg-type]
        cause=cause,
        ranks=list(ranks),
        findings=steps,
        rows=rows,
        nodes=NODES,
        rank=0,
        whole=whole,
        seconds=0.7,
    )


def job(
    diagnoses: dict[int, NetcheckDiagnosis], mode: str = "alone", service: bool = True, at_second: float = 7
) -> bundles.Job:
    """Return a launch of four pods that passed except for their netcheck, which ended at `at_second`."""
    made = bundles.healthy(NODES)
    assert made.manifest.launch is not None
    launch = made.manifest.launch.model_copy(update={"netcheck": mode})
    made.manifest = made.manifest.model_copy(update={"launch": launch})
    made.netchecks = [
        NetcheckRecord(at=at(at_second, True), pod=made.pod_name(index), diagnosis=one)
        for index, one in diagnoses.items()
    ]
    if service:
        services(made, LABELS)
    return made


def ended(job: bundles.Job, *indexes: int, code: int = 1, started: float = 5) -> None:
    """Let these pods' commands have failed."""
    job.drop("jobset", 2)
    for index in indexes:
        job.drop_pod(index, after=10 if started == 5 else 4.6)
        job.logs[job.pod_name(index)] = [f"{at(8, True)} netcheck: FAILED"]
        job.ended(index, max(9, started), code, message="", started=started)
    job.jobset(32, "Failed")


def services(job: bundles.Job, selector: dict[str, str], published: bool = True) -> None:
    """Record the headless Service of the pods, which have the JobSet's labels, and its endpoints."""
    metadata = {"name": SERVICE, "uid": "svc"}
    spec = {"clusterIP": "None", "selector": selector, "publishNotReadyAddresses": published}
    job.see("service", 1, {"metadata": metadata, "spec": spec})
    endpoints = [{"targetRef": {"name": job.pod_name(index)}} for index in range(job.nodes)]
    slice_ = {"name": f"{SERVICE}-x", "uid": "slice", "labels": {"kubernetes.io/service-name": SERVICE}}
    job.see("endpointslice", 2, {"metadata": slice_, "endpoints": endpoints})


def everywhere(one: NetcheckDiagnosis) -> dict[int, NetcheckDiagnosis]:
    return dict.fromkeys(range(NODES), one)
