"""Build the command of the `trainer` container.

The command runs the setup command, waits for DNS names, and runs torchrun. The job's status shows the
torchrun command. The command's variables are expanded in each pod.
"""

from __future__ import annotations

import re
import shlex

from harness.core.own_processes import OWN_PROCESSES
from harness.torchrun_controller.api import names
from harness.torchrun_controller.api.models import Distributed, JobSpec
from harness.torchrun_controller.objects import etcd
from harness.torchrun_controller.plan.gpu_layout import Plan, Refused

PORT = 29500
RUN_ID = "TORCHRUN_RUN_ID"
"""The environment variable with the rendezvous id, which is the UID of the Kubernetes Job. All pods of an
attempt have the same id, and a restart changes the id, so that an attempt never uses state that an earlier
attempt left in etcd.
"""
POD_IP = "TORCHRUN_POD_IP"
"""The environment variable with the pod's IP address.

Ranks connect to the IP of rank 0, because the name of rank 0 might still resolve to the previous pod.
"""
NAMES_SECONDS = 300
JOIN_SECONDS = 600
ASK_SECONDS, SILENT_SECONDS = 15, 90
"""ASK_SECONDS is the time between two pings from a pod to the c10d rendezvous store. SILENT_SECONDS is the
maximum time without a response from the store.
"""
SHELL = re.compile(r"[;&|<>$`\n()*?\[\]{}~#!]")
PREFIXES = {"exec", "env", "time", "nohup", "then", "do", "else", "{"}
"""Words before the name of a program in a shell command line."""
ASSIGNMENT = re.compile(r"\w+=")
LAUNCHERS = ("torch.distributed.run", "torch.distributed.launch")
"""The modules of torch that start the ranks of a node."""
RESERVED = re.compile(names.RESERVED)


PYTHON = """if ! command -v python >/dev/null && command -v python3 >/dev/null; then
  mkdir -p "${TMPDIR:-/tmp}/torchrun" && ln -sf "$(command -v python3)" "${TMPDIR:-/tmp}/torchrun/python"
  export PATH="$PATH:${TMPDIR:-/tmp}/torchrun"
fi"""
"""Shell lines that provide the command `python` in images that have only `python3`, such as Debian's."""


