"""Process events of ranks that failed, for bundles whose run script hides or changes the exit code."""

import bundles
from process_events import PodEvents, recorded

from harness.launch import inits


def failing(job, code=1, how="exception", error="RuntimeError: boom", result="FAILED", index=1):
    """Record a rank that did not end well, in a pod that exits with 0."""
    recorded(job)
    for at in range(job.nodes):
        pod = PodEvents(job, at)
        pod.agent(7, f"--nnodes={job.nodes}")
        pod.workers(7, [(20, 0, at, job.nodes)], job.nodes)
        pod.rank(20, at, job.nodes)
        if at != index:
            pod.end(20)
            pod.result(7)
            continue
        if how:
            pod.end(20, code, how, error)
        if result:
            if result == "FAILED":
                pod.add("failed", 7, failures=[(20, 0, at, code, "To enable traceback see: …")])
            pod.result(7, result)
    return job


def plain(job, index=0):
    """Record that ranks run without torchrun, and return the events of a pod."""
    recorded(job)
    pods = [PodEvents(job, at) for at in range(job.nodes)]
    for at, pod in enumerate(pods):
        if at != index:
            pod.start(90, "python", argv=["python3", "other.py"], RANK=at, WORLD_SIZE=2)
            pod.add("group", 90, rank=at, world=2)
            pod.end(90)
    return pods[index]


def ran(pod, pid, code, *argv, ppid=1):
    pod.start(pid, "python", argv=["python3", *(argv or ("train.py",))], ppid=ppid, RANK=0, WORLD_SIZE=2)
    pod.add("group", pid, rank=0, world=2)
    pod.end(pid, code, "exception" if code else "exit")


def with_script(job, script):
    for kind, state in job.objects:
        if kind == "pod":
            command = ["sh", "-c", inits.WORKER, "sh", "bash", "-c", script]
            state.object["spec"]["containers"] = [{"name": bundles.CONTAINER, "command": command}]
    return job
