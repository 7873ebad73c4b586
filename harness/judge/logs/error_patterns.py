"""Find hints in a rank's last log lines about why it ended. Verdicts are never based on logs alone.

The patterns match output from torch 2.6, gloo, torchrun, faulthandler and konduktor in recorded jobs.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass

from harness.core import terminal_text
from harness.core.causes import CauseId
from harness.evidence.io.harness_log_lines import is_own
from harness.judge.logs import rank_errors, stacks
from harness.judge.logs.stacks import Stack

Lines = list[tuple[int, str]]

_WARNING = re.compile(r"\[[WI]\d{4}|^[WI]\d{4} |Warning:")
_CLUES: tuple[tuple[CauseId, str], ...] = (
    ("image.no_torch", r"torchrun: (command )?not found|No module named '?torch'?$"),
    ("image.not_root", r"mkdir: .*/\.konduktor.: Permission denied|/etc/environment: Permission denied"),
    ("image.wrong_architecture", r"exec format error|cannot execute binary file"),
    (
        "rendezvous.dns",
        r"(Error|failed).*(Name or service not known|Temporary failure in name resolution)"
        r"|(Error|failed).*(gai error|getaddrinfo)",
    ),
    ("rendezvous.dns", r"socket\.gaierror"),
    ("port.taken", r"name: EADDRINUSE|Error.*[Aa]ddress already in use|EADDRINUSE: "),
    (
        "rendezvous.unreachable",
        r"client socket has (timed out|failed to connect)"
        r"|DistNetworkError.*(timed out|refused|failed to connect|[Cc]onnection reset by peer)"
        r"|connect\(\) timed out\. Original timeout was"
        r"|Ping failed, invalid (value|nonce) returned",
    ),
    (
        "rendezvous.timeout",
        r"RendezvousTimeoutError|waiting for clients|RendezvousClosedError"
        r"|(TCPStore|[Rr]endezvous|init_process_group|DistStoreError).*[Tt]imed? ?out",
    ),
    # gloo and NCCL (src/bootstrap.cc) print these messages.
    (
        "variables.interface",
        r"Unable to find address for: |GLOO_SOCKET_IFNAME=\S+: |Bootstrap : no socket interface found",
    ),
    # NCCL (socket.cc) and gloo (tcp/pair.cc) print these addresses, which other hosts cannot reach.
    (
        "address.advertised",
        r"socketStartConnect: Connect to (127\.|::1<|fe80:)"
        r"|connectFullMesh failed.* remote=\[(127\.|::1\]|fe80:)",
    ),
    ("variables.master_port", r"[Ee]rror.*(?i:master.?port).*'tcp://[\d.]+:\d+'"),
    ("training.loss_not_finite", r"FloatingPointError: the loss of step"),
    # PyTorch and NCCL keep tensors and buffers as files in /dev/shm, which a full disk does not affect.
    (
        "shm.small",
        r"DataLoader worker .* killed by signal: Bus error|Unexpected bus error encountered in worker"
        r"|unable to (allocate|resize|write|open) .*(shared memory|</torch_)"
        r"|Error while (creating|attaching to) shared memory segment",
    ),
    (
        "rank.write_failed",
        r"(Error|IOException).*\[Errno (5|27|28|30|116|122)\]"
        r"|No space left on device|Disk quota exceeded|Input/output error|Read-only file system"
        # torch.save does not report why writing failed. Closing the file then fails too.
        r"|PytorchStreamWriter failed writing file|inline_container\.cc:\d+\] \. unexpected pos",
    ),
    # These errors show a fault of the GPU or its driver. Errors with other causes are in known_errors.py.
    ("gpu.ecc", r"uncorrectable ECC error encountered|CUDA_ERROR_ECC_UNCORRECTABLE"),
    ("gpu.lost", r"GPU is lost|GPU has fallen off the bus"),
    (
        "gpu.driver",
        r"system not yet initialized|Found no NVIDIA driver|The NVIDIA driver on your system is too old"
        r"|CUDA driver version is insufficient|driver/library version mismatch"
        r"|forward compatibility was attempted on non supported HW|CUDA unknown error - this may be due to",
    ),
    (
        "tracker.key_rejected",
        r"authentication failed \(HTTP 401\)|Failed to \w+ run: this key (only gives|gives no) access to ",
    ),
    ("launch.run_id_resumes", r"Failed to create run: Run not found"),
    (
        "rank.tracker_unreachable",
        r"Failed to create (or resume )?run|(httpx\.|pluto.*)(Connect|Read)(Error|Timeout)",
    ),
)
_TARGET = re.compile(r"trying to connect to \(?([^\s(),]+), \d+\)?")
_UNRESOLVED = re.compile(r"network addresses of \(([^\s(),]+), \d+\) cannot be retrieved")
_C10D = re.compile(r"^\[[WIE].*?\] \[c10d\] ")
"""Pattern for the prefix of PyTorch's socket messages: level, time, file and line."""
_C10D_TIME = re.compile(r"^\[[WIE]\d+ (\d\d):(\d\d):(\d\d)")
LAST_ATTEMPT_SECONDS, DAY_SECONDS = 2, 86400
"""Durations in seconds. PyTorch gives up as soon as its last attempt to connect fails. A message that is more
than LAST_ATTEMPT_SECONDS older than the error is therefore about an earlier attempt. PyTorch does not log
every refused connection."""
AT_ANY_TIME: tuple[CauseId, ...] = (
    *("training.loss_not_finite", "rank.write_failed", "shm.small"),
    *("gpu.ecc", "gpu.lost", "gpu.driver"),
)
"""Causes that can end a rank at any time, provided that its last error matches. Others occur only at
startup."""
_RAISED_FROM = re.compile(r"DataLoader worker \(pid\(s\) [\d, ]+\) exited unexpectedly")
"""Pattern for an error that was raised from the previous error and only repeats it."""
_NO_CPU_FREQUENCY = re.compile(
    r"^(\[rank\d+\]: ?)?ValueError: min\(\) (iterable argument is empty|arg is an empty sequence)"
)
_READS_CPU_FREQUENCY = re.compile(r'File ".*[/\\]pluto[/\\]sys\.py", line \d+, in get_info')
"""Pattern for a stack frame in the client function that takes the minimum of all CPU frequencies. The
function fails if no frequency is available."""
RECENT_LINES = 200
"""Number of lines at the end of a log, without C++ stacks, that are searched for a cause. Errors in earlier
lines did not end the program."""
_CPP_FRAME = re.compile(r"^(\[rank\d+\]: ?)?frame #\d")
NCCL_LINES = 4
"""Maximum number of lines between an NCCL exception and the detail that NCCL adds to it."""
_FRAME_LINES = 8
"""Maximum number of lines between a stack's innermost "File …" line and the error below it."""
_OF_A_PEER = re.compile(
    r"Connection (closed|reset) by (remote )?peer|RendezvousConnectionError|SignalException|Broken pipe"
    r"|remote process exit|Received 15 death signal|Socket closed"
    # Messages from NCCL and from TCPStore, whose server runs in rank 0.
    r"|[Ff]ailed to recv, got 0 bytes|Connection was likely closed|NCCL communicator was aborted"
    r"|Socket recv failed while polling"
)
_PEER_ABSENT = re.compile(
    r"Timed out waiting \d+ms for (recv|send) operation|wait timeout after \d+ms, keys:"
    r"|Watchdog caught collective operation timeout"
    r"|Received a dump signal due to a collective timeout from rank"
    r"|Observed flight recorder dump signal from another rank"
    r"|failed to pass monitoredBarrier|Detected mismatch between collectives on ranks"
    # A rank that waits for the key of a peer in the store, or for a peer's connection.
    r"|retrieving ncclUniqueId from \[\d+\]|(Runtime|DistStore)Error: Socket Timeout|Timeout waiting for key"
    r"|in store based barrier on rank|connectFullMesh failed with .*timed out"
    r"(?!.*remote=\[(127\.|::1\]|fe80:))|Getting socket times out"
)
_RETRIED = re.compile(r"attempt \d+/\d+: (connection error|no response) from ")
"""Pattern for a log line in which the Pluto client reports a retried request (pluto/iface.py)."""
_REPORT = re.compile(
    r"ChildFailedError|^mpirun (detected|noticed) that|launch\.py:\d+:sigkill_handler\]"
    r"|Sending process \d+ closing signal|failed \(exitcode: |elastic/multiprocessing/api\.py"
)
_SIGNALLED = re.compile(r"SignalException: Process \d+ got signal: (\d+)$")
"""Pattern for the last line that torchrun logs after it receives a signal. Its exit code is then 1."""
_SIGTERM = re.compile(r"SIGTERM|SystemExit|\b[Ss]ignal:? 15\b")
"""Pattern for an error that reports that the program was asked to stop, such as Lightning's
SIGTERMException."""
_EXIT = re.compile(r"rank\s*:\s*(\d+) \(local_rank: \d+\).*?exitcode\s*:\s*(-?\d+)", re.DOTALL)
_FAILED = re.compile(r"failed \(exitcode: (-?\d+)\)")
BEGINS = "===== KONDUKTOR: Running task ====="
"""First line of the command's output. Earlier lines come from konduktor's shell."""
SHELL_ENDED = "finished with exit code: "
"""Part of the last line that konduktor's shell prints about a command."""
_SHELL_ENDED = re.compile(r"^===== KONDUKTOR: .* finished with exit code: (\d+)")
_AFTER_REPORT = re.compile(
    r"^={20,}$|^-{20,}$|^\s|^\[\d+\]:$|^Failures:$|^Root Cause|FAILED$|^===== KONDUKTOR: |^$"
)
_TIME = re.compile(r"^\d{4}-\d\d-\d\dT[\d:.]+(Z|[+-]\d\d:\d\d) ?")
_LABEL = re.compile(r"^\[[a-z_]+\d+\]: ?(?=\[rank\d+\]:)|^\[default\d+\]: ?|^\[\d+,\d+\]<std(out|err)>: ?")
"""Pattern for the prefix that `torchrun --tee` or `mpirun --tag-output` adds to each line from a process."""
_NCCL_DETAIL = re.compile(r"^(?:\[rank\d+\]: ?)?Last error:$")
"""Pattern for the line above NCCL's description of the problem. The exception itself has only an error
code."""
_OF_A_LAUNCHER = re.compile(
    r"CalledProcessError: Command .* (returned non-zero exit status|died with <Signals)"
)
"""Pattern for an error that reports that the process started by a launcher, such as accelerate, has
failed."""
_GROUP = re.compile(r"^ {2,}[|+] (?=\S)")
"""Pattern for the prefix that Python adds to each line about an exception within an ExceptionGroup."""
_NOISE = re.compile(
    r"^\s*$|^[=\-]{5,}|torch/distributed/elastic|^(\[rank\d+\]: ?)?(Traceback|\s+File |\s+[\^~]+|frame #\d)"
    r"|^(\[rank\d+\]: ?)?(During handling of the above|The above exception was|\s+\[Previous line repeated)"
    r"|^Extension modules: |^<unknown function>"
    r"|^ *(\+-)+\+?-{5,}|^terminate called after throwing an instance of "
    # Lines that PyTorch and CUDA write below each CUDA error.
    r"|^(\[rank\d+\]: ?)?(CUDA kernel errors might be asynchronously reported|Search for `cuda\w+' in "
    r"|For debugging consider passing CUDA_LAUNCH_BLOCKING|Compile with `TORCH_USE_CUDA_DSA`"
    r"|Device-side assertion tracking was not enabled)"
    r"|^pluto: |\[pluto-sync\]|^Exception raised from "
    # Frames from faulthandler, gdb, glog and glibc.
    r"|^(Current thread|Thread) 0x|^Fatal Python error|^\*\*\* Signal \d+|^PC: @|^\s*@ +0x[0-9a-f]+"
    r"|^#\d+ +(0x[0-9a-f]+ )?in |^#\d+ +0x[0-9a-f]+|\(\+0x[0-9a-f]+\) ?\[0x[0-9a-f]+\]"
)
_FILE_OF_A_STACK = re.compile(r'^(\[rank\d+\]: ?)?\s*File "')
_CODE_OF_A_STACK = re.compile(r"^(\[rank\d+\]: ?)?\s{4,}")
_ERROR = re.compile(
    r"^(\[rank\d+\]: ?)?[A-Za-z_][\w.]*(Error|Exception|Interrupt|Exit|Timeout|ExceptionGroup)(: .*)?$"
    # The message about an uncaught C++ exception.
    r"|^ *what\(\): "
)