OWN_STORE = 'export TORCH_DISABLE_SHARE_RDZV_TCP_STORE="${TORCH_DISABLE_SHARE_RDZV_TCP_STORE:-1}"'
"""A shell line that disables torch's shared store.

Since torch 2.4, the node of global rank 0 starts this store once, and all ranks keep its address. If that
node is lost, the other nodes complete a new rendezvous and then wait forever for the lost store (in torch
2.6: DynamicRendezvousHandler.next_rendezvous, _bootstrap_store_info).
"""
EXIT_AT_SIGTERM = "trap 'exit 143' TERM INT"
"""A shell line that makes the shell exit on SIGTERM. Without a trap, a shell with PID 1 ignores SIGTERM. The
trap is set first, so that a pod also exits on SIGTERM while it waits for other pods. A running setup command
finishes before the shell exits.
"""
SETUP_BEGINS = f"""torchrun_setup=begun
setup_told() {{
  code=$?
  [ $torchrun_setup != ended ] || return
  echo "{names.SETUP_FAILED} $code" >&2
  [ $code != 0 ] || exit 1
}}
trap setup_told EXIT
# setupCommand"""
SETUP_ENDED = """
torchrun_setup=ended"""
"""Shell lines after the setup command, which mark the setup as complete. Without the mark, a setup command
that exits the shell, for example with `exit 0` or because of an unclosed quote, would look like a finished
job. The empty line terminates a setup command that ends with a line continuation.
"""
FORWARD_SIGTERM = """child= stopped= told=
tell() { stopped=1; [ -z "$child" ] || [ -n "$told" ] || { told=1; forward; }; }
trap tell TERM INT"""
UNTIL_ENDED = """child=$!
[ -z "$stopped" ] || tell
code=0; wait "$child" || code=$?
while [ -n "$stopped" ]; do stopped=; code=0; wait "$child" || code=$?; done
exit $code
"""
"""Shell lines that wait for torchrun, forward a signal to torchrun, and exit with torchrun's exit code. If
torchrun had PID 1, it would ignore SIGTERM while it imports torch, and the pod would use its full grace
period. A signal interrupts `wait`, so the script waits again. Only the first signal is forwarded, because the
kubelet sends two signals to a pod that is force-deleted. When the second signal arrives, torchrun may have
exited, and a failing `kill` would end the script through `set -e` with a different exit code.
"""
FORWARD = """forward() { kill -TERM "$child" 2>/dev/null || true; }"""
FORWARD_ELASTIC = (
    OWN_PROCESSES
    + """started_by_torchrun() {
  read -r line 2>/dev/null <"/proc/$1/stat" || return 0
  set -- "$1" ${line##*) }
  if [ "$3" = "$child" ]; then ranks="$ranks $1"; fi
}
forward() {
  # On SIGTERM, torchrun closes the rendezvous, and the remaining nodes could never rendezvous again (torch
  # 2.6, LocalElasticAgent._shutdown). So torchrun is killed, as with a lost node, and its ranks get SIGTERM.
  ranks=
  own_each started_by_torchrun
  kill -KILL "$child" 2>/dev/null || return 0
  for rank in $ranks; do kill -TERM "$rank" 2>/dev/null || true; done
  for rank in $ranks; do while own_runs "$rank"; do sleep 0.1; done; done
  exit 143
}"""
)
ANSWERS = f"""answers() {{
  timeout {ASK_SECONDS} bash -c 'exec 3<>"/dev/tcp/$0/$1" || exit 1
    printf "\\0\\316\\367\\205\\074\\015\\1\\1\\1\\1" >&3
    IFS= read -r -N 4 got <&3
    [ "$got" = "$(printf "\\1\\1\\1\\1")" ]' "$1" "$2" 2>/dev/null
}}"""
"""Shell lines that define the shell function `answers HOST PORT`, which sends VALIDATE and PING to a store
(torch/csrc/distributed/c10d/TCPStoreBackend.hpp). Exit status 124 means that the store did not respond in
time.
"""
ALIVE = """alive="${TMPDIR:-/tmp}/torchrun/alive-until"
alive_for() {
  [ "$JOB_COMPLETION_INDEX" != 0 ] || printf '%s\\n' $(($(printf '%(%s)T') + $1)) >"$alive" || true
} 2>/dev/null
mkdir -p "${alive%/*}" 2>/dev/null || true"""
"""Shell lines that define the function `alive_for SECONDS`. On node 0, the function writes the Unix time
until which the liveness probe succeeds."""
ALIVE_AT_FIRST = f"""{ALIVE}
alive_for {NAMES_SECONDS}"""
"""Shell lines that give node 0 NAMES_SECONDS to start the store. The other nodes wait equally long for the
store."""
WATCH_STORE = f"""{ANSWERS}
watch_store() {{
  local known='' since='' answer
  while sleep {ASK_SECONDS} && kill -0 $$; do
    answer=0; answers "$1" "$2" || answer=$?
    case $answer,$known in
      124,1) since=${{since:-$SECONDS}} ;;
      0,* | 124, | *,1) since='' ; alive_for {SILENT_SECONDS} ;;
    esac
    if [ $answer = 0 ]; then known=1; fi
    if [ -n "$since" ] && [ $((SECONDS - since)) -ge {SILENT_SECONDS} ]; then kill -USR1 $$; return; fi
  done
}}
store_lost() {{
  kill -KILL "$child" 2>/dev/null || return 0
  wait "$child" || true
  echo "the rendezvous at $store has not answered for {SILENT_SECONDS} s: its torchrun hangs" \\
    "or is cut off" >&2
  exit 1
}}
trap store_lost USR1"""
"""Shell lines that define the function `watch_store`. torchrun waits forever for a store that accepts a
request but does not respond, so if node 0 hangs or is disconnected, no other node continues (torch 2.6,
TCPStore::doWait). watch_store ignores a store that has never responded to PING, because that store has a
different version. Until the store listens, watch_store does not extend the time during which node 0's
liveness probe succeeds.
"""
LIVES = """[ "$JOB_COMPLETION_INDEX" = 0 ] &&
  read -r until 2>/dev/null <"${TMPDIR:-/tmp}/torchrun/alive-until" || exit 0
[ "$(printf '%(%s)T')" -lt "$until" ]"""
"""The script of the liveness probe. The probe fails on node 0 if watch_store has stopped, or if the store has
never listened."""


def torchrun(job: str, spec: JobSpec, plan: Plan, distributed: Distributed) -> str:
    """Return the torchrun command as a shell command line.

    Raises Refused if the job's settings do not allow it.
    """
    parts = ["torchrun", *_group(job, plan, distributed), f"--nproc-per-node={plan.processes}"]
    # After a failure, the JobSet restarts all pods of a fixed-size job. An elastic job continues in its
    # remaining pods.
    if plan.elastic and spec.reliability.restart_policy != "Never":
        parts.append(f"--max-restarts={spec.reliability.max_restarts}")
    return " ".join([*parts, *_program(spec.command)])


