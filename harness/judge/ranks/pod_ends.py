"""Determine how each node's pod ended, and which pod failed first."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable
from dataclasses import replace

from harness.core.causes import CauseId
from harness.core.clock import seconds
from harness.evidence.kubernetes import gpu_nodes
from harness.evidence.kubernetes.objects import ObjectState, Pod, items, mapping, termination
from harness.evidence.schema.columns import Columns
from harness.evidence.schema.ground_truth import TruthRow
from harness.judge import rank_words
from harness.judge.case import Case
from harness.judge.cluster import kubelet_kills, kubelet_rejections, pod_deletion
from harness.judge.finding import LATE, listed
from harness.judge.logs import error_patterns as log_clues
from harness.judge.logs import known_errors, lost_peers
from harness.judge.logs.error_patterns import Clues
from harness.judge.logs.stacks import Stack
from harness.judge.pod_end import End
from harness.judge.ranks import (
    crash_advice,
    exit_codes,
    launcher_failures,
    removal_events,
    startup_variables,
    timeout_command,
)
from harness.judge.ranks.exit_signals import signal_name, signal_of

OF_ITSELF = (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL)
"""Signals that usually result from a fault in the process itself. Other processes rarely send these
signals."""
_TAKEN_DOWN = (128 + signal.SIGTERM, 128 + signal.SIGKILL)
"""Exit codes of a container that the kubelet stopped with SIGTERM or SIGKILL.

If torchrun reports a failed worker, the exit code in its report counts instead.
"""
_GPU_CAUSES: tuple[CauseId, ...] = ("gpu.ecc", "gpu.lost", "gpu.nvlink", "gpu.driver")
"""Causes for which PyTorch's NCCL watchdog terminates a rank with SIGABRT."""
_WITHOUT_GPU: tuple[CauseId, ...] = ("gpu.absent", "gpu.driver")
"""Causes for ranks that cannot use a GPU. Such a rank's pod may not have requested a GPU."""
_WITH_A_DRIVER = re.compile(
    r"system not yet initialized|driver on your system is too old|[Dd]river/library version mismatch"
    r"|forward compatibility was attempted|unsupported display driver|PTX was compiled|API call is not supp"
)
"""Pattern for errors that occur only if a GPU driver is loaded.

A pod that requests no GPU can still see the GPUs of its node if NVIDIA's container runtime is the default and
the image sets NVIDIA_VISIBLE_DEVICES.
"""
_WITH_OWN_ADVICE: tuple[CauseId, ...] = (
    *_WITHOUT_GPU,
    *("rank.write_failed", "rendezvous.unreachable", "address.family"),
    *("variables.missing", "variables.master_addr", "variables.master_port"),
)
"""Causes for which the advice depends on the error message."""
_REQUEST_ADVICE = (
    "request GPUs: set the container's nvidia.com/gpu limit, or konduktor's resources.accelerators"
)
_FAULT_ADVICE = "check the log or a core dump for a fault in the rank's code or libraries"
_BUS_ADVICE = (
    "check whether /dev/shm is full (mount an emptyDir with medium: Memory), or a mapped file was truncated"
)
_KILLED_ADVICE = (
    "unless somebody sent SIGKILL, the kernel did when the container's memory ran out. The kernel can kill "
    "one process of a container, and the pod's status then does not show OOMKilled. Compare the memory "
    "limit with what the ranks and their DataLoader workers use, and look at `dmesg` on the node; otherwise, "
    "find out who sent the signal: `kubectl get events`"
)
_WATCHDOG_ADVICE = (
    "PyTorch ended this rank because another rank did not respond: find out in the other logs what that rank "
    "did; if it saved a checkpoint or evaluated for so long, raise `timeout` of init_process_group"
)
TORCHRUN_FAILED = 1
"""Exit code of torchrun after a signal terminated it, if torchrun is the container's main process."""
_OOM = "the kernel killed a process of its container (out of memory)"
CLUE_LINES = 600
"""Number of lines at the end of a log that are searched for the cause of a failure. PyTorch writes a C++
stack of 30 lines for each socket error, and several such stacks after a rank has lost the rendezvous
store."""
LOST_CONTAINER = 255
"""Exit code that containerd reports for a container that ended while containerd was not running."""
_DEADLINE_ADVICE = "raise activeDeadlineSeconds in the pod template, or find where the ranks hang"
_LOST_ADVICE = "check whether the node was rebooted: `kubectl get events -n default` lists it for an hour"
_CONTROLLER_ADVICE = "read the job's conditions: its controller stopped the pod"
_NOT_0_ADVICE = "exit with a nonzero code on SIGTERM, so that the Job does not count the rank as completed"
_FINALIZATION_ADVICE = (
    "end the script with torch.distributed.barrier() and destroy_process_group(): otherwise a gloo thread "
    "that still holds a tensor can abort the process while Python exits (pytorch#179291)"
)
TEARDOWN_ADVICE = (
    "call torch.distributed.barrier() right before destroy_process_group(), which before PyTorch 2.8 waits "
    "forever for a gloo thread that still holds a tensor (pytorch#154976)"
)