@dataclass(frozen=True)
class Clues:
    """Hints found in a log. `rank` and `exit_code` describe the first failed worker in torchrun's report."""

    log: str = ""
    cause: CauseId | None = None
    line: str = ""
    line_number: int = 0
    last: str = ""
    """The rank's own last error, or its last log line if there is no error."""
    last_number: int = 0
    rank: int | None = None
    exit_code: int | None = None
    of_a_peer: bool = False
    """Whether the rank lost a peer or waited in vain for one."""
    others_lost_peers: bool = False
    """Whether `last` is the rank's own error, and another rank in the same log lost a peer."""
    peer_absent: bool = False
    """Whether a collective operation timed out because a peer did not take part."""
    stack: Stack | None = None
    """The stack in the last dump, which is written when the rank's deadline expires or the rank ends."""
    retried: str = ""
    """The last line in which the Pluto client reports that the tracker did not respond."""
    report_is_last: bool = False
    """Whether the log ends with torchrun's failure report."""
    torchrun_signal: int = 0
    """The number of the signal that ended torchrun if the log ends with torchrun's line about it, otherwise
    0."""

    @property
    def log_quote(self) -> str:
        """Return a sentence that quotes the rank's last error or last log line."""
        if self.last:
            return f"its last log line: {self.last}"
        return "its log is empty" if self.exit_code is None else "its log contains only torchrun's report"

    @property
    def no_error(self) -> bool:
        """Return whether the log is empty, or shows no error except that the program was asked to stop."""
        own = _ERROR.match(self.last) is not None and not _SIGTERM.search(self.last)
        reported = self.cause or self.exit_code or self.stack
        return not (own or reported or self.of_a_peer)

    @property
    def refs(self) -> list[str]:
        return [f"{self.log}:{self.last_number}"] if self.last_number else []


