"""Recorded launches as `harness attach` would have recorded them: without what only a launcher knows."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from harness.attach import session
from harness.attach.rank_pods import AttachedJob, describe
from harness.attach.recorded_objects import Recording
from harness.attach.resources import AROUND, DAEMONSET, JOB, JOBSET, STATEFULSET
from harness.core.clock import seconds
from harness.core.errors import UsageError
from harness.evidence import Bundle, BundleWriter, Redactor
from harness.evidence.schema.bundle import Observation

RESOURCES = {each.kind.kind: each for each in (JOBSET, JOB, STATEFULSET, DAEMONSET)}
KINDS = ("pod", *(each.kind.name for each in AROUND if each.kind.name != "event"))


def attached(source: Path, folder: Path, *, picture: bool) -> Bundle | None:
    """Return the bundle of somebody who attached to this launch, or None if it had nothing to attach to.

    With `picture`, the objects were read once, when the harness had stopped to wait. Otherwise they were
    watched from the start. Logs are there if their pods were.
    """
    whole = Bundle.open(source)
    manifest = whole.manifest
    launch = manifest.launch if manifest else None
    if launch and (launch.acceptance or launch.netcheck == "alone"):
        return None  # These pods are the tests of the harness, not ranks of a job.
    if manifest is None or launch is None or not launch.uid or launch.kind not in RESOURCES:
        return None
    end = _end(manifest)
    states = {kind: _until(whole, kind, end) for kind in (*KINDS, "event", RESOURCES[launch.kind].kind.name)}
    resource = RESOURCES[launch.kind]
    own = [s for s in states[resource.kind.name] if s.object["metadata"].get("uid") == launch.uid]
    if not own:
        return None
    item = _with_kind(own[-1].object, launch.kind)
    last_pods = list({s.object["metadata"]["uid"]: s for s in states["pod"]}.values())
    pods = [_with_kind(s.object, "Pod") for s in last_pods if s.type != "DELETED"]
    try:
        job = describe(
            resource, launch.namespace, str(launch.object_name), item, pods, container=launch.container
        )
    except UsageError:
        return None
    writer = BundleWriter(folder, manifest.nonce, Redactor())
    folder.mkdir(parents=True)
    writer.update(
        launch=job.launch, expected=job.expected, launched_at=item["metadata"].get("creationTimestamp")
    )
    recording = Recording(job, writer)
    with writer.stage("observe"):
        if picture:
            _picture(states, recording, resource.kind.name)
            writer.update(attached_at=recording_time(writer))
        else:
            _watched(states, recording, resource.kind.name)
            writer.update(attached_at=own[0].received_at)
        writer.update(watched=sorted({*KINDS, resource.kind.name, "event"} & set(manifest.watched)))
        _logs(source, folder, job, recording, writer, picture=picture, gaps=manifest.log_gaps)
    writer.update(ended_at=recording_time(writer))
    if not picture and manifest.launched_at:
        start = seconds(own[0].received_at)
        stages = [
            s.model_copy(update={"started_at": own[0].received_at, "seconds": end - start})
            for s in writer.current.stages
        ]
        writer._stages = stages
        writer.update(stages=stages, ended_at=manifest.ended_at)
    writer.close()
    session._count_ranks(job, recording, writer)
    return Bundle.open(folder)


def recording_time(writer: BundleWriter) -> str:
    return writer._clock.now()


def _end(manifest: Any) -> float:
    """Return when the harness stopped waiting. Afterwards it ended the job itself."""
    wait = next((s for s in reversed(manifest.stages) if s.name == "observe"), None)
    if wait is None:
        return float("inf")
    return (seconds(wait.started_at) or 0.0) + wait.seconds


def _until(whole: Bundle, kind: str, end: float) -> list[Any]:
    return [s for s in whole.history(kind) if (seconds(s.received_at) or 0.0) <= end]


def _with_kind(item: dict[str, Any], kind: str) -> dict[str, Any]:
    return {"kind": kind, **item}


def _picture(states: dict[str, list[Any]], recording: Recording, own: str) -> None:
    for kind in dict.fromkeys([own, *states]):
        last = {s.uid: s for s in states[kind]}
        for state in last.values():
            if state.type != "DELETED":
                recording.add(kind, state.object)
    recording.flush()


def _watched(states: dict[str, list[Any]], recording: Recording, own: str) -> None:
    for kind in dict.fromkeys([own, *states]):
        for state in states[kind]:
            recording.observe(
                kind, Observation(received_at=state.received_at, type=state.type, object=state.object)
            )
            if kind == "pod" and state.type == "DELETED":
                recording.pods.pop(state.name, None)
    recording.flush()


def _logs(
    source: Path,
    folder: Path,
    job: AttachedJob,
    recording: Recording,
    writer: BundleWriter,
    *,
    picture: bool,
    gaps: list[str],
) -> None:
    del job, writer, gaps
    (folder / "logs").mkdir(exist_ok=True)
    for path in (source / "logs").glob("*"):
        there = any(path.name.startswith(f"{name}-") for name in recording.pods)
        if there or not picture:
            shutil.copy(path, folder / "logs" / path.name)