def _logged(case: Case, ranks: Iterable[int]) -> bool:
    """Return whether any of the ranks logged a point, which is possible only after the rendezvous."""
    return any(
        isinstance(line, TruthRow | Columns) for rank in ranks for _, line in case.bundle.truth_parts(rank)
    )


def end_of(case: Case, index: int) -> End:
    """Return the `End` of a node's pod, as shown by the evidence."""
    ranks = case.ranks_of(index)
    pod = case.pods.get(index)
    if pod is None:
        return End(index, "unknown", ranks)
    if (limited := _at_its_own_deadline(case, pod)) is not None:
        return limited
    failure = pod_deletion.too_many_restarts(case, pod)
    terminated = (pod.last, failure) if failure else pod.container(case.launch.container, "terminated")
    if terminated is not None and (failure or not (case.launch.attached and _runs_again(case, pod))):
        return _terminated(case, pod, *terminated)
    is_ended = pod_deletion.ended_by_node(pod.last) or kubelet_rejections.of_running(pod) is not None
    if is_ended or pod_deletion.removed(pod) is not None:
        return _deleted(case, pod)
    if pod.container(case.launch.container, "running") is not None:
        return End(index, "running", ranks, evidence=(pod.last.ref,))
    return End(index, "waiting", ranks, evidence=(pod.last.ref,))


def _at_its_own_deadline(case: Case, pod: Pod) -> End | None:
    """Return the `End` for a pod that the kubelet terminated at the pod's activeDeadlineSeconds, or None.

    The kubelet may never report that the pod's container terminated (kubernetes/kubernetes#88613).
    """
    status = mapping(pod.last.object, "status")
    if status.get("phase") != "Failed" or status.get("reason") != "DeadlineExceeded":
        return None
    limit = mapping(pod.last.object, "spec").get("activeDeadlineSeconds")
    start = seconds(status.get("startTime"))
    at = start + limit if start is not None and isinstance(limit, int) else seconds(pod.last.received_at)
    its = rank_words.of_node(case, pod.index).its
    text = f"{case.place(pod.index)} ran longer than the activeDeadlineSeconds of {its} pod ({limit} s): "
    text += str(status.get("message") or "no message").rstrip(".")
    end = End(pod.index, "failed", case.ranks_of(pod.index), LATE if at is None else at)
    return replace(end, cause="run.timed_out", text=text, evidence=(pod.last.ref,), advice=_DEADLINE_ADVICE)


def _runs_again(case: Case, pod: Pod) -> bool:
    """Return whether the container is running again in the pod's last state, after it had terminated."""
    statuses = items(pod.last.object, "status", "containerStatuses")
    own = next((status for status in statuses if status.get("name") == case.launch.container), {})
    return isinstance(mapping(own, "state").get("running"), dict)


