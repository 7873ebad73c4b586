"""Start the process group of a script that torchrun runs, and name the cause when the ranks do not meet.

What PyTorch alone does is wait: for a name that does not exist, for a port that nobody opens, for a rank that
does not come. Here each of these has a limit and a cause.
"""

from __future__ import annotations

import atexit
import datetime
import os
import time
from collections.abc import Mapping
from typing import Any

from .allreduce import self_test
from .finding import CAUSES, FAILED, OK, advice_of, listed
from .names import Configuration, Names
from .variables import Environment, validate_environment
from .waiting import wait_for_master

NEEDED = ("RANK", "WORLD_SIZE", "MASTER_PORT")
TELL = 2.0
"""Seconds in which rank 0 keeps the store after its limit, so that the others name the cause as well."""
LEAVE = 0.5
"""Seconds before the interpreter ends."""


def failure(cause: str, text: str) -> RuntimeError:
    """Return the error of a cause: what was found, and what to do."""
    advice = advice_of(cause) if cause in CAUSES else ""
    return RuntimeError(f"{cause}: {text.rstrip('.')}. {advice}".rstrip())


def wait_for_rank_0(seconds: float) -> None:
    """Wait at most `seconds` until rank 0 can be reached. Raises RuntimeError with the cause.

    Rank 0 itself opens the port later, unless torchrun has done so. It waits until its name leads somewhere.
    """
    known = validate_environment()
    for finding in known.findings:
        if finding.status == FAILED:
            raise failure(finding.cause or "", finding.text)
    missing = [name for name in NEEDED if not os.environ.get(name)]
    if missing:
        text = f"{', '.join(missing)} not set: a process that torchrun starts has RANK and the others"
        raise failure("variables.rank", text)
    if os.environ["RANK"] != "0" or _agent_listens():
        waited = wait_for_master(deadline=seconds, greeting=False)
        if not waited:
            said = f"rank 0 was not reached within {seconds:.0f} s: {known.master_addr}: {waited.text}"
            raise failure(waited.cause or "peer.never_came", said)
    else:
        _wait_for_name(known, seconds)


def launch(ready: float, timeout: float, backend: str | None = None, verbose: bool = True) -> None:
    """Start the default process group and check it by an all-reduce. Raises RuntimeError with the cause.

    `ready`: seconds for rank 0, and then for all ranks, to come. `timeout`: seconds of PyTorch's own timeout.
    `backend`: nccl where CUDA is and gloo elsewhere, unless given. The process group stays.
    """
    try:
        import torch
        import torch.distributed as dist
    except ImportError as error:
        raise RuntimeError(f"unknown: PyTorch is not here: {error}") from None
    if not dist.is_initialized():
        wait_for_rank_0(ready)
        cuda = torch.cuda.is_available()
        try:
            kept = _all_come(dist, ready)
            if cuda:
                torch.cuda.set_device(int(os.environ.get("LOCAL_RANK") or 0))
            limit = datetime.timedelta(seconds=timeout)
            dist.init_process_group(backend or ("nccl" if cuda else "gloo"), timeout=limit)
            atexit.register(_leave)
        except RuntimeError as error:
            if str(error).startswith(tuple(f"{cause}: " for cause in CAUSES)):
                raise
            raise failure("allreduce.failed", f"{type(error).__name__}: {error}") from error
        del kept
    done = self_test(timeout)
    if done.status != OK:
        raise failure(done.cause or "unknown", done.text)
    if verbose and dist.get_rank() == 0:
        print(f"netcheck: {dist.get_world_size()} ranks have met ({dist.get_backend()})", flush=True)


def _leave() -> None:
    """Let gloo's threads drop the tensors of the last collective, for which they need the interpreter's lock.

    One that still waits for it aborts the process when the interpreter is gone (pytorch#179291), and hangs it
    where the group is destroyed, before PyTorch 2.8 (pytorch#154976).
    """
    time.sleep(LEAVE)


def _agent_listens() -> bool:
    """Whether torchrun itself opens rank 0's port, as it does unless its rendezvous forbids that."""
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def _wait_for_name(known: Environment, seconds: float) -> None:
    names, ends = Names(Configuration.read()), time.monotonic() + seconds
    while True:
        found = names.look_up(known.master_addr)
        if not found.cause:
            return
        if time.monotonic() >= ends:
            said = f"MASTER_ADDR {known.master_addr} leads nowhere after {seconds:.0f} s: {found.text}"
            raise failure(found.cause, said)
        time.sleep(0.2)


def _all_come(dist: Any, seconds: float) -> Any:
    """Wait at most `seconds` until every rank has come, and return the store in which they said so.

    Raises RuntimeError with the ranks that have not. On rank 0 the store has the port of the process group,
    which uses it too.
    """
    variables: Mapping[str, str] = os.environ
    rank, world = int(variables["RANK"]), int(variables["WORLD_SIZE"])
    store = dist.TCPStore(
        variables["MASTER_ADDR"],
        int(variables["MASTER_PORT"]),
        world,
        rank == 0 and not _agent_listens(),
        datetime.timedelta(seconds=max(1.0, seconds)),
        wait_for_workers=False,
        multi_tenant=True,
    )
    came = f"netcheck/{variables.get('TORCHELASTIC_RESTART_COUNT', '0')}"
    store.set(f"{came}/{rank}", os.uname().nodename)
    absent, ends = set(range(world)), time.monotonic() + seconds
    while absent:
        absent = {other for other in absent if not store.check([f"{came}/{other}"])}
        if absent and time.monotonic() >= ends:
            text = f"{listed(absent)} of {world} did not come within {seconds:.0f} s"
            if rank == 0:
                time.sleep(TELL)
            raise failure("peer.never_came", text)
        if absent:
            time.sleep(min(1.0, 0.02 * world**0.5))
    return store