def _group(job: str, plan: Plan, distributed: Distributed) -> list[str]:
    backend = distributed.rdzv_backend or "c10d"
    endpoint, port = distributed.rdzv_endpoint, distributed.port or PORT
    if plan.elastic and backend == "static":
        raise Refused("StaticElastic", "a static rendezvous has a fixed size: expected c10d or etcd-v2")
    nnodes = f"{plan.least}:{plan.nodes}" if plan.elastic else str(plan.nodes)
    shared = [f"--nnodes={nnodes}"]
    if backend == "static":
        host, endpoint_port = _host_and_port(endpoint or names.host(job, 0), port)
        return [
            *shared,
            "--rdzv-backend=static",
            '--node-rank="$JOB_COMPLETION_INDEX"',
            f"--master-addr={shlex.quote(host)}",
            f"--master-port={shlex.quote(endpoint_port)}",
        ]
    shared += [f'--rdzv-id="${RUN_ID}"', f'--local-addr="${POD_IP}"']
    if backend == "etcd-v2":
        return [
            *shared,
            "--rdzv-backend=etcd-v2",
            f"--rdzv-endpoint={shlex.quote(endpoint or etcd.ENDPOINT)}",
        ]
    if endpoint:
        return [*shared, "--rdzv-backend=c10d", f"--rdzv-endpoint={shlex.quote(endpoint)}"]
    if plan.nodes == 1:
        return ["--standalone", "--nnodes=1"]
    # Without is_host, torchrun guesses from host names whether it hosts the store. The pod's index is
    # reliable.
    first = '$([ "$JOB_COMPLETION_INDEX" = 0 ] && echo true || echo false)'
    return [
        *shared,
        "--rdzv-backend=c10d",
        f"--rdzv-endpoint={names.host(job, 0)}:{port}",
        f'--rdzv-conf="is_host={first},join_timeout={JOIN_SECONDS}"',
    ]


def _program(command: str) -> list[str]:
    """Return the user's command as the last arguments of torchrun.

    Raises Refused for a command that cannot run in a rank. torchrun runs a Python script or module directly,
    and any other program with --no-python. A command that needs a shell runs in `bash -c` in each rank.
    """
    text = command.strip()
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise Refused("CommandSyntax", f"expected a shell command, found {text!r}: {error}") from None
    if not words:
        raise Refused("CommandSyntax", "expected a command, seen blanks")
    if launcher := _launcher(text):
        raise Refused(
            "NestedTorchrun",
            "the controller starts torchrun: expected the command of one rank, e.g. python x.py"
            + ("" if launcher == "torchrun" else f", found {launcher}"),
        )
    if SHELL.search(text) or "=" in words[0]:
        return ["--no-python", "bash", "-c", shlex.quote(text)]
    if words[0] in ("python", "python3") and len(words) > 1 and not words[1].startswith("-"):
        return [shlex.quote(word) for word in words[1:]]
    if words[0] in ("python", "python3") and len(words) > 2 and words[1] == "-m":
        return ["-m", *(shlex.quote(word) for word in words[2:])]
    return ["--no-python", *(shlex.quote(word) for word in words)]


def _launcher(text: str) -> str:
    """Return the launcher of torch in the last command or pipeline of a shell command line, or "".

    A launcher in an earlier command is permitted, because it might only print its version.
    """
    lexer = shlex.shlex(text.replace("\n", ";"), posix=True, punctuation_chars=True)
    lexer.commenters, lexer.whitespace_split = "", True
    pipelines: list[list[list[str]]] = [[[]]]
    for token in lexer:
        if token in ("|", "||", "|&"):
            pipelines[-1].append([])
        elif set(token) <= set("();&"):
            pipelines.append([[]])
        else:
            pipelines[-1][-1].append(token)
    last = next((each for each in reversed(pipelines) if any(each)), [])
    return next(filter(None, map(_launcher_of, last)), "")


def _launcher_of(words: list[str]) -> str:
    """Return the launcher of torch that a simple shell command runs, or ""."""
    while words and (words[0] in PREFIXES or ASSIGNMENT.match(words[0])):
        words = words[1:]
    program = words[0].rpartition("/")[2] if words else ""
    if re.fullmatch(r"python[\d.]*", program) and "-m" in words[1:3]:
        module = "".join(words[words.index("-m") + 1 :][:1])
        return module if module in LAUNCHERS else ""
    return program if program == "torchrun" else ""


