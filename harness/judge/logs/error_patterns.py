"""Find clues to the reason for a rank's end in the last lines of its log.

A verdict is never based on logs alone. The patterns match output from torch 2.6, gloo, torchrun, faulthandler
and konduktor in recorded jobs.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from harness.core.causes import CauseId
from harness.judge.logs import (
    child_signals,
    cpu_frequency,
    environment_errors,
    error_details,
    kernel_messages,
    lost_peers,
    program_lines,
    rank_errors,
    stacks,
    survived_errors,
    torchrun_report,
    unresolved_hosts,
)
from harness.judge.logs.lost_peers import is_of_a_peer
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
        r"|Ping failed, invalid (value|nonce) returned"
        rf"|{lost_peers.NCCL_CONNECT}(No route to host|timed out|unreachable|connection abort)"
        r"|RuntimeError: (No route to host|Connection (timed out|refused)|Network is unreachable)$",
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
    ("address.advertised", lost_peers.ADVERTISED),
    ("address.family", r"ss1\.ss_family == ss2\.ss_family"),
    ("variables.missing", environment_errors.MISSING),
    ("variables.node_rank", environment_errors.NODE_RANK),
    ("variables.master_addr", environment_errors.NO_HOST),
    ("variables.master_port", environment_errors.NO_PORT),
    ("training.loss_not_finite", r"FloatingPointError: the loss of step"),
    # PyTorch and NCCL keep tensors and buffers as files in /dev/shm, which does not use the disk.
    (
        "shm.small",
        r"^(?!.*(Too many open files|No such file or directory|Permission denied))"
        r".*(DataLoader worker .* killed by signal: Bus error|Unexpected bus error encountered in worker"
        r"|unable to (allocate|resize|write|open) .*(shared memory|</torch_)"
        r"|Error while (creating|attaching to) shared memory segment|failed to extend /dev/shm/"
        r"|posix_fallocate failed ?: No space left"
        r"|No space left on device: '/dev/shm/)",
    ),
    (
        "rank.write_failed",
        r"(Error|IOException).*\[Errno (5|27|28|30|116|122)\]"
        r"|No space left on device|Disk quota exceeded|Input/output error|Read-only file system"
        # torch.save does not report why a write failed. It then also fails to close the file.
        r"|PytorchStreamWriter failed writing file|inline_container\.cc:\d+\] \. unexpected pos",
    ),
    # These errors prove a fault of the GPU or its driver. known_errors.py contains errors with other causes.
    ("gpu.ecc", r"uncorrectable ECC error encountered|CUDA_ERROR_ECC_UNCORRECTABLE"),
    (
        "gpu.lost",
        r"GPU is lost|fallen off the bus|CUDA error: GPU requires reset|determine the device handle for GPU",
    ),
    ("gpu.nvlink", r"uncorrectable NVLink error"),
    (
        "gpu.absent",
        r"No CUDA GPUs are available|no CUDA-capable device is detected|supported with GPUs, no GPUs found"
        r"|lib(cuda|nvidia-ml)\.so\.1: cannot open shared|NVML Shared Library Not Found",
    ),
    (
        "gpu.driver",
        r"system not yet initialized|Found no NVIDIA driver|The NVIDIA driver on your system is too old"
        r"|CUDA driver version is insufficient|[Dd]river/library version mismatch|Driver Not Loaded"
        r"|forward compatibility was attempted on non supported HW|CUDA unknown error - this may be due to"
        r"|unsupported display driver / cuda driver combination|CUDA driver initialization failed"
        r"|cudaGetDeviceCount\(\).* Error (304|999): |PTX was compiled with an unsupported toolchain"
        r"|API call is not supported in the installed CUDA driver",
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
AT_ANY_TIME: tuple[CauseId, ...] = (
    *("training.loss_not_finite", "rank.write_failed", "shm.small", "variables.missing"),
    *("gpu.ecc", "gpu.lost", "gpu.nvlink", "gpu.absent", "gpu.driver"),
)
"""Causes that can end a rank at any time, if the rank's last error matches. The other causes occur only at
startup."""
_WITH_FRAME: tuple[CauseId, ...] = ("variables.missing", "variables.node_rank")
"""Causes for which the stack frame above the error decides whether the pattern applies."""
_RAISED_FROM = re.compile(r"DataLoader worker \(pid\(s\) [\d, ]+\) exited unexpectedly")
"""Pattern for an error that only repeats the error from which it was raised."""
_MAX_OF_A_LIST = 1 << 16
"""In messages that list the ranks of a job, the maximum number of characters that are read at the beginning
and at the end of a line."""
RECENT_LINES = 200
"""Number of lines at the end of a log that are searched for a cause, not counting C++ stacks. Errors in
earlier lines did not end the program."""
_CPP_FRAME = re.compile(r"^(\[rank\d+\]: ?)?frame #\d")
_RETRIED = re.compile(r"attempt \d+/\d+: (connection error|no response) from ")
"""Pattern for a log line in which the Pluto client reports a retried request (pluto/iface.py)."""
_REPORT = re.compile(
    r"ChildFailedError|^mpirun (detected|noticed) that|launch\.py:\d+:sigkill_handler\]"
    r"|Sending process \d+ closing signal|failed \(exitcode: |elastic/multiprocessing/api\.py"
)
_SIGNALLED = re.compile(r"SignalException: Process \d+ got signal: (\d+)$")
"""Pattern for the last line that torchrun logs after it receives a signal. torchrun's exit code is then 1."""
_SIGTERM = re.compile(r"SIGTERM|SystemExit|\b[Ss]ignal:? 15\b")
"""Pattern for errors about a request to stop the program, such as Lightning's SIGTERMException."""
_EXIT = re.compile(r"rank\s*:\s*(\d+) \(local_rank: (\d+)\).*?exitcode\s*:\s*(-?\d+)", re.DOTALL)
_FAILED = re.compile(r"failed \(exitcode: (-?\d+)\)")
BEGINS = "===== KONDUKTOR: Running task ====="
"""First line of the command's output. Earlier lines come from konduktor's shell."""
SHELL_ENDED = "finished with exit code: "
"""Part of the last line that konduktor's shell prints about a command."""
_SHELL_ENDED = re.compile(r"^===== KONDUKTOR: .* finished with exit code: (\d+)")
_AFTER_REPORT = re.compile(
    r"^={20,}$|^-{20,}$|^\s|^\[\d+\]:$|^Failures:$|^Root Cause|FAILED$|^===== KONDUKTOR: |^$"
)
_OF_A_LAUNCHER = re.compile(
    r"CalledProcessError: Command .* (returned non-zero exit status|died with <Signals)|TrainingFailedError: "
)
"""Pattern for an error that a launcher raises because a process that it started has failed."""
NOISE = re.compile(
    r"^(\[rank\d+\]:)?\s*$|^[=\-]{5,}|torch/distributed/elastic"
    r"|^(\[rank\d+\]: ?)?(Traceback|\s+File |\s+[\^~]+|frame #\d)"
    r"|^(\[rank\d+\]: ?)?(During handling of the above|The above exception was|\s+\[Previous line repeated)"
    r"|^Extension modules: |^<unknown function>"
    r"|^ *(\+-)+\+?-{5,}|^terminate called after throwing an instance of "
    # Lines that PyTorch and CUDA write below each CUDA error.
    r"|^(\[rank\d+\]: ?)?(CUDA kernel errors might be asynchronously reported|Search for `cuda\w+' in "
    r"|For debugging consider passing CUDA_LAUNCH_BLOCKING|Compile with `TORCH_USE_CUDA_DSA`"
    r"|Device-side assertion tracking was not enabled)"
    r"|^pluto: |\[pluto-sync\]|^Exception raised from "
    # Lines that Hydra prints around a traceback, and Rich's own tracebacks.
    r"|^Error executing job with overrides: |^Set the environment variable HYDRA_FULL_ERROR|^[╭│╰]"
    r"|^pdsh@\S+: \S+ ssh exited with exit code"
    # UCX describes the request below its error.
    r"|ib_mlx5_log\.c:\d+ .{0,20}\bQP 0x"
    # Frames from faulthandler, gdb, glog and glibc.
    r"|^(Current thread|Thread) 0x|^Fatal Python error|^\*\*\* Signal \d+|^PC: @|^\s*@ +0x[0-9a-f]+"
    r"|^#\d+ +(0x[0-9a-f]+ )?in |^#\d+ +0x[0-9a-f]+|\(\+0x[0-9a-f]+\) ?\[0x[0-9a-f]+\]"
)
"""Pattern for lines without information of their own, such as parts of stacks, CUDA's general hints, and
lines that torchrun or the Pluto client prints."""
_FILE_OF_A_STACK = re.compile(r'^(\[rank\d+\]: ?)?\s*File "')
_CODE_OF_A_STACK = re.compile(r"^(\[rank\d+\]: ?)?\s{4,}")
_LAUNCH_HELP = re.compile(r"^(ORTE|PRTE) was unable to reliably start one or more daemons")
"""Pattern for the first line of mpirun's help on ssh errors. The help ends with a line of hyphens."""
_RULE = re.compile(r"^-{20,}")
_ERROR = re.compile(
    r"^(\[rank\d+\]: ?)?([A-Za-z_][\w.]*(Error|Exception|Interrupt|Exit|Timeout|ExceptionGroup)"
    r"|([\w.]+\.)?(StopIteration|TimeoutExpired|BrokenProcessPool))(:( .*)?)?$"
    # The message about an uncaught C++ exception.
    r"|^ *what\(\): "
)


