"""Values derived from a bundle that several checks use. Each value is computed only once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property

from harness.core.checks import CheckId
from harness.evidence.io.reader import Bundle
from harness.evidence.schema.bundle import Manifest
from harness.judge.case import Case, Restart
from harness.judge.catalogue import REQUIREMENTS, Entry, Need, Requirement, up_to
from harness.judge.cluster.admission import refused
from harness.judge.finding import Finding
from harness.judge.pod_end import End
from harness.judge.points import (
    agreement,
    attached_digests,
    client_rewrites,
    compare,
    digest_check,
    digest_reports,
    elastic,
    omitted_values,
)
from harness.judge.points import ground_truth as truth
from harness.judge.points.digest_records import PodRecord
from harness.judge.points.shared_run import Attached
from harness.judge.ranks import gpu_use, pod_ends, restarts


@dataclass
class Facts:
    """Values derived from one bundle. `findings` contains the results of the checks that have run."""

    bundle: Bundle
    findings: list[Finding] = field(default_factory=list)
    results: dict[Callable[[Facts], object], list[Finding]] = field(default_factory=dict)
    """The findings of each check function. A function that implements two checks is called only once."""

    @property
    def manifest(self) -> Manifest:
        """Return the manifest. Only checks whose `needs` is `manifest` or a later need may use it."""
        assert self.bundle.manifest is not None
        return self.bundle.manifest

    @cached_property
    def case(self) -> Case:
        """Return the Case of this launch. Only checks whose `needs` is `launch` or a later need may use it.

        If the number of ranks was not given, it is the size of the recorded world.
        """
        expected, launch = self.manifest.expected, self.manifest.launch
        assert expected is not None
        assert launch is not None
        case = Case(self.bundle, self.manifest, expected, launch)
        if expected.ranks_given or case.world is None or case.world.size == expected.ranks:
            return case
        return Case(
            self.bundle, self.manifest, expected.model_copy(update={"ranks": case.world.size}), launch
        )

    @cached_property
    def ends(self) -> dict[int, End]:
        return pod_ends.ends(self.case)

    @cached_property
    def truths(self) -> list[truth.Truth]:
        """Return the ground truth of each rank, with the points from both of the rank's records."""
        return self.agreement.truths

    @cached_property
    def restarts(self) -> list[Restart]:
        """Return all rank restarts in chronological order."""
        return restarts.all_restarts(self.case, self.truths)

    @cached_property
    def agreement(self) -> agreement.Agreement:
        truths = [truth.read(self.case, rank) for rank in self.case.ranks_ever]
        return agreement.compare(self.case, elastic.with_superseded(self.case, truths))

    @cached_property
    def attached(self) -> Attached:
        attachments, summary = self.bundle.attachments(), self.bundle.summary
        records_attachments = summary is None or summary.attachments is not None or bool(attachments)
        return Attached(self.case, self.bundle.runs(), attachments if records_attachments else None)

    @cached_property
    def recorded(self) -> compare.Recorded:
        shared = self.attached.shared
        run = shared[0][1].run_id if shared else None
        return compare.read(self.bundle, run, self.attached.of_others)

    @cached_property
    def compared(self) -> compare.Comparison:
        """Return the differences between the run in the tracker and the ranks' ground truth.

        `rewritten` contains the differences that the Pluto client's own rules explain.
        """
        return self._comparison[0]

    @cached_property
    def rewritten(self) -> client_rewrites.Rewritten:
        return self._comparison[1]

    @cached_property
    def _comparison(self) -> tuple[compare.Comparison, client_rewrites.Rewritten]:
        comparison = compare.compare(self.truths, self.recorded)
        omissions = omitted_values.omissions(self.agreement)
        return comparison, client_rewrites.explain(self.truths, self.recorded, comparison, omissions)

    @cached_property
    def admitted(self) -> list[PodRecord] | None:
        """Return the records that injected recorders wrote in the job's pods.

        Returns None if no admission policy injected a recorder into any of the job's pods.
        """
        if not self.attached_to_others or not attached_digests.is_admitted(self.case):
            return None
        pods, summary = attached_digests.records(self.case), self.bundle.summary
        if summary is not None and summary.error is None and summary.digests is not None:
            reports = [report for _, report in self.bundle.digests()]
            if len(reports) == summary.digests:  # If the numbers differ, the `tracker` check does not pass.
                digest_reports.verify(pods, reports, [run.run_id for _, run in self.bundle.runs()])
        return pods

    @cached_property
    def of_digests(self) -> dict[str, Finding]:
        """Map each check to the finding about points from pods with an injected recorder."""
        assert self.admitted is not None
        is_known = self.passed("tracker") and bool(self.attached.shared)
        run = self.attached.shared[0][1].run_id if is_known else None
        findings = digest_check.judge(
            self.admitted,
            ranks=self.case.ranks,
            parts=attached_digests.parts(self.bundle, run) if run is not None else [],
            run=str(run) if run is not None else None,
            label=self.label if is_known else "the run",
        )
        by_name = {finding.name: finding for finding in findings}
        lost_points = by_name["no-lost-points"]
        if lost_points.result == "FAIL":
            reasons = attached_digests.uploaders(self.case, lost_points.ranks)
            by_name["no-lost-points"] = replace(lost_points, why=[*lost_points.why, *reasons])
        return by_name

    @property
    def label(self) -> str:
        """Return the shared run's name for use in messages."""
        return self.attached.label(self.attached.shared[0][1].run_id)

    def passed(self, id_: CheckId) -> bool:
        """Return whether this check has run and passed."""
        return any(finding.name == id_ and finding.result == "PASS" for finding in self.findings)

    def failed(self, id_: CheckId) -> bool:
        """Return whether this check has run and failed."""
        return any(finding.name == id_ and finding.result == "FAIL" for finding in self.findings)

    @property
    def tracked(self) -> bool:
        """Return whether the ranks' points were recorded. If there is no manifest, this is assumed.

        An attached job's points were recorded if the ranks have a recorder and the harness read the tracker.
        """
        if not self.attached_to_others:
            return self._of_ranks
        recorded = self.case.recorded or self.admitted is not None
        return self._of_ranks and recorded and self.bundle.summary is not None

    @property
    def _of_ranks(self) -> bool:
        return self._netcheck != "alone" and self._acceptance is None

    @property
    def attached_to_others(self) -> bool:
        """Return whether the harness attached to a job that it did not launch."""
        manifest = self.bundle.manifest
        return bool(manifest and manifest.launch and manifest.launch.attached and manifest.expected)

    @property
    def _netcheck(self) -> str | None:
        launch = self.bundle.manifest.launch if self.bundle.manifest else None
        return launch.netcheck if launch else None

    @property
    def _acceptance(self) -> str | None:
        launch = self.bundle.manifest.launch if self.bundle.manifest else None
        return launch.acceptance if launch else None

    @property
    def _processes(self) -> bool:
        launch = self.bundle.manifest.launch if self.bundle.manifest else None
        return launch is not None and launch.processes

    @property
    def _training(self) -> bool:
        launch = self.bundle.manifest.launch if self.bundle.manifest else None
        return launch is not None and launch.training

    @property
    def _upload(self) -> bool:
        launch = self.bundle.manifest.launch if self.bundle.manifest else None
        return launch is not None and launch.upload is not None

    @property
    def _accounts(self) -> list[str]:
        launch = self.bundle.manifest.launch if self.bundle.manifest else None
        return launch.accounts if launch else []

    @property
    def _torchrun(self) -> bool:
        launch = self.bundle.manifest.launch if self.bundle.manifest else None
        return launch is not None and launch.launcher == "torchrun"

    @property
    def _gpus(self) -> bool:
        manifest = self.bundle.manifest
        is_known = manifest is not None and bool(manifest.launch and manifest.expected)
        return is_known and self._of_ranks and bool(gpu_use.requested(self.case))

    def applies(self, entry: Entry) -> bool:
        """Return whether the check applies to this launch."""
        conditions = {
            "always": True,
            "tracked": self.tracked,
            "frames": self.tracked and self.admitted is None,
            "ranks": self._of_ranks,
            "attached": self.attached_to_others,
            "processes": self._processes,
            "netcheck": self._netcheck is not None,
            "acceptance": self._acceptance is not None,
            "training": self._training,
            "upload": self._upload,
            "torchrun": self._torchrun,
            "keys": self.tracked and "keys" in self._accounts,
            "gpus": self._gpus,
        }
        return conditions[entry.applies]

    def lacks(self, need: Need) -> tuple[Requirement, list[int]] | None:
        """Return the first unmet need up to `need` and the affected ranks, or None if all needs are met."""
        for each in up_to(need):
            ranks = _UNMET[each](self)
            if ranks is not None:
                return REQUIREMENTS[each], ranks
        return None