def _deleted(case: Case, pod: Pod) -> End:
    """Return the `End` for a pod that was deleted before its container's termination was recorded."""
    state = pod_deletion.removed(pod) or pod.last
    at, version = pod_deletion.requested_at(state), pod_deletion.version(state)
    end = End(pod.index, "deleted", case.ranks_of(pod.index), at, version, evidence=(state.ref,))
    if evicted := _evicted(case, pod, end):
        return evicted
    if pod_deletion.with_the_job(case, state):
        return _job_deleted(case, pod, end)
    if (deadline := pod_deletion.at_the_deadline(case, state)) is not None:
        return _out_of_time(case, pod, end, deadline)
    external = pod_deletion.by_somebody(case, pod, state)
    reason = "" if external else pod_deletion.by_its_controller(case, state)
    words = rank_words.of_node(case, end.index)
    text = f"{case.place(pod.index)} {words.was} deleted while {words.it} ran{reason and ', ' + reason}"
    end = replace(end, cause="rank.pod_deleted", text=text, follows=not external)
    if external:
        return _with_event(case, end)
    return replace(end, advice=_CONTROLLER_ADVICE * bool(reason), by_controller=bool(reason))


def _evicted(case: Case, pod: Pod, end: End) -> End | None:
    """Return the `End` for a pod evicted by the kubelet or the scheduler, or None if it was not evicted."""
    reason = pod_deletion.evicted(pod)
    if reason is None:
        return None
    stop_at = pod_deletion.asked_to_stop(pod) if case.launch.attached else LATE
    at = min(end.at, stop_at, pod_deletion.evicted_at(pod) or LATE)
    text = f"{case.place(pod.index)} {rank_words.was(case, end.index)} evicted: {reason}"
    is_detected_late = case.launch.attached and pod_deletion.by_lost_node(case, pod.last)
    end = replace(end, at=at, cause="rank.evicted", text=text, follows=False, detected_late=is_detected_late)
    return _with_event(case, end, reason)


def _with_event(case: Case, end: End, known: str = "") -> End:
    """Return a removed pod's `End` with the Event about the removal and with advice, if there are any."""
    event = removal_events.of_pod(case, end.index, end.at, known)
    text, refs = (f"{end.text}; {event.text}", (*end.evidence, event.evidence)) if event else ("", ())
    advice = removal_events.advice(text or end.text) or end.advice
    return replace(end, text=text or end.text, evidence=refs or end.evidence, advice=advice)


def _job_deleted(case: Case, pod: Pod, end: End) -> End:
    text = f"{case.place(pod.index)} {rank_words.was(case, end.index)} deleted with the {case.launch.kind}"
    return replace(end, cause="run.deleted", text=text, log_quote="", follows=True)


def _out_of_time(case: Case, pod: Pod, end: End, deadline: float) -> End:
    """Return the `End`, dated after the deadline, for a pod that its Job deleted at the Job's deadline."""
    text = f"{case.place(pod.index)} {rank_words.was(case, end.index)} stopped at the Job's deadline"
    return replace(end, at=max(end.at, deadline + 0.001), cause="run.timed_out", text=text, follows=True)


def _terminated(case: Case, pod: Pod, state: ObjectState, terminated: dict[str, object]) -> End:
    own, code = termination(terminated)[0], terminated.get("exitCode")
    code = code if isinstance(code, int) else None
    at = seconds(terminated.get("finishedAt")) or seconds(state.received_at) or LATE
    end = End(pod.index, "unknown", case.ranks_of(pod.index), at, evidence=(state.ref,))
    if code is None and own is None:
        return end
    log = case.bundle.log(pod.name, case.launch.container)
    clues = log_clues.read(case.bundle.tail(log, CLUE_LINES), log, len(end.ranks))
    clues = startup_variables.explained(case, pod.index, clues)
    ranks = [clues.rank] if clues.rank in end.ranks else end.ranks
    end = replace(end, stack=clues.stack, peer_absent=clues.peer_absent, follows=clues.of_a_peer)
    end = replace(end, clue=clues.cause, others_lost_peers=clues.others_lost_peers)
    absent = "could not be read" if case.launch.attached else "was not collected before its pod was gone"
    quote = clues.log_quote if case.bundle.has(log) else f"its log {absent}"
    end = replace(end, log_quote=quote, retried=clues.retried)
    if code or own:
        signalled = 128 + clues.torchrun_signal if clues.torchrun_signal and code == TORCHRUN_FAILED else None
        exit_code = clues.exit_code or signalled or code or own
        end = replace(end, state="failed", ranks=ranks, exit_code=exit_code)
        return _failed(case, pod, end, clues, terminated)
    if (bad_end := exit_codes.bad_end(case, pod.index)) is not None:
        return _masked(case, pod, end, bad_end, terminated)
    if (killed_end := _killed_with_0(case, pod, end, terminated)) is not None:
        return killed_end
    failure = launcher_failures.of_pod(case, pod.index, clues, ranks)
    if failure is None or _tests_failed(case, pod):
        return replace(end, state="succeeded", exit_code=0, follows=False)
    text = f"{case.place(pod.index)} exited with code 0 even though {failure.text}"
    end = replace(end, state="failed", ranks=failure.ranks, exit_code=failure.code)
    return replace(end, cause="rank.exit_code_masked", text=text, evidence=(*end.evidence, *failure.evidence))


