"""The ranks of one training: how they meet, what they agree on, and what they print."""

from __future__ import annotations

import atexit
import datetime
import os
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record

from . import gloo

REFUSED = 2
"""The exit code of a rank whose options or data are wrong, as of argparse: another start ends the same."""


class Refused(ValueError):
    """Options or data of the user that no training can be made of. The message says what is wrong."""


@dataclass(frozen=True)
class Ranks:
    """This process among the others."""

    rank: int
    world: int
    device: torch.device

    def say(self, tag: str, text: str) -> None:
        """Print a line with its tag: [DDP], [TRAIN], [EPOCH] or [DONE]."""
        _print(f"[{tag}] rank {self.rank}: {text}\n")

    def tell(self, tag: str, text: str) -> None:
        """Print a line once in each pod, because `kubectl logs` of a controller picks any of its pods."""
        if os.environ.get("LOCAL_RANK", "0") == "0":
            _print(f"[{tag}] {text}\n")

    def of_rank_0(self, value: Any) -> Any:
        """Return rank 0's value on every rank. It is a barrier too."""
        if self.world == 1:
            return value
        held = [value]
        dist.broadcast_object_list(held, src=0)
        return held[0]

    def sum(self, value: float) -> float:
        """Return the sum over all ranks, in float64."""
        if self.world == 1:
            return value
        held = torch.tensor([value], dtype=torch.float64, device=self.device)
        dist.all_reduce(held)
        return float(held)

    def every(self, value: Any) -> list[Any]:
        """Return the values of all ranks, by rank."""
        held: list[Any] = [value] * self.world
        if self.world > 1:
            dist.all_gather_object(held, value)
        return held


def meet(device: str, meeting: float, timeout: float) -> Ranks:
    """Join the others as torchrun's environment says; without it, be the only rank.

    `meeting`: seconds until all have met. `timeout`: seconds that a rank waits in a collective afterwards.
    Raises RuntimeError where a GPU is asked for and there is none, or an all-reduce is wrong. Raises Refused
    where GLOO_SOCKET_IFNAME names no interface of this pod.
    """
    cuda = torch.cuda.is_available() if device == "auto" else device == "cuda"
    if cuda and not torch.cuda.is_available():
        raise RuntimeError("--device cuda is asked for, and torch sees no CUDA device")
    local = int(os.environ.get("LOCAL_RANK", "0"))
    at = torch.device("cuda", local) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(at)
    if "RANK" not in os.environ:
        return Ranks(0, 1, at)
    if not cuda and (why := gloo.missing()):
        raise Refused(why)
    began = time.monotonic()
    # gloo's connections have no deadline of their own: where one gets lost, all would wait for ever.
    late = threading.Timer(meeting, _give_up, (meeting,))
    late.daemon = True
    late.start()
    dist.init_process_group("nccl" if cuda else "gloo", timeout=datetime.timedelta(seconds=timeout))
    ranks = Ranks(dist.get_rank(), dist.get_world_size(), at)
    name = torch.cuda.get_device_name(at) if cuda else "cpu"
    total, expected = ranks.sum(ranks.rank + 1.0), ranks.world * (ranks.world + 1) / 2
    late.cancel()
    if total != expected:
        raise RuntimeError(f"an all-reduce over {ranks.world} ranks gave {total}; {expected} is expected")
    if local == 0 and (noted := os.environ.get("TRAINING_MET")):
        with open(noted, "a") as file:  # training.sh counts the restarts that were of use
            file.write(f"{ranks.world}\n")
    restarts = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    ranks.say(
        "DDP",
        f"{socket.gethostname()} met {ranks.world} ranks on {name} in {time.monotonic() - began:.1f} s "
        f"(restart {restarts})",
    )
    return ranks


def ended_with(main: Callable[[], int]) -> NoReturn:
    """Run a rank's `main`, and end the process with its exit code: 2 where it refuses what the user gave.

    Any other error is 1 and a traceback. training.sh starts a rank that refused not again.

    gloo's connections are not taken down: its destructor waits for ranks that have gone before, some of them
    for ever (seen with 3 ranks on one host), and torchrun would never hear that this one has ended.
    """
    try:
        code = record(main)()
        if dist.is_initialized():
            # Rank 0 may hold the store that the others still talk to. NCCL would guess the GPU from the rank.
            cuda = dist.get_backend() == "nccl"
            dist.barrier(device_ids=[torch.cuda.current_device()] if cuda else None)
            if code == 0 and dist.get_rank() == 0 and (ended := os.environ.get("TRAINING_ENDED")):
                Path(ended).touch()  # a node that comes back later has nobody to meet (training.sh)
            if cuda:
                dist.destroy_process_group()
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except Refused as error:
        _print(f"[DDP] rank {os.environ.get('RANK', '0')}: {error}\n")
        code = REFUSED
    except BaseException:
        traceback.print_exc()
        code = 1
    if code == REFUSED and (noted := os.environ.get("TRAINING_REFUSED")):
        Path(noted).touch()
    atexit._run_exitfuncs()  # what others registered: trackers, a recorder
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def same_bits() -> None:
    """Let a GPU compute the same bits each time. Called before its first matrix product.

    Otherwise the gradients of an embedding and of attention are summed in the order in which threads come by,
    and a run that was killed ends with other weights than one that was not. For an operation that has no such
    way PyTorch raises RuntimeError, with its name.
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False


def _give_up(seconds: float) -> None:
    """End the process, so that torchrun starts all ranks again."""
    rank, world = os.environ["RANK"], os.environ["WORLD_SIZE"]
    _print(
        f"[DDP] rank {rank}: {world} ranks have not met in {seconds:.0f} s; torchrun may start them again\n"
    )
    os._exit(1)


def _print(line: str) -> None:
    """Write a line at once: print() writes its end by itself, and lines of several ranks would mix."""
    sys.stdout.write(line)
    sys.stdout.flush()
