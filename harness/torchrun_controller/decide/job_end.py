"""Decide whether and how a job has ended, and clean up afterwards."""

from __future__ import annotations

from datetime import datetime, timedelta

from harness.core.kubernetes import Object, condition
from harness.torchrun_controller.api import names
from harness.torchrun_controller.api.condition_type import found, parsed, stamp
from harness.torchrun_controller.api.models import Phase, Workers
from harness.torchrun_controller.decide.decisions import (
    Action,
    Decision,
    DeleteParts,
    attempt,
    counted,
    ending,
    owned,
)
from harness.torchrun_controller.decide.reconcile_state import ReconcileState, delete


class JobEnd(ReconcileState):
    """The part of a job's reconcile that decides whether the job ends.

    A job ends when its ranks have ended, when it is cancelled, at its deadline, or if its spec is invalid.
    """

    def _job_end(self) -> Decision | None:
        """Return the decision that ends the job, or None if the job continues.

        Ended ranks take precedence over a cancellation, which takes precedence over the deadline.
        """
        if self.ours is not None and not ending(self.ours):
            end_decision = self._jobset_end(self.ours)
            if end_decision is not None:
                return end_decision
        if self.spec.cancel:
            return self._finish("Cancelled", "Cancelled", "spec.cancel was set")
        deadline = self._deadline()
        if deadline is not None and deadline <= self.now and not self.spec.suspend:
            seconds = self.spec.reliability.active_deadline_seconds
            return self._finish(
                "TimedOut", "DeadlineExceeded", f"it reached its active deadline of {seconds} s"
            )
        return None

    def _jobset_end(self, jobset: Object) -> Decision | None:
        """Return the decision that ends the job if its JobSet has ended. Otherwise, return None.

        A single failed pod does not end a job.
        """
        pods = attempt(self.snapshot.pods, jobset)
        self.status.restarts = int((jobset.get("status") or {}).get("restarts") or 0)
        completed, failed = condition(jobset, "Completed"), condition(jobset, "Failed")
        if completed.get("status") == "True":
            self._count(pods)
            if not self._elastic() and self.status.num_nodes:
                # All nodes count as succeeded, because the cached pods may be outdated and the pods of a
                # drained node are deleted.
                self._set_workers(Workers(succeeded=self.status.num_nodes))
            return self._finish(
                "Succeeded", "AllRanksSucceeded", "every rank ended with exit code 0", _since(completed)
            )
        if failed.get("status") != "True":
            return None
        self._count(pods)
        reason, message, at = str(failed.get("reason")), str(failed.get("message", "")), _since(failed)
        if "DeadlineExceeded" in message or reason == "DeadlineExceeded":
            return self._finish("TimedOut", "DeadlineExceeded", message, at)
        rank_failure = self._failure(pods) or self._reported_failure()
        disruption_reason, disruption_message = self._disruption()
        if disruption_message:
            # The ranks in the other pods fail because of the lost pod, possibly before Kubernetes has
            # terminated it.
            return self._finish(
                "Failed", disruption_reason, f"{disruption_message}; then {rank_failure or message}", at
            )
        return self._finish(
            "Failed", "RankFailed" if rank_failure else reason, f"{rank_failure or message}", at
        )

    def _reported_failure(self) -> str:
        """Return the failure that the status already reports for a pod of this attempt, or "".

        The failed pod may have been deleted since then, for example together with its node.
        """
        before = found(self.old.conditions, "PodsReady")
        same_attempt = (self.old.job_id, self.old.restarts) == (self.status.job_id, self.status.restarts)
        return before.message if before and before.reason == "RankFailed" and same_attempt else ""

    def _finish(self, phase: Phase, reason: str, message: str, at: datetime | None = None) -> Decision:
        """Record the job's result in the status.

        The next reconcile reads this status and cleans up. `at` is the time at which the job ended. The
        default is now.
        """
        self.status.completion_time = stamp(min(self.now, at or self.now))
        succeeded = phase == "Succeeded"
        self._condition("Complete", succeeded, reason, message)
        self._condition("Failed", not succeeded, reason, message)
        self._condition("PodsReady", False, "Finished")
        if self._was_true("Suspended"):
            self._condition("Suspended", False, "Finished")
        return self._decision(phase, message, requeue_at=self.now)

    def _reject(self, reason: str, message: str) -> Decision:
        return self._finish("Failed", reason, message)

    def _clean_up(self) -> Decision:
        """Clean up after a job has ended: stop running pods immediately, and delete the other objects after
        the TTL. An ended job is never restarted."""
        self.status.message = self.old.message
        self._update_counts()
        ended_at = parsed(self.old.completion_time) if self.old.completion_time else self.now
        reliability = (self.job["spec"].get("reliability")) or {}
        expires = ended_at + timedelta(seconds=int(reliability.get("ttlSecondsAfterFinished", 3600)))
        jobset = self.ours
        expired = expires <= self.now
        actions: list[Action] = []
        at_work = jobset is not None and self._runs(jobset)
        if jobset is not None and (expired or at_work) and not ending(jobset):
            # If the JobSet completes before it is deleted, its resource version changes, and it is kept until
            # the TTL.
            actions.append(delete(jobset, unchanged=not expired))
        if expired:
            remaining_claims = [claim for claim in self.snapshot.claims if owned(claim, self.uid)]
            actions += [delete(claim) for claim in remaining_claims if not ending(claim)]
            uploaded = names.WORKSPACE_ANNOTATION in (self.job["metadata"].get("annotations") or {})
            if uploaded and not self._was_true("CleanedUp"):
                actions.append(DeleteParts(self.uid))
            if jobset is None and not remaining_claims:
                self._condition("CleanedUp", True, "TTLExpired", "the JobSet and the workspace are deleted")
        return Decision(self.status, actions, None if expired else expires)

    def _update_counts(self) -> None:
        """Update the pod counts of an ended job.

        Pods that have ended still count after they have been deleted.
        """
        if self.old.workers_status is None:
            return  # The job never had a JobSet.
        remaining_pods = attempt(self.snapshot.pods, self.ours) if self.ours is not None else []
        old, now = self.old.workers, counted(remaining_pods)
        self._set_workers(
            Workers(
                pending=min(old.pending, now.pending),
                ready=min(old.ready, now.ready),
                running=min(old.running, now.running),
                failed=max(old.failed, now.failed),
                succeeded=max(old.succeeded, now.succeeded),
            )
        )

    def _runs(self, jobset: Object) -> bool:
        return not any(condition(jobset, kind).get("status") == "True" for kind in ("Completed", "Failed"))


def _since(entry: Object) -> datetime | None:
    """Return the time of a condition's last transition, or None if it is not known."""
    time = entry.get("lastTransitionTime")
    return parsed(time) if time else None
