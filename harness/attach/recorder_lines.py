"""Collect the records that the ranks of an attached job wrote to their logs.

Each line is authenticated by a nonce. In a job that the harness did not launch, the recorder uses the uid of
one of the pod's owners as the nonce. If a harness on another machine launched the job, the nonce is in a
label on the pods.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable

from harness.attach.rank_pods import owners
from harness.core.kubernetes import Object
from harness.evidence.io.ground_truth import TruthCollector
from harness.evidence.io.writer import BundleWriter
from harness.evidence.kubernetes.objects import items, mapping
from harness.evidence.schema.processes import decode
from harness.judge.points import digest_records
from harness.launch.labels import NONCE_LABEL
from harness.workers.ground_truth.truth_frames import MARK, PROCESS_MARK
from harness.workers.recorder.digest_lines import LINE_MARK, REPORTED_MARK, SUMMARY_MARK

NONCE_VARIABLE = "HARNESS_NONCE"
_MARKS = (LINE_MARK, REPORTED_MARK, SUMMARY_MARK)
"""The strings that mark lines from injected recorders."""


def nonces(pods: Iterable[Object], uid: str) -> list[str]:
    """Return the nonces that recorders in the pods may use. `uid` is the uid of the job's object."""
    values_found = dict.fromkeys([uid])
    for pod in pods:
        values_found |= dict.fromkeys(sorted(owners(pod)))
        label = mapping(pod, "metadata", "labels").get(NONCE_LABEL)
        values_found |= dict.fromkeys([str(label)] if label else [])
        for container in items(pod, "spec", "containers"):
            values = [e.get("value") for e in items(container, "env") if e.get("name") == NONCE_VARIABLE]
            values_found |= dict.fromkeys(str(value) for value in values if value)
    return list(values_found)


def recorded_world(log: Iterable[bytes], nonces: Iterable[str]) -> tuple[set[int], set[int | None]]:
    """Return the ranks whose injected recorders wrote to a log, and the world sizes in the recorders'
    summaries."""
    marks = [mark.encode() for mark in _MARKS]
    lines = [line.decode(errors="replace") for line in log if any(mark in line for mark in marks)]
    process_records = [record for nonce in nonces for record in digest_records.read(lines, nonce).records]
    worlds = {each.summary.world for each in process_records if each.summary is not None}
    return {each.rank for each in process_records if each.rank is not None}, worlds


class RecordedLines:
    """Collects ground truth and process events from lines that are authenticated by one of the known
    nonces."""

    def __init__(self, writer: BundleWriter) -> None:
        self._writer = writer
        self._collectors: dict[str, TruthCollector] = {}
        self._events: set[str] = set()
        self._lock = threading.Lock()
        self.admitted = False
        """Whether a log contains lines from an injected recorder. The judge reads these lines directly from
        the logs."""

    def know(self, nonces: Iterable[str]) -> None:
        """Add nonces. They apply only to lines that are passed to `feed` afterwards."""
        with self._lock:
            for nonce in nonces:
                self._collectors.setdefault(nonce, TruthCollector(nonce))

    def feed(self, pod: str, uid: str, text: str) -> None:
        """Decode the recorders' lines in a part of a pod's log. `uid` is the pod's uid."""
        self.admitted |= any(mark in text for mark in _MARKS)
        if MARK not in text and PROCESS_MARK not in text:
            return
        with self._lock:
            for line in text.splitlines():
                if MARK in line:
                    for collector in self._collectors.values():
                        collector.feed(line, pod)
                if PROCESS_MARK in line:
                    self._process(line, pod, uid)

    def _process(self, line: str, pod: str, uid: str) -> None:
        for nonce in self._collectors:
            for event in decode(nonce, line, pod, uid):
                text = event.model_dump_json()
                if text not in self._events:
                    self._events.add(text)
                    self._writer.process(event)

    def write(self) -> bool:
        """Write the ground truth. Return whether the ranks recorded anything."""
        has_written = bool(self._events)
        for collector in self._collectors.values():
            for suffix, by_rank in (("", collector.result()), (".outside", collector.outside())):
                for rank, lines in by_rank.items():
                    has_written = True
                    self._writer.truths(rank, lines, suffix)
        return has_written
