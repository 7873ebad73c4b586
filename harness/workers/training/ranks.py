"""Start and end a training job's ranks, and let them exchange values and print lines."""

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
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record

from . import gloo

REFUSED = 2
"""Exit code for invalid options or data, as in argparse. A restart would not help."""


class Refused(ValueError):
    """Raised if the user's options or data are invalid. The message gives the reason."""


@dataclass(frozen=True)
class Ranks:
    """This process's rank, and its communication with the other ranks."""

    rank: int
    world: int
    device: torch.device

    def say(self, tag: str, text: str) -> None:
        """Print a line with a tag: [DDP], [TRAIN], [EPOCH] or [DONE]."""
        _print(f"[{tag}] rank {self.rank}: {text}\n")

    def tell(self, tag: str, text: str) -> None:
        """Print a line once per pod, because `kubectl logs job/NAME` shows only one pod's log."""
        if os.environ.get("LOCAL_RANK", "0") == "0":
            _print(f"[{tag}] {text}\n")

    def of_rank_0(self, value: Any) -> Any:
        """Return rank 0's value on every rank. The call is also a barrier."""
        if self.world == 1:
            return value
        values = [value]
        dist.broadcast_object_list(values, src=0)
        return values[0]

    def sum(self, value: float) -> float:
        """Return the sum of all ranks' values, computed in float64."""
        if self.world == 1:
            return value
        total = torch.tensor([value], dtype=torch.float64, device=self.device)
        dist.all_reduce(total)
        return float(total)

    def every(self, value: Any) -> list[Any]:
        """Return the values of all ranks, in rank order."""
        values: list[Any] = [value] * self.world
        if self.world > 1:
            dist.all_gather_object(values, value)
        return values


def meet(device: str, meeting: float, timeout: float) -> Ranks:
    """Join the other ranks that torchrun started. Without torchrun, this process is the only rank.

    All ranks must join within `meeting` seconds. After that, a rank waits at most `timeout` seconds in a
    collective. Raises RuntimeError if a GPU is requested but not available, or if an all-reduce returns a
    wrong result. Raises Refused if GLOO_SOCKET_IFNAME does not match this pod's interfaces.
    """
    cuda = torch.cuda.is_available() if device == "auto" else device == "cuda"
    if cuda and not torch.cuda.is_available():
        raise RuntimeError("--device cuda is requested, but torch sees no CUDA device")
    local = int(os.environ.get("LOCAL_RANK", "0"))
    torch_device = torch.device("cuda", local) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(torch_device)
    if "RANK" not in os.environ:
        return Ranks(0, 1, torch_device)
    if not cuda and (reason := gloo.missing()):
        raise Refused(reason)
    start = time.monotonic()
    # gloo's connections have no timeout. Without a watchdog, ranks would wait forever for a lost connection.
    watchdog = threading.Timer(meeting, _give_up, (meeting,))
    watchdog.daemon = True
    watchdog.start()
    dist.init_process_group("nccl" if cuda else "gloo", timeout=datetime.timedelta(seconds=timeout))
    ranks = Ranks(dist.get_rank(), dist.get_world_size(), torch_device)
    name = torch.cuda.get_device_name(torch_device) if cuda else "cpu"
    total, expected = ranks.sum(ranks.rank + 1.0), ranks.world * (ranks.world + 1) / 2
    watchdog.cancel()
    if total != expected:
        raise RuntimeError(f"an all-reduce over {ranks.world} ranks gave {total}; expected {expected}")
    if local == 0 and (met_path := os.environ.get("TRAINING_MET")):
        with open(met_path, "a") as file:  # training.sh counts how often the ranks have joined.
            file.write(f"{ranks.world}\n")
    restarts = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    ranks.say(
        "DDP",
        f"{socket.gethostname()} joined {ranks.world} ranks on {name} in {time.monotonic() - start:.1f} s "
        f"(restart {restarts})",
    )
    return ranks


def ended_with(main: Callable[[], int]) -> NoReturn:
    """Run `main` as a rank, and exit with the code that it returns, or with 2 if it raises Refused.

    Any other error results in exit code 1 and a traceback. training.sh does not restart a rank that exits
    with 2.

    With gloo, the process group is not destroyed. Its destructor waits for ranks that have already exited,
    sometimes forever (observed with 3 ranks on one host), and torchrun would not notice that this rank has
    finished.
    """
    reason = "the options or the data are invalid; see the rank's log"
    try:
        code = record(main)()
        if dist.is_initialized():
            # Wait for the other ranks, because they may still use the store that rank 0 hosts. Without
            # device_ids, NCCL guesses the GPU.
            cuda = dist.get_backend() == "nccl"
            dist.barrier(device_ids=[torch.cuda.current_device()] if cuda else None)
            if code == 0 and dist.get_rank() == 0 and (ended_path := os.environ.get("TRAINING_ENDED")):
                # Without this file, a node that rejoins later would wait for ranks that have exited.
                Path(ended_path).touch()
            if cuda:
                dist.destroy_process_group()
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except Refused as error:
        reason = f"rank {os.environ.get('RANK', '0')}: {error}"
        _print(f"[DDP] {reason}\n")
        code = REFUSED
    except BaseException:
        traceback.print_exc()
        code = 1
    if code == REFUSED and (refused_path := os.environ.get("TRAINING_REFUSED")):
        with suppress(OSError):
            Path(refused_path).write_text(f"{reason}\n")
    atexit._run_exitfuncs()  # Run the callbacks that the trackers and a recorder have registered.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def same_bits() -> None:
    """Make GPU computations deterministic. Call this before the first matrix product.

    Otherwise, the order of the threads affects the sums in the gradients of embeddings and attention, and a
    resumed run ends with different weights from those of an uninterrupted run. If an operation has no
    deterministic algorithm, PyTorch raises RuntimeError with the operation's name.
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False


def _give_up(seconds: float) -> None:
    """Exit the process, so that torchrun restarts all ranks."""
    rank, world = os.environ["RANK"], os.environ["WORLD_SIZE"]
    _print(f"[DDP] rank {rank}: {world} ranks did not all join within {seconds:.0f} s; torchrun may retry\n")
    os._exit(1)


def _print(line: str) -> None:
    """Write a line in one call.

    print() writes the newline separately, so lines from several ranks could mix.
    """
    sys.stdout.write(line)
    sys.stdout.flush()