def _killed_with_0(case: Case, pod: Pod, end: End, terminated: dict[str, object]) -> End | None:
    """Return the `End` for a rank that exited with 0 although its pod was stopped or out of memory, or None.

    After an eviction or deletion, it is not known whether the rank had finished its work, although its Job
    counts as completed (kubernetes/kubernetes#90636).
    """
    end = replace(end, state="failed", follows=False)
    if terminated.get("reason") == "OOMKilled":
        text = f"{case.place(pod.index)} exited with code 0 even though {_OOM}"
        return replace(end, cause="rank.oom_killed", text=text)
    stop_at, reason = min(end.at, pod_deletion.asked_to_stop(pod)), pod_deletion.evicted(pod)
    is_earlier = stop_at + pod_deletion.WHOLE_SECONDS < end.at
    if not case.launch.attached or not (is_earlier or pod_deletion.stopped_by_node(pod, end.at)):
        return None
    words, outcome = rank_words.of_node(case, end.index), f"evicted ({reason})" if reason else "deleted"
    text = f"{case.place(pod.index)} {words.was} {outcome} while {words.it} ran, and exited with code 0"
    cause: CauseId = "rank.evicted" if reason else "rank.pod_deleted"
    return replace(end, at=stop_at, cause=cause, text=text, advice=_NOT_0_ADVICE)


def _tests_failed(case: Case, pod: Pod) -> bool:
    """Return whether this pod's last acceptance report is FAIL or UNKNOWN.

    The test script then still exits with 0 (harness/launch/files/acceptance.sh), because the report decides
    the verdict.
    """
    reports = [one.report for _, one in case.bundle.accepted() if one.pod == pod.name and one.report]
    return bool(reports) and reports[-1].verdict in ("FAIL", "UNKNOWN")


def _masked(case: Case, pod: Pod, end: End, bad_end: exit_codes.BadEnd, terminated: dict[str, object]) -> End:
    """Return the `End` for a pod that exited with 0 although one of its ranks failed."""
    if terminated.get("reason") == "OOMKilled" and bad_end.code in (None, -signal.SIGKILL):
        note = "" if bad_end.cause == "rank.oom_killed" else f": {_OOM}"
        bad_end = replace(bad_end, cause="rank.oom_killed", text=bad_end.text + note, of_a_peer=False)
    text = f"{bad_end.text} (pod {pod.name} on node {pod.node})"
    if bad_end.cause != "rank.exited_early":
        text = f"{case.place(pod.index)} exited with code 0 even though {bad_end.text}"
    at = min(end.at, bad_end.at)
    end = replace(
        end, state="failed", ranks=bad_end.ranks, cause=bad_end.cause, text=text, log_quote=bad_end.why, at=at
    )
    follows = bad_end.of_a_peer or _aborted_for_a_peer(end, signal_of(bad_end.code))
    return replace(end, exit_code=bad_end.code, follows=follows, evidence=(*end.evidence, bad_end.ref))


