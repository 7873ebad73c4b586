"""A receiver in a real process, connected through pipes that can be interrupted."""

from __future__ import annotations

import os
import select
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from harness.core.deadlines import Deadline
from harness.torchrun_sync import pod_script
from harness.torchrun_sync.channel import Channel, Cut, Open


@dataclass
class PipeChannel:
    """The stdin and stdout of a process, with deadlines. The connection breaks after `cut_after` bytes were
    sent to the process."""

    process: subprocess.Popen[bytes]
    cut_after: int | None = None
    leave_open: bool = False
    """Whether the receiver does not notice the broken connection, because its stdin stays open."""
    sent: int = 0

    def __post_init__(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self._in, self._out = self.process.stdin.fileno(), self.process.stdout.fileno()
        os.set_blocking(self._in, False)

    def send(self, data: bytes, deadline: Deadline) -> None:
        left = memoryview(data)
        if self.cut_after is not None and self.sent + len(data) > self.cut_after:
            left = left[: self.cut_after - self.sent]
            self._write(left, deadline)
            raise Cut("cut by the test")
        self._write(left, deadline)

    def _write(self, left: memoryview, deadline: Deadline) -> None:
        while left:
            if not select.select([], [self._in], [], deadline.remaining)[1]:
                raise Cut("no data was transferred before the deadline")
            try:
                done = os.write(self._in, left[:65536])
            except BrokenPipeError:
                raise Cut("the receiver has ended") from None
            self.sent += done
            left = left[done:]

    def receive(self, deadline: Deadline) -> bytes:
        if not select.select([self._out], [], [], deadline.remaining)[0]:
            raise Cut("no data was transferred before the deadline")
        if not (piece := os.read(self._out, 65536)):
            raise Cut("the receiver has ended")
        return piece

    def close(self) -> None:
        if not self.leave_open and self.process.stdin is not None:
            self.process.stdin.close()
            self.process.stdin = None


@dataclass
class Pod:
    """The folders of a pod, and all receivers that were started in it."""

    mount: Path
    control: Path
    cuts: list[int | None] = field(default_factory=list)
    """The number of bytes after which each connection breaks, in order. Later connections do not break."""
    leave_open: bool = False
    channels: list[PipeChannel] = field(default_factory=list)

    @property
    def root(self) -> Path:
        return self.mount / ".torchrun"

    @property
    def open(self) -> Open:
        def start(session: str, deadline: Deadline) -> Channel:
            command, program = pod_script.receiver(session, str(self.root), str(self.control))
            channel = self.started(command)
            channel.cut_after = self.cuts.pop(0) if self.cuts else None
            channel.send(program, deadline)
            return channel

        return start

    def started(self, command: list[str]) -> PipeChannel:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.channels.append(PipeChannel(process, leave_open=self.leave_open))
        return self.channels[-1]

    def end(self) -> list[int]:
        """Wait for the receivers to exit, and return their exit codes."""
        codes = []
        for channel in self.channels:
            channel.leave_open = False
            channel.close()
            codes.append(channel.process.wait(30))
            assert channel.process.stdout is not None
            channel.process.stdout.close()
        return codes


def pod(folder: Path, cuts: list[int | None] | None = None) -> Pod:
    """Return a pod with a new mount in this folder."""
    mount = folder / "mount"
    mount.mkdir(parents=True)
    return Pod(mount, folder / "control", cuts or [])


def seen(top: Path, hidden: Callable[[str], bool] = lambda name: name == ".torchrun") -> dict[str, object]:
    """Return every path below a mount, mapped to the file's mode and content, the link's target or the
    folder's mode."""
    found: dict[str, object] = {}
    current = top / ".torchrun" / "current"
    shown = {each.name for each in top.iterdir() if not hidden(each.name)}
    if current.exists():
        assert shown == {each.name for each in current.iterdir()}
        top = current.resolve()
    for path in sorted(top.rglob("*")):
        name = str(path.relative_to(top))
        mode = path.lstat().st_mode & 0o777
        if path.is_symlink():
            found[name] = ("link", os.readlink(path))
        else:
            found[name] = (mode, path.read_bytes()) if path.is_file() else (mode,)
    return found
