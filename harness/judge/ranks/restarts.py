"""Find out which ranks were restarted, what restarted them, and whether the job allows it.

A job allows restarts through torchrun's --max-restarts, the JobSet's maxRestarts, the Job's backoffLimit or
the pod's restartPolicy. Kueue may also evict the job and admit it again. Any other restart means that the job
was disturbed, so the launch does not pass even if no points are missing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

from harness.core.clock import seconds, timestamp
from harness.evidence.kubernetes.objects import ObjectState, Pod, changed_by, items, mapping
from harness.judge.case import Case, Restart, condition, names
from harness.judge.cluster import pod_deletion
from harness.judge.finding import Finding, counted, not_passed, passed, unknown
from harness.judge.points.ground_truth import Truth
from harness.judge.ranks import earlier_attempts, pod_failure_policy
from harness.judge.ranks.torchrun_restarts import by_torchrun, unrestarted_processes

JOB_RESTART = "jobset.sigs.k8s.io/job-restart-attempt"
"""The label that contains the number of times that JobSet has restarted a single Job."""
RESTARTS = "pluto-e2e-harness/restarts"
"""The annotation that limits restarts. This value is also defined in harness/launch/labels.py."""


def all_restarts(case: Case, truths: list[Truth]) -> list[Restart]:
    """Return all restarts in chronological order."""
    other_restarts = [*_of_pods(case), *_of_containers(case), *earlier_attempts.restarts(case)]
    restarts = [*by_torchrun(case, truths, other_restarts), *_of_processes(case, truths), *other_restarts]
    return sorted(restarts, key=lambda restart: restart.at)


def check(case: Case, truths: list[Truth], restarts: list[Restart]) -> Finding:
    """Run the `restarts` check: every rank ran once, or the job allows all recorded restarts."""
    if not restarts and (doubt := earlier_attempts.not_known(case)):
        return unknown("restarts", doubt)
    if not restarts:
        notes = unrestarted_processes(truths)
        text = f"nothing was restarted; {'; '.join(notes)}" if notes else "every rank ran once"
        return passed("restarts", text)
    # Put disallowed restarts first, so that the limit on details does not cut them off.
    texts = list(dict.fromkeys(one.text for one in sorted(restarts, key=lambda one: one.allowed)))
    limit = _limit(case)
    if limit is not None:
        return _per_rank(restarts, texts, limit)
    disallowed = [restart for restart in restarts if not restart.allowed]
    ranks = [rank for one in disallowed or restarts for rank in one.ranks]
    refs = [ref for one in disallowed or restarts for ref in one.evidence]
    if not disallowed:
        by_script = any(restart.by_script for restart in restarts)
        reason = "because the run script started them again" if by_script else "as the job allows"
        text = f"{names(ranks)} ran again, {reason}"
        return passed("restarts", text, refs, details=texts)
    return not_passed(
        "restarts",
        "rank.restarted",
        f"{names(ranks)} ran again, but nothing in the job allows it",
        details=texts,
        ranks=ranks,
        evidence=refs,
        at=disallowed[0].at,
    )


def _limit(case: Case) -> int | None:
    """Return the limit on each rank's restarts from the workload's annotation, or None."""
    text = mapping(case.jobset.object, "metadata", "annotations").get(RESTARTS) if case.jobset else None
    return int(text) if isinstance(text, str) and text.isdecimal() else None


def _per_rank(restarts: list[Restart], texts: list[str], limit: int) -> Finding:
    """Return the finding for a job that allows each rank `limit` restarts for any reason."""
    times = Counter(rank for one in restarts if not one.resized for rank in set(one.ranks))
    highest = max(times.values(), default=0)
    ranks = sorted(rank for rank, count in times.items() if count == highest)
    refs = [ref for one in restarts for ref in one.evidence]
    each = f"{names(ranks)} ran again {counted(highest, 'time')}"
    if highest <= limit:
        resized = sum(one.resized for one in restarts)
        parts = [f"a world of another size was formed {counted(resized, 'time')}"] if resized else []
        if highest:
            parts += [
                f"{names(sorted(times))} ran again, at most {counted(highest, 'time')} each; "
                f"{limit} are allowed"
            ]
        return passed("restarts", "; ".join(parts), refs, details=texts)
    text = f"{each}, but only {limit} are allowed"
    return not_passed(
        "restarts",
        "rank.restarted_too_often",
        text,
        details=texts,
        ranks=ranks,
        evidence=refs,
        at=restarts[-1].at,
    )


def _of_processes(case: Case, truths: list[Truth]) -> Iterator[Restart]:
    """Yield each restart of ranks that did not log any points, based on their process records."""
    logged = {truth.rank for truth in truths if truth.own}
    for of_pod in case.processes.values():
        starts = sorted(
            ((one.time_ms, agent.id, one) for agent in of_pod.agents for one in agent.rounds),
            key=lambda start: start[0],
        )
        for (_, agent_id, _), (time_ms, next_agent, one) in pairwise(starts):
            ranks = sorted({rank for _, _, rank, _ in one.workers} - logged)
            if not ranks:
                continue
            by_script, at = agent_id != next_agent, time_ms / 1000
            text = f"torchrun started {names(ranks)} again at {timestamp(at)}"
            if by_script:
                text = f"the run script started torchrun with {names(ranks)} again at {timestamp(at)}"
            text += f" in pod {of_pod.pod}; {'they' if ranks[1:] else 'it'} had logged nothing"
            yield Restart(at, ranks, text, True, ["processes.jsonl"], by_script)


def _of_pods(case: Case) -> Iterator[Restart]:
    """Yield one restart for each pod that replaced an earlier pod with the same node index."""
    for index, pods in case.pod_attempts.items():
        for before, after in pairwise(pods):
            yield _replaced(case, index, before, after)


def _replaced(case: Case, index: int, before: Pod, after: Pod) -> Restart:
    at = seconds(mapping(after.history[0].object, "metadata").get("creationTimestamp")) or 0.0
    ranks, refs = case.ranks_of(index), [before.last.ref, after.history[0].ref]

    def restart(text: str, allowed: bool, *more_refs: str) -> Restart:
        rank_names = names(ranks)
        return Restart(
            at,
            ranks,
            f"{rank_names} got pod {after.name} at {timestamp(at)}: {text}",
            allowed,
            [*more_refs, *refs],
        )

    if after.attempt > before.attempt:
        which, is_allowed = earlier_attempts.jobset_restart(case, after.attempt)
        return restart(f"JobSet restarted the job (restart {which}){_exit_text(case, before)}", is_allowed)
    if (suspended := _suspended(case, before, after)) is not None:
        return restart(*suspended)
    jobs = [_owner(pod) for pod in (before, after)]
    if _job_restart(after) > _job_restart(before):
        # JobSet counts restarts of single Jobs towards maxRestarts unless their rule excludes them.
        limit = earlier_attempts.max_restarts(case)
        text = (
            f"JobSet restarted its Job (restart {_job_restart(after)} of the Job){_exit_text(case, before)}"
        )
        is_excluded = _has_rule(case, "RestartJobAndIgnoreMaxRestarts")
        return restart(text, is_excluded or _job_restart(after) <= limit)
    if jobs[0] != jobs[1]:
        deleted_job = next(
            (s for s in case.bundle.objects("job").get(jobs[0], []) if pod_deletion.leaving(s)), None
        )
        deletion_time = f" at {timestamp(seconds(deleted_job.received_at) or at)}" if deleted_job else ""
        name = f"Job {deleted_job.name}" if deleted_job else "its Job"
        return restart(
            f"{name} was deleted{deletion_time}, and a new Job was created in its place",
            False,
            *([deleted_job.ref] if deleted_job else []),
        )
    removed = pod_deletion.while_it_ran(case, before)
    if removed is not None:
        reason = pod_deletion.evicted(before)
        text = f"pod {before.name} was {f'evicted ({reason})' if reason else 'deleted while it ran'}"
        text += f" at {timestamp(pod_deletion.requested_at(removed))}, and was recreated"
        return restart(text, False, removed.ref)
    return restart(*_by_its_job(case, jobs[0], before))


def _by_its_job(case: Case, job: str, before: Pod) -> tuple[str, bool]:
    """Return (reason why the Job with the uid `job` replaced a failed pod, whether the Job allows this)."""
    evicted = pod_deletion.evicted(before) if case.launch.attached else None
    text = f"pod {before.name} " + (
        f"was evicted ({evicted})" if evicted else f"failed{_exit_text(case, before)}"
    )
    if pod_failure_policy.ignores(case, job, before):
        return f"{text}, and the podFailurePolicy of its Job ignores such failures", True
    limit = _backoff_limit(case, job)
    return f"{text}, and its Job replaced it (backoffLimit {limit})", limit > 0


def _suspended(case: Case, before: Pod, after: Pod) -> tuple[str, bool] | None:
    """Return (description, allowed) if the job was suspended between pods `before` and `after`, or None."""
    created, readmitted = before.history[0].version, after.history[0].version
    states = [state for state in case.jobsets if state.version < readmitted]
    for previous, state in pairwise(states):
        is_suspended = mapping(state.object, "spec").get("suspend") is True
        if (
            not is_suspended
            or mapping(previous.object, "spec").get("suspend") is True
            or state.version < created
        ):
            continue
        evicted = [
            w
            for w in case.workload
            if condition(w, "Evicted").get("status") == "True" and w.version < readmitted
        ]
        moment = timestamp(seconds(state.received_at) or 0.0)
        if evicted:
            reason = condition(evicted[-1], "Evicted").get("reason")
            return (
                f"Kueue suspended {case.launch.kind} {state.name} at {moment} ({reason}) "
                "and admitted it again",
                True,
            )
        deletions = [w for w in case.workload if pod_deletion.leaving(w) and created < w.version < readmitted]
        if deletions:
            at = timestamp(seconds(deletions[0].received_at) or 0.0)
            text = f"Workload {deletions[0].name} was deleted at {at}, so "
            return text + f"that Kueue suspended {case.launch.kind} {state.name} and admitted it again", False
        managers = ", ".join(changed_by(previous, state)) or "somebody"
        text = f"{managers} suspended {case.launch.kind} {state.name} at {moment}, without Kueue, "
        text += "and it was resumed"
        return text, False
    return _admitted_again(case, before, after) if case.launch.attached else None


def _admitted_again(case: Case, before: Pod, after: Pod) -> tuple[str, bool] | None:
    """Return (description, True) if Kueue readmitted the evicted job between `before` and `after`, or None.

    When Kueue admits a Workload again, it sets the Evicted condition to False.
    """
    removed = pod_deletion.removed(before)
    created = seconds(mapping(after.last.object, "metadata").get("creationTimestamp"))
    for workload in case.workload:
        evicted = condition(workload, "Evicted")
        at = seconds(evicted.get("lastTransitionTime")) if evicted.get("status") == "False" else None
        if removed is None or created is None or at is None:
            continue
        if pod_deletion.requested_at(removed) <= at <= created:
            text = (
                f"Kueue evicted the job and admitted it again at {timestamp(at)} ({evicted.get('message')})"
            )
            return text, True
    return None


def _of_containers(case: Case) -> Iterator[Restart]:
    """Yield one restart for each time that the kubelet restarted the rank's container within a pod."""
    for index, pods in case.pod_attempts.items():
        for pod in pods:
            known_count = _restart_count(case, pod.history[0])
            for after in pod.history[1:]:
                count = _restart_count(case, after)
                if count <= known_count or _container_missing(_status(case, after)):
                    continue
                times, known_count = count - known_count, count
                policy = mapping(after.object, "spec").get("restartPolicy", "Always")
                last_state = mapping(_status(case, after), "lastState", "terminated")
                at = _started_at(case, after) or seconds(after.received_at) or 0.0
                code = (
                    f"; it had ended with exit code {last_state['exitCode']}"
                    if "exitCode" in last_state
                    else ""
                )
                repetition = f"{times} times, the last time before" if times > 1 else "at"
                allowed = policy == "OnFailure" and last_state.get("exitCode") != 0
                rule = _restart_rule(case, after, last_state.get("exitCode"))
                if rule is not None:
                    allowed, policy = rule
                text = f"the container of pod {pod.name} was started again {repetition} {timestamp(at)} "
                text += f"(restartPolicy {policy}{code})"
                yield Restart(at, case.ranks_of(index), text, allowed, [after.ref])


