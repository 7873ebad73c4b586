"""Read torchrun's options from a command line, a script, or the processes in this container.

Only literal values are used. Values that a shell would expand are ignored.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

PROC = Path("/proc")
_LAUNCHERS = re.compile(r"(^|/)torchrun$|^torch\.distributed\.(run|launch)$")
_OPTIONS = {
    "nnodes": "NNODES",
    "node-rank": "NODE_RANK",
    "nproc-per-node": "NPROC_PER_NODE",
    "master-addr": "MASTER_ADDR",
    "master-port": "MASTER_PORT",
    "rdzv-id": "RDZV_ID",
    "rdzv-backend": "PET_RDZV_BACKEND",
    "rdzv-endpoint": "PET_RDZV_ENDPOINT",
    "rdzv-conf": "PET_RDZV_CONF",
    "local-addr": "PET_LOCAL_ADDR",
}
"""Maps each torchrun option to the equivalent environment variable."""
RENDEZVOUS = ("PET_RDZV_BACKEND", "PET_RDZV_ENDPOINT", "PET_RDZV_CONF", "PET_LOCAL_ADDR")
"""Variables that torchrun itself reads. Their values are the same as those of the options."""
_FLAGS = ("standalone", "m", "module", "no-python", "run-path", "virtual-local-rank")
"""torchrun options that do not take a value."""
_NO_SPACE = re.compile(
    r"\S(--(?:nnodes|nproc[-_]|node[-_]rank|master[-_]|rdzv[-_]|max[-_]restarts|standalone)\S*)"
)
_OWN_NAME = (
    r"(?:\$HOSTNAME\b|\$\{HOSTNAME\}"
    r"|(?:\$\(|`)\s*hostname(?:\s+(?:-[fsA]|--(?:fqdn|long|short|all-fqdns)))?\s*[)`]"
    r"|(?:\$\(|`)\s*hostname\s+(?:-[iI]|--ip-address|--all-ip-addresses)\b[^)`]*[)`]?)"
)
"""Matches shell expressions that expand to the pod's own name or address, but not `${HOSTNAME%-*}-0`."""
_OWN_ID = re.compile(
    r"\s--rdzv[-_]id[=\s]\s*[\"']?"
    rf"(\S*?(?:\$\{{?RANDOM\b|\$\$|{_OWN_NAME}|(?:\$\(|`)\s*(?:uuidgen|cat\s+\S*/random/uuid"
    r"|date\s[^)`]*%[sNT])))"
)
"""Matches an --rdzv_id option that a shell expands to a different value in each pod."""
_OWN_HOST = re.compile(rf"\s--(rdzv[-_]endpoint|master[-_]addr)[=\s]\s*[\"']?({_OWN_NAME}[^\s\"']*)")
"""Matches an option for rank 0's address that a shell expands to the pod's own name or address."""
_SETS_MASTER = re.compile(r"(?:^|[\s;&|(])MASTER_ADDR=", re.MULTILINE)
"""Matches an assignment that replaces the pod template's MASTER_ADDR."""
_IN_SCRIPT = re.compile(r"(?:^|[\s;&|(])((?:\S*/)?torchrun|torch\.distributed\.(?:run|launch))(\s[^\n;&|]*)")


def is_torchrun(words: Sequence[str]) -> bool:
    """Return whether a command line starts torchrun."""
    return any(_LAUNCHERS.search(word) for word in words[:4])


def environment(proc: Path, pid: int) -> Mapping[str, str]:
    """Return the environment with which a process was started, or {} if it cannot be read."""
    pairs = (pair.partition("=") for pair in _split(proc / str(pid) / "environ"))
    return {name: value for name, mark, value in pairs if mark}


def command_line(proc: Path, pid: int) -> list[str]:
    """Return a process's command-line arguments, or [] if they cannot be read."""
    return _split(proc / str(pid) / "cmdline")


def from_options(words: Sequence[str]) -> dict[str, str]:
    """Return torchrun's options as environment variables. Options that torchrun ignores are omitted.

    `--rdzv-endpoint` also sets rank 0's address, and overrides `--master-addr` and `--master-port`. Options
    after the script's name belong to the script, and are ignored.
    """
    options: dict[str, str] = {}
    start = next((at for at, word in enumerate(words) if _LAUNCHERS.search(word)), len(words))
    rest = iter(words[start + 1 :])
    for word in rest:
        if not word.startswith("-"):
            # A word that begins with "$" may expand to further options in a shell.
            if word.startswith("$"):
                options = {"rdzv-conf": word, "local-addr": word, **options}
            break
        name, mark, value = word.lstrip("-").partition("=")
        name = name.replace("_", "-")
        if not mark and name not in _FLAGS:
            value = next(rest, "")
        options[name] = value
    endpoint, backend = options.get("rdzv-endpoint", ""), options.get("rdzv-backend", "static")
    if backend != "static":
        options.pop("node-rank", None)  # With any other backend, the rendezvous assigns the node ranks.
    if backend.startswith("etcd"):
        endpoint = ""  # With etcd, the endpoint is the etcd server's address, not rank 0's.
    elif endpoint:
        options.pop("master-addr", None)
        options.pop("master-port", None)
    host, _, port = endpoint.rpartition(":")
    endpoint_values = (
        {"MASTER_ADDR": host.strip("[]"), "MASTER_PORT": port} if host and port.isdigit() else {}
    )
    return {
        **endpoint_values,
        **{variable: options[name] for name, variable in _OPTIONS.items() if options.get(name)},
    }


