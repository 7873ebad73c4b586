"""Determine whether a Job's podFailurePolicy ignores a pod's failure, so that the pod is replaced.

The first rule that matches the pod applies, as in the Job controller.
"""

from __future__ import annotations

from typing import Any

from harness.evidence.kubernetes.objects import Pod, items, mapping
from harness.judge.case import Case

Rule = dict[str, Any]


def ignores(case: Case, job: str, pod: Pod) -> bool:
    """Return whether the policy of the Job with the uid `job` ignores this pod's failure."""
    states = case.bundle.objects("job").get(job, [])
    rules = items(states[-1].object, "spec", "podFailurePolicy", "rules") if states else []
    action = next((rule.get("action") for rule in rules if _matches(rule, pod.last.object)), None)
    return action == "Ignore"


def _matches(rule: Rule, pod: dict[str, Any]) -> bool:
    """Return whether a rule matches the pod's conditions or the exit code of one of its containers."""
    conditions = {(each.get("type"), each.get("status")) for each in items(pod, "status", "conditions")}
    patterns = items(rule, "onPodConditions")
    if any((each.get("type"), each.get("status", "True")) in conditions for each in patterns):
        return True
    codes = mapping(rule, "onExitCodes")
    return bool(codes) and any(
        codes.get("containerName") in (None, name)
        and (code in codes.get("values", [])) == (codes.get("operator") == "In")
        for name, code in _exit_codes(pod)
    )


def _exit_codes(pod: dict[str, Any]) -> list[tuple[str, int]]:
    """Return the name and exit code of each container that failed."""
    statuses = [*items(pod, "status", "containerStatuses"), *items(pod, "status", "initContainerStatuses")]
    exit_codes = [
        (str(each.get("name")), mapping(each, "state", "terminated").get("exitCode")) for each in statuses
    ]
    return [(name, code) for name, code in exit_codes if isinstance(code, int) and code != 0]