def read(tail: Lines, log: str = "", ranks: int = 1) -> Clues:
    """Return the hints found in a log's numbered last lines.

    `log` is the log's path in the bundle, and `ranks` is the number of ranks that write to it.
    """
    lines = _plain(tail)
    stack, dumped = stacks.last(lines)
    lines = [entry for entry in lines if entry[0] not in dumped]
    log_text = "\n".join(text for _, text in lines)
    report = log_text.rpartition("Root Cause")[2] if "Root Cause" in log_text else ""
    worker = _EXIT.search(report)
    failure = _FAILED.search(log_text)
    rank = int(worker[1]) if worker else None
    exit_code = int(worker[2]) if worker else int(failure[1]) if failure else None
    report_is_last = worker is not None and _ends_with(lines)
    torchrun_signal = _torchrun_signal(lines)
    origin = _first_rank_error(lines) if ranks > 1 else None
    others_lost_peers = origin is not None and any(is_of_a_peer(text) for _, text in lines[-80:])
    if origin is not None:
        if origin.rank not in (None, rank):
            rank, exit_code = origin.rank, 1
        detail = origin.number + NCCL_LINES
        lines = [entry for entry in lines if entry[0] <= detail and not _REPORT.search(entry[1])]
    if ranks > 1 and rank is not None:
        lines = [entry for entry in lines if _rank_of(entry[1]) in (None, rank)]
    cause: CauseId | None = None
    clue, clue_number = "", 0
    last, last_number = (origin.text.strip(), origin.number) if origin else _last_own(lines)
    last += _nccl_detail(lines, last_number)
    another_error = False
    candidates = [entry for entry in lines if not _CPP_FRAME.match(entry[1])]
    for number, text in reversed(candidates[-RECENT_LINES:]):
        if _WARNING.search(text):
            continue
        is_error = _ERROR.match(text) is not None
        cause = next((cause for cause, pattern in _CLUES if re.search(pattern, text)), None)
        if cause is None and _NO_CPU_FREQUENCY.match(text) and _of_the_client(lines, number):
            cause = "rank.no_cpu_frequency"
        # An error did not end the program if another error or more output followed it.
        if cause in AT_ANY_TIME and (another_error or not (is_error or number == last_number)):
            cause = None
        if cause:
            unresolved = _unresolved(lines, text) if cause == "rendezvous.unreachable" else None
            cause = "rendezvous.dns" if unresolved else cause
            clue_number, clue = unresolved or (number, text.strip())
            break
        follows = _REPORT.search(text) or _RAISED_FROM.search(text) or is_of_a_peer(text)
        another_error = another_error or (is_error and not follows)
    peer_absent = origin is None and any(_PEER_ABSENT.search(text) for _, text in lines[-80:])
    of_a_peer = origin is None and any(_OF_A_PEER.search(text) for _, text in lines[-80:])
    return Clues(
        log=log,
        cause=cause,
        line=clue[:300],
        line_number=clue_number,
        last=last[:300],
        last_number=last_number,
        rank=rank,
        exit_code=exit_code,
        of_a_peer=peer_absent or of_a_peer,
        others_lost_peers=others_lost_peers,
        peer_absent=peer_absent,
        stack=stack,
        retried=next((text.strip()[:300] for _, text in reversed(lines) if _RETRIED.search(text)), ""),
        report_is_last=report_is_last,
        torchrun_signal=torchrun_signal,
    )