def _failed(case: Case, pod: Pod, end: End, clues: Clues, terminated: dict[str, object]) -> End:
    place, code, number = case.place(pod.index), terminated.get("exitCode"), signal_of(end.exit_code)
    removed = pod_deletion.while_it_ran(case, pod)
    end = replace(end, evidence=(*end.evidence, *clues.refs))
    if terminated.get("reason") == "OOMKilled":
        text = f"{place} {rank_words.was(case, end.index)} killed: out of memory (exit code {end.exit_code})"
        return replace(end, cause="rank.oom_killed", text=text, follows=False)
    of_torchrun = number == clues.torchrun_signal == signal.SIGTERM
    by_signal = number in {signal.SIGTERM, signal.SIGKILL} and (code in _TAKEN_DOWN or of_torchrun)
    unexplained = _unexplained(case, pod, clues, code, number)
    if removed is not None and end.at < pod_deletion.requested_at(removed):
        removed = None if case.launch.attached or unexplained else removed
    end = replace(end, unexplained=unexplained)
    if removed is not None and (by_signal or unexplained or number == signal.SIGTERM):
        return _pod_deleted(case, pod, end, removed)
    # When the kubelet evicts a pod, it stops the containers but does not delete the pod.
    stopped = unexplained and (
        pod_deletion.asked_to_stop(pod) <= end.at or pod_deletion.stopped_by_node(pod, end.at)
    )
    if (by_signal or stopped) and (evicted := _evicted(case, pod, end)):
        return evicted
    cause_end = _not_located(case, end, terminated) or _killed_by_kubelet(case, end, terminated)
    cause_end = cause_end or _from_outside(case, pod, end, clues, code)
    cause_end = cause_end or _lost(case, end, clues, code)
    if cause_end is not None:
        return cause_end
    if clues.stack is not None and clues.stack.after:
        return _without_progress(case, end, clues.stack, clues.log)
    return _exited(case, end, clues, terminated)


def _unexplained(case: Case, pod: Pod, clues: Clues, code: object, number: int) -> bool:
    """Return whether SIGTERM may have ended a container whose log does not show the reason for its end.

    After SIGTERM, torchrun exits with 1. The programs of attached jobs can exit with any code.
    """
    if not case.bundle.has(case.bundle.log(pod.name, case.launch.container)):
        return case.launch.attached or code == TORCHRUN_FAILED
    return case.launch.attached and clues.no_error and number not in OF_ITSELF


def _not_located(case: Case, end: End, terminated: dict[str, object]) -> End | None:
    """Return the `End` for a container that the kubelet could not find when its pod ended, or None."""
    if terminated.get("reason") != "ContainerStatusUnknown":
        return None
    message = terminated.get("message") or "no message"
    text = f"the kubelet lost the container of {case.place(end.index)}: {message}"
    return replace(end, cause="rank.killed", text=text, follows=True, advice=_LOST_ADVICE)


def _killed_by_kubelet(case: Case, end: End, terminated: dict[str, object]) -> End | None:
    """Return the `End` for a container that the kubelet killed because a probe or hook failed, or None."""
    number = signal_of(end.exit_code)
    if number not in {signal.SIGTERM, signal.SIGKILL}:
        return None
    kill = kubelet_kills.of_container(case, end.index, terminated)
    if kill is None:
        return None
    ended = f"{rank_words.was(case, end.index)} ended by {signal_name(number)}, because {kill.reason}"
    text = f"{case.place(end.index)} {ended}"
    refs = (*end.evidence, kill.evidence)
    return replace(end, cause="rank.killed", text=text, evidence=refs, advice=kill.advice, follows=False)


def _lost(case: Case, end: End, clues: Clues, code: object) -> End | None:
    """Return the `End` for a container that its node may have lost, for example in a reboot, or None."""
    if not case.launch.attached or code != LOST_CONTAINER or clues.cause:
        return None
    text = f"{case.place(end.index)} exited with code {code}, which containerd also reports for a container "
    text += "that it has lost"
    return replace(end, cause="rank.killed", text=text, follows=True, advice=_LOST_ADVICE)