@dataclass(frozen=True)
class Clues:
    """Clues in a log. `rank` and `exit_code` describe the first failed worker in torchrun's report."""

    log: str = ""
    cause: CauseId | None = None
    line: str = ""
    line_number: int = 0
    last: str = ""
    """The rank's own last error or, if there is no error, its last log line."""
    last_number: int = 0
    rank: int | None = None
    exit_code: int | None = None
    of_a_peer: bool = False
    """Whether the rank lost a peer, timed out waiting for one, or received unexpected data from one."""
    others_lost_peers: bool = False
    """Whether `last` is the rank's own error, and another rank in the same log lost a peer."""
    peer_absent: bool = False
    """Whether a collective operation timed out because a peer did not take part."""
    stack: Stack | None = None
    """The stack in the last dump. Stacks are dumped when the rank's deadline expires or the rank ends."""
    retried: str = ""
    """The last line in which the Pluto client reports that the tracker did not respond."""
    report_is_last: bool = False
    """Whether the log ends with torchrun's failure report."""
    torchrun_signal: int = 0
    """The number of the signal that ended torchrun, if torchrun reports it in the last line of the log, or
    0."""

    @property
    def log_quote(self) -> str:
        """Return a sentence that quotes the rank's last error or last log line."""
        if self.last:
            return f"its last log line: {self.last}"
        return "its log is empty" if self.exit_code is None else "its log contains only torchrun's report"

    @property
    def no_error(self) -> bool:
        """Return whether the log contains no errors except those about a request to stop the program."""
        own = _ERROR.match(self.last) is not None and not _SIGTERM.search(self.last)
        reported = self.cause or self.exit_code or self.stack
        return not (own or reported or self.of_a_peer)

    @property
    def refs(self) -> list[str]:
        return [f"{self.log}:{self.last_number}"] if self.last_number else []