def of_last_attempt(tail: Lines) -> Lines:
    """Return the plain lines that the ranks wrote after torchrun had restarted them for the last time."""
    return _latest(_plain(tail))


def _latest(lines: Lines) -> Lines:
    failures = [position for position, (_, text) in enumerate(lines) if _FAILED.search(text)]
    return lines[failures[-2] + 1 :] if failures[1:] else lines


def _unresolved(lines: Lines, error: str) -> tuple[int, str] | None:
    """Return the log line that reports that the host in a timeout error could not be resolved.

    Returns None if the host was resolved in a later attempt.
    """
    target = _TARGET.search(error)
    host = target[1] if target else ""
    about_host = re.compile(rf"\[c10d\].*[\[( ]{re.escape(host)}[\],:]")
    host_lines = [
        entry for entry in lines if host and about_host.search(entry[1]) and not _TARGET.search(entry[1])
    ]
    if not host_lines or not _UNRESOLVED.search(host_lines[-1][1]):
        return None
    attempts = [text for _, text in lines if (own := _TARGET.search(text)) and own[1] == host]
    times = [at for text in attempts if (at := _c10d_seconds(text)) is not None]
    last = _c10d_seconds(host_lines[-1][1])
    after = (times[-1] - last) % DAY_SECONDS if times and last is not None else 0
    if LAST_ATTEMPT_SECONDS < after < DAY_SECONDS / 2:  # The message belongs to an earlier attempt.
        return None
    return host_lines[-1][0], _C10D.sub("", host_lines[-1][1])


