"""Initialize the process group in a script that torchrun runs, and report why ranks cannot connect.

PyTorch itself keeps waiting if a name does not exist, a port is never opened, or a rank never starts. Here,
each wait has a time limit, and the error contains the cause.
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
from .name_resolution import Configuration, Names
from .variables import Environment, validate_environment
from .waiting import wait_for_master

NEEDED = ("RANK", "WORLD_SIZE", "MASTER_PORT")
TELL = 2.0
"""Seconds for which rank 0 keeps the store open after a timeout, so that other ranks report the cause too."""
LEAVE = 0.5
"""Seconds to wait before the interpreter exits, so that gloo's threads can finish."""


def failure(cause: str, text: str) -> RuntimeError:
    """Return an error that contains the cause, its text and its advice."""
    advice = advice_of(cause) if cause in CAUSES else ""
    return RuntimeError(f"{cause}: {text.rstrip('.')}. {advice}".rstrip())


def wait_for_rank_0(seconds: float) -> None:
    """Wait up to `seconds` until rank 0 is reachable. If it is not, raise RuntimeError with the cause.

    If this process is rank 0 and opens the port itself later, only wait until MASTER_ADDR resolves.
    """
    environment = validate_environment()
    for finding in environment.findings:
        if finding.status == FAILED:
            raise failure(finding.cause or "", finding.text)
    if os.environ.get("MASTER_ADDR", "").startswith("["):
        address = os.environ["MASTER_ADDR"]
        text = f"MASTER_ADDR={address} has brackets, and PyTorch would look up the name with them"
        raise failure("variables.master_addr", f"{text}: set MASTER_ADDR={address.strip('[]')}")
    missing = [name for name in NEEDED if not os.environ.get(name)]
    if missing:
        text = f"expected {', '.join(missing)} to be set: start this script with torchrun, which sets them"
        raise failure("variables.rank", text)
    if os.environ["RANK"] != "0" or _agent_listens():
        result = wait_for_master(deadline=seconds, greeting=False)
        if not result:
            message = (
                f"rank 0 was not reached within {seconds:.0f} s: {environment.master_addr}: {result.text}"
            )
            raise failure(result.cause or "peer.never_came", message)
    else:
        _wait_for_name(environment, seconds)


def launch(ready: float, timeout: float, backend: str | None = None, verbose: bool = True) -> None:
    """Initialize the default process group, and check it with an all-reduce.

    `ready` is the number of seconds within which rank 0 must start. All other ranks must then register within
    the same number of seconds. `timeout` is PyTorch's timeout for collectives in seconds. `backend` defaults
    to nccl with CUDA, and to gloo without CUDA. The process group remains initialized. Raises RuntimeError
    with the cause.
    """
    try:
        import torch
        import torch.distributed as dist
    except ImportError as error:
        raise RuntimeError(f"unknown: PyTorch cannot be imported: {error}") from None
    if not dist.is_initialized():
        wait_for_rank_0(ready)
        cuda = torch.cuda.is_available()
        try:
            store = _all_come(dist, ready)
            if cuda:
                torch.cuda.set_device(int(os.environ.get("LOCAL_RANK") or 0))
            limit = datetime.timedelta(seconds=timeout)
            dist.init_process_group(backend or ("nccl" if cuda else "gloo"), timeout=limit)
            atexit.register(_leave)
        except RuntimeError as error:
            if str(error).startswith(tuple(f"{cause}: " for cause in CAUSES)):
                raise
            raise failure("allreduce.failed", f"{type(error).__name__}: {error}") from error
        del store
    finding = self_test(timeout)
    if finding.status != OK:
        raise failure(finding.cause or "unknown", finding.text)
    if verbose and dist.get_rank() == 0:
        print(f"netcheck: {dist.get_world_size()} ranks have joined ({dist.get_backend()})", flush=True)


def _leave() -> None:
    """Give gloo's threads time to release the tensors from the last collective. They need the GIL for this.

    A thread that is still waiting for the GIL aborts the process when the interpreter exits (pytorch#179291).
    Before PyTorch 2.8, it makes the process hang when the group is destroyed (pytorch#154976).
    """
    time.sleep(LEAVE)


def _agent_listens() -> bool:
    """Return whether torchrun's agent opens rank 0's port. Otherwise, rank 0 itself opens it."""
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def _wait_for_name(environment: Environment, seconds: float) -> None:
    names, deadline = Names(Configuration.read()), time.monotonic() + seconds
    while True:
        lookup = names.look_up(environment.master_addr)
        if not lookup.cause:
            return
        if time.monotonic() >= deadline:
            message = (
                f"MASTER_ADDR {environment.master_addr} did not resolve within {seconds:.0f} s: {lookup.text}"
            )
            raise failure(lookup.cause, message)
        time.sleep(0.2)


def _all_come(dist: Any, seconds: float) -> Any:
    """Wait up to `seconds` until every rank has registered in a store, and return the store.

    After this time, raise RuntimeError and list the ranks that have not registered. On rank 0, the store
    listens on the process group's port, and the process group later uses the same store.
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
    prefix = f"netcheck/{variables.get('TORCHELASTIC_RESTART_COUNT', '0')}"
    store.set(f"{prefix}/{rank}", os.uname().nodename)
    missing, deadline = set(range(world)), time.monotonic() + seconds
    while missing:
        missing = {other for other in missing if not store.check([f"{prefix}/{other}"])}
        if missing and time.monotonic() >= deadline:
            text = f"{listed(missing)} of {world} did not register within {seconds:.0f} s"
            if rank == 0:
                time.sleep(TELL)
            raise failure("peer.never_came", text)
        if missing:
            time.sleep(min(1.0, 0.02 * world**0.5))
    return store