def script(job: str, spec: JobSpec, plan: Plan, distributed: Distributed) -> str:
    """Return the script that the `trainer` container runs with `bash -c`.

    The setup command runs in the same shell, so a `cd` in it affects torchrun.
    """
    lines = ["set -e", EXIT_AT_SIGTERM, PYTHON]
    if spec.setup_command:
        lines += [SETUP_BEGINS, spec.setup_command.rstrip("\n"), SETUP_ENDED]
    store = _store(job, plan, distributed)
    if store:
        lines.append(ALIVE_AT_FIRST)
    if plan.nodes > 1 and not distributed.rdzv_endpoint and distributed.rdzv_backend != "etcd-v2":
        lines += _wait_for(names.host(job, 0), distributed.port or PORT)
    if distributed.rdzv_backend == "etcd-v2":
        lines += etcd.check(distributed.rdzv_endpoint or etcd.ENDPOINT)
    lines += [
        OWN_STORE,
        FORWARD_ELASTIC if plan.elastic else FORWARD,
        FORWARD_SIGTERM,
    ]
    if store:
        host, port = store
        lines += [WATCH_STORE, f"store={shlex.quote(f'{host}:{port}')} host={shlex.quote(host)}"]
        if not distributed.rdzv_endpoint:
            lines.append(f'[ "$JOB_COMPLETION_INDEX" != 0 ] || host="${POD_IP}"')
        lines.append(f'watch_store "$host" {shlex.quote(port)} >/dev/null 2>&1 &')
    return "\n".join([*lines, f"{torchrun(job, spec, plan, distributed)} &", UNTIL_ENDED])


def liveness(job: str, plan: Plan, distributed: Distributed) -> dict[str, object] | None:
    """Return the liveness probe of the `trainer` container, or None if node 0 does not host the rendezvous
    store. The probe's script runs even if all processes in the container hang, because the kubelet starts it.
    """
    if distributed.rdzv_endpoint or _store(job, plan, distributed) is None:
        return None
    times = {"periodSeconds": SILENT_SECONDS // 3, "timeoutSeconds": ASK_SECONDS, "failureThreshold": 3}
    return {"exec": {"command": verbatim(["bash", "-c", LIVES])}, **times}


def _store(job: str, plan: Plan, distributed: Distributed) -> tuple[str, str] | None:
    """Return the host and port of the c10d rendezvous store, or None if the job has no such store."""
    if plan.nodes == 1 or distributed.rdzv_backend not in (None, "c10d"):
        return None
    return _host_and_port(distributed.rdzv_endpoint or names.host(job, 0), distributed.port or PORT)


def _host_and_port(endpoint: str, default_port: int) -> tuple[str, str]:
    """Return the host and the port of an endpoint `host:port` or `[IPv6]:port`. The port is optional.

    torchrun parses an endpoint in the same way (torch 2.6, parse_rendezvous_endpoint).
    """
    if endpoint.startswith("[") and endpoint.endswith("]"):
        host, port = endpoint, ""
    elif ":" in endpoint:
        host, _, port = endpoint.rpartition(":")
    else:
        host, port = endpoint, ""
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    return host, port or str(default_port)


def _wait_for(host: str, port: int) -> list[str]:
    """Return shell lines that wait for node 0.

    Node 0 itself waits until DNS returns its new address. The other nodes wait until node 0 listens on the
    store's port. After a restart, DNS may return the previous pod's address for half a minute, and torchrun
    exits if it cannot connect.
    """
    return [
        "found() {",
        '  if [ "$JOB_COMPLETION_INDEX" = 0 ]; then',
        f'    getent hosts {host} | grep -qF "${POD_IP} "',
        "  else",
        f"    (exec 3<>/dev/tcp/{host}/{port}) 2>/dev/null",
        "  fi",
        "}",
        f"end=$((SECONDS + {NAMES_SECONDS}))",
        "until found; do",
        "  if [ $SECONDS -ge $end ]; then",
        f'    echo "expected {host}:{port} within {NAMES_SECONDS} s: seen $(getent hosts {host})" >&2',
        "    exit 1",
        "  fi",
        "  sleep 0.5",
        "done",
    ]


def verbatim(words: list[str]) -> list[str]:
    """Return a container's command with each `$` doubled.

    The kubelet expands $(NAME), and replaces $$ with $.
    """
    return [word.replace("$", "$$") for word in words]