def merged(value: str) -> str:
    """Return a torchrun option that is part of a value because a space is missing, or "" if there is none."""
    match = _NO_SPACE.search(value)
    return match[1].partition("=")[0] if match else ""


def differs_in_each_pod(run_id: str) -> bool:
    """Return whether a shell expands a run id, such as $RANDOM, to a different value in each pod."""
    return bool(_OWN_ID.search(f" --rdzv_id={run_id}"))


def is_own_host(address: str) -> bool:
    """Return whether a shell expands an address, such as $HOSTNAME, to the pod's own name or address."""
    return bool(_OWN_HOST.search(f" --master_addr={address}"))


def from_script(text: str) -> dict[str, str]:
    """Return the literal options of the first torchrun command in a shell script, as environment variables.

    Two kinds of options are returned without expansion: rendezvous options, and an --rdzv_id or --master_addr
    that expands to a different value in each pod.
    """
    text_lines = re.sub(r"\\\n", " ", text)
    script = "\n".join(line for line in text_lines.splitlines() if not line.lstrip().startswith("#"))
    match = _IN_SCRIPT.search(script)
    if not match:
        return {}
    try:
        words = shlex.split(match[1] + match[2], comments=True)
    except ValueError:  # The command contains a quoted string that continues on the next line.
        words = (match[1] + match[2]).split()
    literal = {
        name: value
        for name, value in from_options(words).items()
        if name in RENDEZVOUS or not set("$`*") & set(value)
    }
    if _SETS_MASTER.search(script) and "MASTER_ADDR" in literal.get("PET_RDZV_ENDPOINT", ""):
        del literal["PET_RDZV_ENDPOINT"]
    if own := _OWN_ID.search(match[2]):
        literal["RDZV_ID"] = own[1]
    if host := _OWN_HOST.search(match[2]):
        name = "PET_RDZV_ENDPOINT" if "rdzv" in host[1] else "PET_MASTER_ADDR"
        literal[name] = host[2]
        # If a script has several torchrun commands, rank 0's pod may run a different one.
        if len(_IN_SCRIPT.findall(script)) > 1:
            del literal[name]
    return literal


def of_container(proc: Path = PROC, own: int | None = None) -> dict[str, str]:
    """Return torchrun's options as environment variables.

    They come from the torchrun that started this process. If there is none, they come from the first torchrun
    in this container, or else from the torchrun command in the script that the container's first process
    runs. Outside a pod, only the ancestors of this process are examined.
    """
    for pid in _parents(proc, os.getpid() if own is None else own):
        if is_torchrun(words := command_line(proc, pid)):
            return from_options(words)
    if "KUBERNETES_SERVICE_HOST" not in os.environ:
        return {}
    for pid in _same_container(proc, own):
        if is_torchrun(words := command_line(proc, pid)):
            return from_options(words)
    return next((options for word in command_line(proc, 1) if (options := from_script(word))), {})


def gpus(folder: Path = Path("/dev")) -> int:
    """Return the number of NVIDIA GPUs in this container, according to their device files."""
    return sum(bool(re.fullmatch(r"nvidia\d+", path.name)) for path in folder.glob("nvidia*"))


def _parents(proc: Path, pid: int) -> Iterator[int]:
    while pid > 0:
        yield pid
        try:
            after = (proc / str(pid) / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            return
        pid = int(after[1])


def _same_container(proc: Path, own: int | None) -> Iterable[int]:
    """Return the pids in the same mount namespace. This excludes the pod's other containers."""

    def mounts(pid: str) -> str:
        try:
            return os.readlink(proc / pid / "ns/mnt")
        except OSError:
            return ""

    namespace = mounts("self" if own is None else str(own))
    pids = sorted(int(path.name) for path in proc.glob("[0-9]*"))
    return [pid for pid in pids if namespace and mounts(str(pid)) == namespace]


def _split(path: Path) -> list[str]:
    try:
        text = path.read_bytes().decode(errors="replace")
    except OSError:
        return []
    return [word for word in text.split("\0") if word]