def _from_outside(case: Case, pod: Pod, end: End, clues: Clues, code: object) -> End | None:
    """Return the `End` for a container whose command was ended by a signal or by `timeout`, or None."""
    place, number = case.place(pod.index), signal_of(end.exit_code)
    limit = timeout_command.of_pod(case, pod.index, end.at, code if isinstance(code, int) else None)
    if limit:
        text = f"{place} exited with code {code}: {limit} in its script ended it"
        advice = "raise the limit of `timeout`, or look in the log for what takes so long"
        return replace(end, cause="rank.killed", text=text, follows=False, advice=advice)
    if not number:
        return None
    text = f"{place} {rank_words.was(case, end.index)} ended by {signal_name(number)}"
    if number == signal.SIGKILL and (oom_ranks := exit_codes.out_of_memory(case, pod.index)):
        text = f"{text}: {_OOM}"
        return replace(end, ranks=oom_ranks, cause="rank.oom_killed", text=text, follows=False)
    text += f" in {end.stack.place}" if end.stack is not None and end.stack.fatal else ""
    follows = number == signal.SIGTERM or _aborted_for_a_peer(end, number)
    of_itself = number in OF_ITSELF and not follows
    if of_itself and clues.cause in _GPU_CAUSES:
        text, refs = f"{text}: {clues.line}", (*end.evidence, f"{clues.log}:{clues.line_number}")
        return replace(end, cause=clues.cause, text=text, log_quote="", evidence=refs, follows=False)
    own = _KILLED_ADVICE if number == signal.SIGKILL else ""
    own = _WATCHDOG_ADVICE if _aborted_for_a_peer(end, number) else own
    if of_itself:
        own = known_errors.advice(clues.last) or (_BUS_ADVICE if number == signal.SIGBUS else _FAULT_ADVICE)
    if number == signal.SIGABRT and _script_ended(case, pod.index):
        text += ", after its script had ended with exit code 0"
        own, follows = _FINALIZATION_ADVICE, False
    return replace(end, cause="rank.killed", text=text, follows=follows, advice=own)


def _aborted_for_a_peer(end: End, number: int) -> bool:
    """Return whether, according to the log, NCCL's watchdog sent SIGABRT because the rank lost a peer."""
    return number == signal.SIGABRT and end.follows


def _script_ended(case: Case, index: int) -> bool:
    """Return whether each rank's Python script in the pod exited with 0, even if its process failed later."""
    of_pod = case.processes.get(index)
    ends = [life.ends for life in of_pod.lives] if of_pod else []
    return bool(ends) and all(each and (each[-1].how, each[-1].code) == ("exit", 0) for each in ends)


def _without_progress(case: Case, end: End, stack: Stack, log: str) -> End:
    """Return the `End` for a rank that stopped itself because it had made no progress for a given time."""
    text = f"{case.place(end.index)} made no progress for {stack.after}"
    if stack.in_client:
        return without_tracker(end, f"{log}:{stack.number}", text)
    # Cite only the stack and the pod's state, because the last log line was written before the hang.
    refs = (f"{log}:{stack.number}", end.evidence[0])
    text = f"{text} and {rank_words.was(case, end.index)} in {stack.place}"
    end = replace(end, cause="rank.hung", text=text, evidence=refs)
    if stack.in_teardown:
        end = replace(end, advice=TEARDOWN_ADVICE)
    return replace(end, follows=stack.in_collective, peer_absent=stack.in_collective)


def without_tracker(end: End, ref: str, text: str) -> End:
    """Return the `End` for a rank whose Pluto client was waiting for a response from the tracker.

    `ref` refers to the rank's stack in the bundle.
    """
    assert end.stack is not None
    it, frame = rank_words.of(end.ranks).it, end.stack.frames[0]
    text += f": {it} waited for the tracker in a request of Pluto's client, in {frame}"
    quote = f"its client logged: {end.retried}" if end.retried else ""
    refs = (ref, end.evidence[0])
    end = replace(end, text=text, log_quote=quote, evidence=refs, follows=False, peer_absent=False)
    return replace(end, cause="rank.tracker_unreachable")