def read(tail: Lines, log: str = "", ranks: int = 1) -> Clues:
    """Return the clues in the last lines of a log.

    `tail` contains these lines with their numbers. `log` is the log's path in the bundle, and `ranks` is the
    number of ranks that write to it.
    """
    lines, processes = program_lines.with_processes(tail)
    stack, dumped = stacks.last(lines)
    lines = [entry for entry in lines if entry[0] not in dumped]
    log_text = "\n".join(text for _, text in lines)
    report = log_text.rpartition("Root Cause")[2] if "Root Cause" in log_text else ""
    worker = _EXIT.search(report)
    failure = _FAILED.search(log_text)
    rank = int(worker[1]) if worker else None
    exit_code = int(worker[3]) if worker else int(failure[1]) if failure else child_signals.reported(lines)
    report_is_last = worker is not None and _ends_with(lines)
    torchrun_signal = _torchrun_signal(lines)
    origin = _first_rank_error(lines, processes) if ranks > 1 else None
    others_lost_peers = origin is not None and any(is_of_a_peer(text) for _, text in lines[-80:])
    if origin is not None:
        origin_rank = origin.rank if origin.rank is not None else _rank_of_process(origin.process, worker)
        if origin_rank not in (None, rank):
            rank, exit_code = origin_rank, 1
        detail = origin.number + error_details.LINES
        lines = [entry for entry in lines if entry[0] <= detail and not _REPORT.search(entry[1])]
    reported = _reported(lines, rank if ranks > 1 else None) if origin is None else None
    if reported is not None:
        rank, exit_code = reported.rank, reported.exit_code
        others_lost_peers = ranks > 1 and is_of_a_peer(log_text)
        lines = reported.lines or lines
    if ranks > 1 and rank is not None:
        lines = [entry for entry in lines if _rank_of(entry[1]) in (None, rank)]
    error = (origin.text.strip(), origin.number) if origin else _last_own(lines)
    if reported is not None and reported.error:
        error = (reported.error, reported.number)
    gpu = None if ranks == 1 else -1 if rank is None else rank % ranks
    last, last_number = error_details.complete(lines, error, _ends_an_error, gpu)
    lines = _without_agents_errors(lines, last, last_number)
    has_own_end = (is_error(last) or (exit_code or 0) > 1) and not is_of_a_peer(last)
    begin = survived_errors.end(lines, last_number, is_ordinary, is_of_a_peer)
    is_of_one = ranks == 1 or (origin is not None and origin.rank is not None)
    begin = begin if has_own_end and is_of_one else 0
    cause, clue, clue_number = _cause(lines, last, last_number, begin)
    recent = [text for number, text in lines[-80:] if number >= begin]
    peer_absent = origin is None and any(lost_peers.ABSENT.search(text) for text in recent)
    of_a_peer = origin is None and any(map(is_of_a_peer, recent))
    return Clues(
        log=log,
        cause=cause,
        line=clue[:300],
        line_number=clue_number,
        last=last[:300],
        last_number=last_number,
        rank=rank,
        exit_code=exit_code,
        of_a_peer=of_a_peer,
        others_lost_peers=others_lost_peers,
        peer_absent=peer_absent,
        stack=stack,
        retried=next((text.strip()[:300] for _, text in reversed(lines) if _RETRIED.search(text)), ""),
        report_is_last=report_is_last,
        torchrun_signal=torchrun_signal,
    )


