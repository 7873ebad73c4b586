"""Pods that have ended, with the logs of torchrun and of their ranks."""

import bundles
from bundles import at

REPORT = [
    "E1121 05:00:12.1 64 torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: {code}) "
    "local_rank: 0 (pid: 68) of binary: /usr/bin/python3.13",
    "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
    "============================================================",
    "/workspace/faulty.py FAILED",
    "Failures:",
    "  <NO_OTHER_FAILURES>",
    "Root Cause (first observed failure):",
    "[0]:",
    "  time      : 2026-11-21_05:00:12",
    "  rank      : {rank} (local_rank: 0)",
    "  exitcode  : {code} (pid: 68)",
    "============================================================",
    "===== KONDUKTOR: Running task took 26 seconds and finished with exit code: {shell} =====",
]
HUNG = [
    "[rank 1] step 6 loss 0.5",
    "Timeout (0:00:27)!",
    "Thread 0x00007f4d7ed7f6c0 (most recent call first):",
    '  File "/usr/lib/python3.13/threading.py", line 994 in run',
    "",
    "Thread 0x00007f4d8817c780 (most recent call first):",
    '  File "/usr/lib/python3.13/threading.py", line 359 in wait',
    '  File "/workspace/faulty.py", line 70 in _wait_for_ever',
    '  File "/workspace/multinode.py", line 160 in on_step',
]


def stamped(lines, **values):
    return [f"{at(11, True)} {line.format(**values) if values else line}" for line in lines]


def says(job, index, lines, code=1, shell=1):
    job.logs[job.pod_name(index)] = stamped(lines) + stamped(REPORT, rank=index, code=code, shell=shell)


def failing():
    """A job whose pods have not ended yet, with cut-off ground truth."""
    job = bundles.healthy()
    job.drop("workload", 2)
    job.drop("jobset", 2)
    for index in range(2):
        job.drop_pod(index, after=10)
        job.truth[index] = job.rows(index)[:4]
    return job


IN_CLIENT = [
    "pluto: Operation: create: attempt 3/5: connection error from http://tracker: ConnectTimeout: timed out",
    "Timeout (0:00:27)!",
    "Thread 0x00007f4d8817c780 (most recent call first):",
    '  File "/usr/lib/python3.13/socket.py", line 849 in create_connection',
    '  File "/usr/local/lib/python3.13/dist-packages/httpcore/_backends/sync.py", line 208 in connect_tcp',
    '  File "/usr/local/lib/python3.13/dist-packages/httpx/_client.py", line 1014 in _send_single_request',
    '  File "/usr/local/lib/python3.13/dist-packages/pluto/iface.py", line 548 in _try',
    '  File "/workspace/multinode.py", line 160 in main',
]