def _c10d_seconds(text: str) -> int | None:
    """Return the time of day, in seconds, of a PyTorch message about a socket, or None."""
    match = _C10D_TIME.match(text)
    return 3600 * int(match[1]) + 60 * int(match[2]) + int(match[3]) if match else None


def unresolved_host(text: str) -> str:
    """Return the host that PyTorch could not resolve, according to the given message, or ""."""
    match = _UNRESOLVED.search(text)
    return match[1] if match else ""


def _first_rank_error(lines: Lines) -> rank_errors.RankError | None:
    """Return the first exception in the last attempt that ended a rank and was not caused by a lost peer."""
    reports = [position for position, (_, text) in enumerate(lines) if _REPORT.search(text)]
    failed = [position for position, (_, text) in enumerate(lines) if _FAILED.search(text)]
    begins = [position for position, (_, text) in enumerate(lines) if text.startswith(BEGINS)]
    begin = max([0, *(position + 1 for position in begins), *(position + 1 for position in failed[:-1])])
    end = next((position for position in reports if position >= begin), len(lines))
    return rank_errors.first(
        lines[begin:end],
        lambda text: _ERROR.match(text) is not None,
        lambda text: _NOISE.search(text) is not None or _CODE_OF_A_STACK.match(text) is not None,
        is_of_a_peer,
    )


