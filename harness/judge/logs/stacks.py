"""Read the stacks that faulthandler dumped to a log when a rank's deadline expired or the rank ended.

    Timeout (0:00:38)!
    Thread 0x00007f31 (most recent call first):
      File "/workspace/faulty.py", line 70 in wait
    ...

The main thread is the last one in a dump. The dump of a single thread begins with "Stack".
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass

_HEADER = re.compile(r"^Timeout \((?P<after>[\d:.]+)\)!$|^Fatal Python error: (?P<fatal>.+)$")
_THREAD = re.compile(r"^((Current thread|Thread) 0x[0-9a-f]+ .*|Stack )\(most recent call first\):$")
_FRAME = re.compile(r'^  File "(?P<file>[^"]+)", line (?P<line>\d+) in (?P<name>.+)$')
_REST = re.compile(r"^  <no Python frame>$|^  \.\.\.$|^Extension modules: |^$")
_COLLECTIVE = ("/torch/distributed/", "/torch/nn/parallel/", "/torch/autograd/")
"""Parts of the paths to torch's collective code.

With DistributedDataParallel, the backward pass waits for the all-reduce inside the autograd engine.
"""
_NETWORK = ("/httpx/", "/httpcore/", "/urllib3/", "/socket.py", "/ssl.py")
_CLIENT = "-packages/pluto/"
_LIBRARY = re.compile(r"/lib(64)?/python3[^/]*/|/(site|dist)-packages/|^<frozen ")


@dataclass(frozen=True)
class Frame:
    file: str
    line: int
    name: str

    def __str__(self) -> str:
        return f"{self.name} ({self.file.rpartition('/')[2]} line {self.line})"


def _of_torch(frame: Frame) -> bool:
    """Return whether a stack frame is in torch's collective code, in an installation or a source tree."""
    return any(part in frame.file for part in _COLLECTIVE)


@dataclass(frozen=True)
class Stack:
    """The main thread's stack, innermost frame first. `number` is the log line in which the dump begins."""

    frames: tuple[Frame, ...]
    number: int
    after: str | None = None
    """The expired time limit, as printed by faulthandler, or None if the dump was not caused by a time
    limit."""
    fatal: str | None = None
    """The interpreter's fatal error, for example "Segmentation fault"."""

    @property
    def in_collective(self) -> bool:
        """Return whether the thread was waiting for peers in torch code that the rank's own code called."""
        return not self.in_teardown and any(map(_of_torch, self._inside()))

    @property
    def in_teardown(self) -> bool:
        """Return whether the thread was in destroy_process_group(), where torch waits for its own threads."""
        return any(frame.name == "destroy_process_group" for frame in self._inside())

    @property
    def in_client(self) -> bool:
        """Return whether the thread was waiting in the Pluto client for a response from the tracker."""
        network = False
        for frame in self._inside():
            network = network or any(part in frame.file for part in _NETWORK)
            if _CLIENT in frame.file:
                return network
        return False

    def _inside(self) -> Iterator[Frame]:
        """Yield the frames of library code that the rank's own code called, innermost first."""
        return itertools.takewhile(lambda frame: _of_torch(frame) or _LIBRARY.search(frame.file), self.frames)

    @property
    def place(self) -> str:
        """Return the thread's innermost frames, including the rank's own code, as text.

        For example: "wait (faulty.py line 70), under on_step (multinode.py line 121)".
        """
        own = [frame for frame in self.frames if not _LIBRARY.search(frame.file)]
        frames = own[:2] or list(self.frames[:2])
        if self.frames and own and self.frames[0] is not own[0]:
            frames = [self.frames[0], *own[:1]]
        return ", under ".join(map(str, frames)) or "no Python code"


def last(lines: list[tuple[int, str]]) -> tuple[Stack | None, set[int]]:
    """Return the stack in the last dump, and the line numbers of all dumps in the log."""
    stack: Stack | None = None
    dumped: set[int] = set()
    after = fatal = None
    begin, frames, inside = 0, list[Frame](), False
    for number, text in lines:
        header, frame = _HEADER.match(text), _FRAME.match(text)
        if header:
            begin, inside, frames = number, True, []
            after, fatal = header["after"], header["fatal"]
        elif _THREAD.match(text):
            begin, inside, frames = begin if inside else number, True, []
        elif inside and frame:
            frames.append(Frame(frame["file"], int(frame["line"]), frame["name"]))
        elif not inside or not _REST.match(text):
            inside, after, fatal = False, None, None
            continue
        dumped.add(number)
        if frames:
            stack = Stack(tuple(frames), begin, after, fatal)
    return stack, dumped