def _cause(lines: Lines, last: str, last_number: int, begin: int) -> tuple[CauseId | None, str, int]:
    """Return (cause, line, line number) for the cause that a line of the log suggests, or (None, "", 0).

    `last` is the rank's last error, which begins on line `last_number`, with its details. The rank survived
    the errors of the network before line `begin`.
    """
    another_error = False
    candidates = [entry for entry in lines if not _CPP_FRAME.match(entry[1])]
    for number, text in reversed(candidates[-RECENT_LINES:]):
        if _WARNING.search(text):
            continue
        is_error = _ERROR.match(text) is not None
        detailed = last if number == last_number else text
        cause = next((cause for cause, pattern in _CLUES if re.search(pattern, detailed)), None)
        if cause is None and cpu_frequency.is_unknown(lines, number, text):
            cause = "rank.no_cpu_frequency"
        if cause in _WITH_FRAME and not environment_errors.applies(lines, number, text):
            cause = None
        # An error did not end the program if another error or more output followed it.
        if cause in AT_ANY_TIME and (another_error or not (is_error or number == last_number)):
            cause = None
        if cause and number < begin and cause.startswith(survived_errors.CAUSES):
            cause = None
        # Without such a variable, a rank has no peers. If it lost one, it had handled the error.
        if cause == "variables.missing" and number != last_number:
            cause = None
        if cause:
            unresolved = (
                unresolved_hosts.unresolved(lines, text) if cause == "rendezvous.unreachable" else None
            )
            cause = "rendezvous.dns" if unresolved else cause
            clue_number, clue = unresolved or (number, detailed.strip())
            return cause, clue, clue_number
        follows = _REPORT.search(text) or _RAISED_FROM.search(text) or is_of_a_peer(text)
        another_error = another_error or (is_error and not follows)
    fault = kernel_messages.gpu_fault(lines) if kernel_messages.explains(last) else None
    if fault is not None:
        return fault.cause, f"{last} (its log also has the kernel's message {fault.text})", last_number
    return None, "", 0


def _without_agents_errors(lines: Lines, last: str, last_number: int) -> Lines:
    """Return the lines without those that torchrun logged after its report about the rank's own error.

    `last` is the rank's last error or last line, on line `last_number`. After its rank has failed, torchrun
    can lose the rendezvous, because it waits for the other nodes, or because rank 0's torchrun has ended.
    Without an error, only an exit code that Python does not use for exceptions is the rank's own.
    """
    if is_of_a_peer(last):
        return lines
    for at, (number, text) in enumerate(lines):
        if number > last_number and (failed := _FAILED.search(text)):
            return lines[:at] if is_error(last) or int(failed[1]) > 1 else lines
    return lines


def of_last_attempt(tail: Lines) -> Lines:
    """Return the program's own lines since torchrun last restarted the ranks."""
    return _latest(program_lines.plain(tail, _MAX_OF_A_LIST))


def _latest(lines: Lines) -> Lines:
    failures = [position for position, (_, text) in enumerate(lines) if _FAILED.search(text)]
    return lines[failures[-2] + 1 :] if failures[1:] else lines