def _restart_rule(case: Case, state: ObjectState, code: object) -> tuple[bool, str] | None:
    """Return (allowed, description) for a restart after an exit code, from the containers' own policies.

    A container may have a restartPolicy and rules for exit codes, which take precedence over the pod's
    policy. A rule of any container may restart all containers, as in JobSet's in-place restarts. Returns None
    if no container has a policy of its own.
    """
    spec = mapping(state.object, "spec")
    containers = [*items(spec, "initContainers"), *items(spec, "containers")]
    own = next((each for each in containers if each.get("name") == case.launch.container), {})
    for rule in items(own, "restartPolicyRules"):
        if _matches(rule, code):
            return True, f"{own.get('restartPolicy')}, with the rule {rule.get('action')} for this exit code"
    if any(
        rule.get("action") == "RestartAllContainers"
        for each in containers
        for rule in items(each, "restartPolicyRules")
    ):
        return True, "of a container that restarts all containers"
    policy = own.get("restartPolicy")
    return None if policy is None else (policy == "OnFailure" and code != 0, f"{policy} of the container")


def _matches(rule: dict[str, object], code: object) -> bool:
    """Return whether a rule in a container's restartPolicyRules applies to an exit code."""
    exit_codes = mapping(rule, "exitCodes")
    values = exit_codes.get("values")
    is_listed = isinstance(values, list) and code in values
    return isinstance(code, int) and is_listed == (exit_codes.get("operator") == "In")