def _unless(requirement: object) -> list[int] | None:
    return None if requirement else []


def _or_ranks(ranks: list[int]) -> list[int] | None:
    return sorted(set(ranks)) or None


def _without_truth(facts: Facts) -> list[int]:
    return [truth.rank for truth in facts.truths if truth.incomplete]


def _with_undecided_rows(facts: Facts) -> list[int]:
    return [rank for rank, _ in facts.compared.undecided]


_UNMET: dict[Need, Callable[[Facts], list[int] | None]] = {
    "bundle": lambda _: None,
    "manifest": lambda facts: _unless(facts.bundle.manifest),
    "launch": lambda facts: _unless(facts.manifest.expected and facts.manifest.launch),
    "job": lambda facts: _unless(facts.case.launch.uid is not None),
    "admission": lambda facts: _unless(facts.case.pods or not refused(facts.case)),
    "rank": lambda facts: _unless(any(map(facts.case.started, range(facts.case.expected.num_nodes)))),
    "tracker": lambda facts: _unless(facts.passed("tracker")),
    "shared-run": lambda facts: _unless(facts.attached.shared),
    "truth": lambda facts: None if facts.admitted is not None else _or_ranks(_without_truth(facts)),
    "rows": lambda facts: None if facts.admitted is not None else _or_ranks(_with_undecided_rows(facts)),
}
"""Maps each need to a function that checks it. The function returns None if the need is met. Otherwise, it
returns the affected ranks, or [] if no particular ranks are affected."""
