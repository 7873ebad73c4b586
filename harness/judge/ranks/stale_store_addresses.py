"""Find torchrun restarts that failed because the ranks read addresses from the previous attempt.

From PyTorch 2.5 on, the ranks share torchrun's store, which outlives a restart. A rank can then read an
address that its peer wrote in the previous attempt (pytorch#135712).
"""

from __future__ import annotations

import re

from harness.evidence.worlds import PodProcesses, RankLife
from harness.judge.case import Case

_CONNECTING = re.compile(r"connectFullMesh|[Cc]onnect|[Ss]ocket|NCCL|[Tt]imed? ?out|Broken pipe")
ADVICE = (
    "set TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 for torchrun: the restarted ranks used the store of the "
    "previous attempt, and can read old addresses from it (pytorch#135712)"
)


def advice(case: Case, index: int) -> str:
    """Return the advice if a restarted rank on the node could not connect to its peers, or ""."""
    of_pod = case.processes.get(index)
    lives = of_pod.lives if of_pod else []
    return ADVICE if of_pod and any(_reads_old_addresses(of_pod, life) for life in lives) else ""


def _reads_old_addresses(of_pod: PodProcesses, life: RankLife) -> bool:
    """Return whether the rank failed to connect while using the same store as its earlier process."""
    own = life.processes[-1] if life.processes else None
    if own is None or own.group is not None or life.agent is None or len(life.agent.rounds) < 2:
        return False
    earlier_pids = {pid for one in life.agent.rounds[:-1] for pid, *_ in one.workers}
    ports = {
        process.env("MASTER_PORT") for process in of_pod.processes.values() if process.pid in earlier_pids
    }
    has_failed = any(end.code and _CONNECTING.search(end.error) for end in life.ends)
    return has_failed and own.env("MASTER_PORT") is not None and own.env("MASTER_PORT") in ports