def _job_restart(pod: Pod) -> int:
    """Return the number of times that JobSet had restarted only the pod's Job before it created the pod."""
    labels = [mapping(state.object, "metadata", "labels").get(JOB_RESTART) for state in pod.history]
    text = str(next(filter(None, reversed(labels)), "0"))
    return int(text) if text.isdecimal() else 0


def _has_rule(case: Case, action: str) -> bool:
    policy = mapping(case.jobset.object, "spec", "failurePolicy") if case.jobset else {}
    return any(rule.get("action") == action for rule in items(policy, "rules"))


def _started_at(case: Case, state: ObjectState) -> float | None:
    """Return the time of the last start of the rank's container, or None if it is waiting to be started."""
    now = mapping(_status(case, state), "state")
    for word in ("running", "terminated"):
        if (at := seconds(mapping(now, word).get("startedAt"))) is not None:
            return at
    return None


def _status(case: Case, state: ObjectState) -> dict[str, object]:
    statuses = items(state.object, "status", "containerStatuses")
    return next((status for status in statuses if status.get("name") == case.launch.container), {})


def _restart_count(case: Case, state: ObjectState) -> int:
    count = _status(case, state).get("restartCount")
    return count if isinstance(count, int) else 0


def _container_missing(status: dict[str, object]) -> bool:
    """Return whether the kubelet counted a restart only because the container no longer exists.

    This happens if a pod is evicted. The pod's container is then not restarted.
    """
    reason = mapping(status, "lastState", "terminated").get("reason")
    return not status.get("containerID") and reason == "ContainerStatusUnknown"


def _exit_text(case: Case, pod: Pod) -> str:
    """Return a clause that describes how the pod's rank container ended, or ""."""
    terminated = pod.container(case.launch.container, "terminated")
    if terminated is None:
        return ""
    code, reason = terminated[1].get("exitCode"), terminated[1].get("reason")
    return f": pod {pod.name} ended with exit code {code} ({reason})"


def _owner(pod: Pod) -> str:
    owners = items(pod.history[0].object, "metadata", "ownerReferences")
    return str(owners[0].get("uid")) if owners else ""


def _backoff_limit(case: Case, job: str) -> int:
    states = case.bundle.objects("job").get(job, [])
    limit = mapping(states[-1].object, "spec").get("backoffLimit", 0) if states else 0
    return limit if isinstance(limit, int) else 0
