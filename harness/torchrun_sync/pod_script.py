"""Pack the modules in pod/ into one Python script, which runs in an exec session or as a container's
command."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Sequence
from hashlib import sha256
from importlib.resources import files

PACKAGE = "harness.torchrun_sync.pod"
SHARED = "harness.workers.own_processes"
RECEIVER = ("frames", "entries", "files", "incoming", "store_lock", "store", "control", "receiver")
STORED_ARCHIVE = ("entries", "files", "incoming", "store_lock", "store", "control", "stored_archive")
ARCHIVE_SERVER = (*STORED_ARCHIVE, "archive_server")
S3 = ("files", "unpack", "s3")
OBJECT_STORE = "harness.workers.training.object_store"
SUPERVISOR = ("entries", "files", "control", "supervisor")
_RUN = """
import sys, types
def run(sources, arguments):
    names = "harness harness.workers harness.workers.training harness.torchrun_sync harness.torchrun_sync.pod"
    for name in names.split():
        sys.modules[name] = types.ModuleType(name)
        sys.modules[name].__path__ = []
    for name, source in sources:
        module = sys.modules[name] = types.ModuleType(name)
        exec(compile(source, name, "exec"), module.__dict__)
    sys.exit(module.main(arguments))
"""
_FROM_STDIN = (
    _RUN
    + """
import hashlib, json, os, signal, zlib
signal.alarm(60)
length, digest, received = int(sys.argv[1]), sys.argv[2], b""
while len(received) < length:
    piece = os.read(0, length - len(received))
    if not piece:
        sys.exit("received only %d of %d bytes of the program" % (len(received), length))
    received += piece
if hashlib.sha256(received).hexdigest() != digest:
    sys.exit("the received program does not match its SHA-256")
signal.alarm(0)
run(json.loads(zlib.decompress(received)), sys.argv[3:])
"""
)


def _packed(modules: Sequence[str], shared: str = SHARED) -> bytes:
    names = [shared, *(f"{PACKAGE}.{name}" for name in modules)]
    sources = [(name, _source(*name.split(".")[1:])) for name in names]
    return zlib.compress(json.dumps(sources).encode(), 9)


def _source(*path: str) -> str:
    """Return the source text of one of the harness's modules. The module is not imported."""
    return files("harness").joinpath(*path[:-1], f"{path[-1]}.py").read_text()


def receiver(session: str, root: str, control: str) -> tuple[list[str], bytes]:
    """Return the command that starts a receiver, and the packed modules to send first on the command's stdin.

    The command contains the length and the digest of the packed modules. Therefore the receiver can start
    before stdin is closed, and never runs incomplete code.
    """
    program = _packed(RECEIVER)
    arguments = [str(len(program)), sha256(program).hexdigest(), session, root, control]
    return ["python3", "-c", _FROM_STDIN, *arguments], program


def supervised(command: Sequence[str], root: str, control: str, *, start_seconds: float = 900) -> list[str]:
    """Return a container command that runs `command` in the pod's current tree, and restarts it after each
    switch to another tree. The container waits up to `start_seconds` for its first tree, and exits with the
    exit code of `command`.
    """
    return [*_carried(SUPERVISOR), root, control, f"{start_seconds:g}", *command]


def init_command(folder: str, server: str, root: str, control: str, ready: str, seconds: float) -> list[str]:
    """Return the command of an init container that waits for the pod's first tree.

    The tree comes from the mounted Secrets in `folder`, from the pod at `server` (HOST:PORT, or an empty
    string), or from a sync. `ready` is the expected content of the file ROOT/ready. If no tree arrives within
    `seconds`, the command exits with code 1.
    """
    return [*_carried(STORED_ARCHIVE), folder, server, root, control, ready, f"{seconds:g}"]


def archive_server_command(folder: str, root: str, ready: str, port: int) -> list[str]:
    """Return the command of the pod that stores a job's code and serves it on `port`."""
    return [*_carried(ARCHIVE_SERVER), folder, root, ready, str(port)]


def s3_fetch(url: str, root: str, ready: str, seconds: int) -> list[str]:
    """Return the command that downloads a workspace from S3 to `root`, and prints a digest of the list of
    downloaded objects.
    """
    return [*_carried(S3, OBJECT_STORE), url, root, ready, str(seconds)]


def _carried(modules: Sequence[str], shared: str = SHARED) -> list[str]:
    # The text must not contain `$`, because Kubernetes replaces `$$` with `$` in a container's command.
    encoded = base64.b64encode(_packed(modules, shared)).decode()
    text = f"{_RUN}\nimport base64, json, zlib\n"
    text += f"run(json.loads(zlib.decompress(base64.b64decode({encoded!r}))), sys.argv[1:])"
    return ["python3", "-c", text]