def _exited(case: Case, end: End, clues: Clues, terminated: dict[str, object]) -> End:
    """Return the `End` for a container that exited on its own with a nonzero code."""
    place, code = case.place(end.index), terminated.get("exitCode")
    text = f"{place} exited with code {end.exit_code}"
    if clues.exit_code and code not in (None, 0, clues.exit_code):
        text += f" (torchrun then ended with {code})"
    if not code:
        text = f"{place}: the container exited with 0, but the command exited with {end.exit_code} "
        text += "(konduktor's termination message)"
    at_any_time = clues.cause in log_clues.AT_ANY_TIME
    if clues.cause and (at_any_time or not _logged(case, case.ranks_of(end.index))):
        refs = (*end.evidence, f"{clues.log}:{clues.line_number}")
        text = f"{text}: {clues.line}{_shares_ports(case, end.index) if clues.cause == 'port.taken' else ''}"
        end = replace(end, cause=clues.cause, text=text, log_quote="")
        end = replace(end, follows=clues.peer_absent or lost_peers.CLOSED in clues.line)
        advice = known_errors.advice(clues.line) if clues.cause in _WITH_OWN_ADVICE else end.advice
        end = replace(end, evidence=refs, advice=advice)
        is_absent = clues.cause in _WITHOUT_GPU and not _WITH_A_DRIVER.search(clues.line)
        if is_absent and gpu_nodes.requests_none(case.pods[end.index].last.object):
            text = f"{text}; its pod requests no GPU"
            end = replace(end, cause="gpu.absent", text=text, advice=_REQUEST_ADVICE)
        return end
    if known_errors.is_killed_worker(clues.last) and exit_codes.out_of_memory(case, end.index, end.exit_code):
        return replace(end, cause="rank.oom_killed", text=f"{text}: {_OOM}", follows=False)
    advice = end.advice or crash_advice.advice(case, end.index, clues.last)
    # If a rank cannot reach a peer after it has logged points, the peer did not come back after a failure.
    follows = end.follows or clues.cause in ("rendezvous.timeout", "rendezvous.unreachable")
    return replace(end, cause="rank.crashed", text=text, advice=advice, follows=follows)


def _shares_ports(case: Case, index: int) -> str:
    """Return a clause about the host ports that a pod with hostNetwork shares with others, or ""."""
    on_host = {
        at: pod for at, pod in case.pods.items() if mapping(pod.last.object, "spec").get("hostNetwork")
    }
    own = on_host.get(index)
    other_pods = [pod.name for at, pod in on_host.items() if own and at != index and pod.node == own.node]
    if own is None:
        return ""
    if not other_pods:
        return f"; the pod has hostNetwork, so it uses the ports of node {own.node}"
    return f"; with hostNetwork it shares the ports of node {own.node} with {listed(other_pods)}"


def _pod_deleted(case: Case, pod: Pod, end: End, removed: ObjectState) -> End:
    """Return the `End` for a container whose pod was deleted while the container was running."""
    place, words = case.place(pod.index), rank_words.of_node(case, pod.index)
    number = signal_of(end.exit_code)
    outcome = f"ended by {signal_name(number)}" if number else f"ended with exit code {end.exit_code}"
    at, version = min(end.at, pod_deletion.requested_at(removed)), pod_deletion.version(removed)
    end = replace(end, at=at, deletion=version, evidence=(removed.ref, *end.evidence))
    if evicted := _evicted(case, pod, end):
        return evicted
    if pod_deletion.with_the_job(case, removed):
        return _job_deleted(case, pod, end)
    if (deadline := pod_deletion.at_the_deadline(case, removed)) is not None:
        return _out_of_time(case, pod, end, deadline)
    if pod_deletion.by_somebody(case, pod, removed):
        text = f"{place} {words.was} deleted while {words.it} ran, and {outcome}"
        return _with_event(case, replace(end, cause="rank.pod_deleted", text=text, follows=False))
    reason = pod_deletion.by_its_controller(case, removed)
    text = f"{place} {words.was} stopped{reason and ' ' + reason}, and {outcome}"
    advice = _CONTROLLER_ADVICE * bool(reason)
    return replace(
        end, cause="rank.killed", text=text, follows=True, advice=advice, by_controller=bool(reason)
    )


def ends(case: Case) -> dict[int, End]:
    """Return the `End` of each expected node's pod, by node index."""
    return {index: end_of(case, index) for index in range(case.expected.num_nodes)}