def _reported(lines: Lines, rank: int | None) -> torchrun_report.Failure | None:
    """Return a failure from torchrun's report if it explains more than the rest of the log, otherwise None.

    `rank` is the rank that torchrun names as the root cause, or None if only one rank writes to the log.
    """
    own = [entry for entry in lines if rank is None or _rank_of(entry[1]) in (None, rank)]
    last, _ = _last_own(own)
    failure = torchrun_report.first_own(lines, is_error, is_of_a_peer)
    if failure is None or (is_error(last) and not is_of_a_peer(last)):
        return None
    if is_error(last) and is_of_a_peer(failure.error):
        return None
    return failure if failure.error or rank not in (None, failure.rank) else None


def _rank_of_process(process: str, worker: re.Match[str] | None) -> int | None:
    """Return the rank whose lines have this torchrun prefix, or None.

    The rank is computed from the ranks in torchrun's report.
    """
    local = program_lines.local_rank(process)
    return None if local is None or worker is None else int(worker[1]) - int(worker[2]) + local


def _first_rank_error(lines: Lines, processes: dict[int, str]) -> rank_errors.RankError | None:
    """Return the first exception in the last attempt that ended a rank and was not caused by a lost peer.

    `processes` maps line numbers to prefixes that identify processes.
    """
    reports = [position for position, (_, text) in enumerate(lines) if _REPORT.search(text)]
    failed = [position for position, (_, text) in enumerate(lines) if _FAILED.search(text)]
    begins = [position for position, (_, text) in enumerate(lines) if text.startswith(BEGINS)]
    begin = max([0, *(position + 1 for position in begins), *(position + 1 for position in failed[:-1])])
    end = next((position for position in reports if position >= begin), len(lines))
    return rank_errors.first(
        lines[begin:end],
        lambda text: _ERROR.match(text) is not None,
        lambda text: NOISE.search(text) is not None or _CODE_OF_A_STACK.match(text) is not None,
        is_of_a_peer,
        processes,
    )


def _ends_an_error(text: str) -> bool:
    """Return whether a line shows that the message of the preceding error has ended."""
    return any(pattern.search(text) for pattern in (NOISE, _REPORT, _WARNING, _ERROR))


def is_ordinary(text: str) -> bool:
    """Return whether a line is output of the program itself that is not part of an error."""
    return not (_ends_an_error(text) or _CODE_OF_A_STACK.match(text) or rank_errors.is_logged(text))


def _rank_of(text: str) -> int | None:
    label = rank_errors.OF_A_RANK.match(text)
    return int(label[1]) if label else None


def last_line(tail: Lines) -> tuple[str, int]:
    """Return (text, line number) of the last error in a container's log, or else of its last line.

    Returns ("", 0) for an empty log.
    """
    return _last_own(program_lines.plain(tail))


def is_error(text: str) -> bool:
    """Return whether a line is the last line of a Python traceback, or reports a C++ exception."""
    return _ERROR.match(text) is not None


def is_report(text: str) -> bool:
    """Return whether a line is part of a launcher's report about the processes that it started."""
    return _REPORT.search(text) is not None or _OF_A_LAUNCHER.search(text) is not None


def _ends_with(lines: Lines) -> bool:
    """Return whether the log ends with torchrun's report, ignoring konduktor's success message."""
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
    """Return (text, line number) of the last error before torchrun's report, or of the last meaningful line.

    The number is 0 if there is no such line. If torchrun restarted the ranks, only the last attempt counts,
    unless the ranks printed nothing in it.
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
    messages = [(number, text.strip()) for number, text in _without_stacks(own) if not NOISE.search(text)]
    errors = [entry for entry in reversed(messages[-12:]) if _ERROR.match(entry[1])]
    first = next((entry for entry in errors if not _OF_A_LAUNCHER.search(entry[1])), None)
    number, text = first or next(iter([*errors, *messages[-1:]]), (0, ""))
    return text, number


def _without_stacks(lines: Lines) -> Lines:
    """Return the lines outside Python stacks and mpirun's help on daemons that it could not start.

    A stack has "File …" lines with source lines below them.
    """
    outside, inside, in_help = list[tuple[int, str]](), False, False
    for number, text in lines:
        in_help = _LAUNCH_HELP.match(text) is not None or (in_help and not _RULE.match(text))
        if in_help:
            continue
        of_a_stack = _FILE_OF_A_STACK.match(text) is not None
        inside = of_a_stack or (inside and _CODE_OF_A_STACK.match(text) is not None)
        if not inside:
            outside.append((number, text))
    return outside