def _nccl_detail(lines: Lines, number: int) -> str:
    """Return the detail that NCCL adds to the exception in line `number`, or ""."""
    after = [text for at, text in lines if number < at <= number + NCCL_LINES]
    for header, detail in itertools.pairwise(after):
        if _NCCL_DETAIL.match(header):
            return f" Last error: {rank_errors.OF_A_RANK.sub('', detail).strip()}"
    return ""


def _rank_of(text: str) -> int | None:
    label = rank_errors.OF_A_RANK.match(text)
    return int(label[1]) if label else None


def last_line(tail: Lines) -> tuple[str, int]:
    """Return the last error in a container's log, or else its last line, with the line number.

    Returns ("", 0) for an empty log.
    """
    return _last_own(_plain(tail))


def is_of_a_peer(text: str) -> bool:
    """Return whether the text reports that a peer ended or did not respond."""
    return any(pattern.search(text) for pattern in (_OF_A_PEER, _PEER_ABSENT))


def _plain(tail: Lines) -> Lines:
    """Return the program's own lines, without timestamps, control characters and the harness's lines.

    Text that a terminal would no longer show, such as an error overwritten by a progress bar, becomes a
    separate line.
    """
    return [
        (number, _GROUP.sub("", _LABEL.sub("", row.text)))
        for number, text in tail
        if not is_own(text)
        for row in terminal_text.rows(_TIME.sub("", text))
    ]


def _of_the_client(lines: Lines, error: int) -> bool:
    """Return whether the client read the CPU frequency in the innermost frame above the error's line."""
    stack_lines = [text for number, text in lines if error - _FRAME_LINES <= number < error]
    files = [text for text in stack_lines if _FILE_OF_A_STACK.match(text)]
    return bool(files) and _READS_CPU_FREQUENCY.search(files[-1]) is not None


def _ends_with(lines: Lines) -> bool:
    """Return whether the log ends with torchrun's report, except for konduktor's success message."""
    for _, text in reversed(lines):
        if text.startswith("Root Cause"):
            return True
        match = _SHELL_ENDED.match(text)
        if not _AFTER_REPORT.search(text) or (match and match[1] != "0"):
            return False
    return False


def _torchrun_signal(lines: Lines) -> int:
    texts = [text.strip() for _, text in lines if text.strip()]
    match = _SIGNALLED.search(texts[-1]) if texts else None
    return int(match[1]) if match else 0


def _last_own(lines: Lines) -> tuple[str, int]:
    """Return the last error before torchrun's failure report, or else the last meaningful line.

    Also return the line number, or 0 if there is no such line. If torchrun restarted the ranks, only the
    lines before its last report count, unless the ranks printed nothing there.
    """
    last = _last_of_an_attempt(_latest(lines))
    return last if last[0] else _last_of_an_attempt(lines)


def _last_of_an_attempt(lines: Lines) -> tuple[str, int]:
    begins = [position for position, (_, text) in enumerate(lines) if text.startswith(BEGINS)]
    own = lines = lines[begins[-1] :] if begins else lines
    for position, (_, text) in enumerate(lines):
        if _REPORT.search(text) and position:
            own = lines[:position]
            break
    messages = [(number, text.strip()) for number, text in _without_stacks(own) if not _NOISE.search(text)]
    errors = [entry for entry in reversed(messages[-12:]) if _ERROR.match(entry[1])]
    first = next((entry for entry in errors if not _OF_A_LAUNCHER.search(entry[1])), None)
    number, text = first or next(iter([*errors, *messages[-1:]]), (0, ""))
    return text, number


def _without_stacks(lines: Lines) -> Lines:
    """Return the lines except those of Python stacks: the "File …" lines and the source lines below them."""
    outside, inside = [], False
    for number, text in lines:
        of_a_stack = _FILE_OF_A_STACK.match(text) is not None
        inside = of_a_stack or (inside and _CODE_OF_A_STACK.match(text) is not None)
        if not inside:
            outside.append((number, text))
    return outside
