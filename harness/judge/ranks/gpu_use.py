"""Find ranks that used the CPU although their container requests GPUs.

Each rank's process records whether PyTorch initialised a GPU. The ranks' logs often contain the reason. They
are the only evidence if nothing was recorded.

PyTorch only warns if it cannot use a GPU ("CUDA initialization: …"). A program that then selects the CPU logs
every point and exits with 0. A sentence counts only if it means that the process that logged it uses the CPU.
TensorFlow and JAX also report that they found no GPU, but a PyTorch program can use them for data or
TensorBoard alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from harness.core.causes import CauseId
from harness.evidence.kubernetes import gpu_nodes
from harness.evidence.kubernetes.objects import items
from harness.evidence.worlds import RankLife
from harness.judge.case import Case, names
from harness.judge.finding import Finding, not_passed, passed, unknown
from harness.judge.logs import known_errors, launcher_reports, program_lines
from harness.judge.ranks import launcher_failures

_WORDS = (
    *(b" initialization: ", b"no accelerator is found", b"CUDA is not available", b"device count is zero"),
    *(b"GPU available: ", b"ds_accelerator to cpu", b"accelerator to CPU", b"MULTI_CPU", b"Ultralytics "),
    *(b"YOLOv", b"torch.cuda.is_available", b"CUDA available", b"CUDA is available", b"evice: cpu"),
    *(b"evice cpu", b"cpu device", b"Running on "),
)
"""Each sentence in _SENTENCES contains one of these strings. They are a fast filter for the lines of a
log."""
_SENTENCES: tuple[tuple[CauseId | None, str], ...] = (
    # c10/cuda/CUDAFunctions.cpp prints the driver's error with this prefix, and PyTorch then has no GPU.
    ("gpu.absent", r"[Ww]arning: ((CUDA|HIP) initialization: .*no (CUDA|ROCm)-capable device is detected.*)"),
    ("gpu.driver", r"[Ww]arning: ((CUDA|HIP) initialization: .*)"),
    ("gpu.absent", r"[Ww]arning: (XPU device count is zero.*)"),
    ("gpu.absent", r"('pin_memory' argument is set as true but no accelerator is found.*)"),
    ("gpu.absent", r"(GradScaler is enabled, but CUDA is not available.*)"),
    ("gpu.absent", r"(User provided device_type of 'cuda', but CUDA is not available.*)"),
    # Lightning, DeepSpeed, the example scripts of Transformers, timm, Accelerate and Ultralytics print these.
    ("gpu.absent", r"(GPU available: False.*)"),
    ("gpu.not_used", r"(GPU available: True.*\bused: False.*)"),
    ("gpu.absent", r"(Setting ds_accelerator to cpu \(auto detect\)|Setting accelerator to CPU\. If you .*)"),
    ("gpu.not_used", r"(Setting ds_accelerator to cpu.*)"),
    ("gpu.not_used", r"([Pp]rocess rank: (?P<rank>\d{1,6}), device: cpu\b.*)"),
    ("gpu.not_used", r"(Process (?P<rank>\d{1,6}), total \d+, device cpu\b.*)"),
    ("gpu.not_used", r"(Distributed environment: (DistributedType\.)?MULTI_CPU\b.*)"),
    ("gpu.not_used", r"((Ultralytics|YOLOv\d)\b.*\btorch[- ]\S+ CPU(?= |$).*)"),
    # Many programs, and torch.utils.collect_env, print the next two.
    ("gpu.absent", r"(\btorch\.cuda\.is_available(\(\))? ?(is|=|==|:|->)? ?False\b.*)"),
    ("gpu.absent", r"(\bCUDA (is )?available ?[:=] ?False\b.*)"),
    (None, r"(?:^|[\s:\]|-])((Using device:? cpu|Using cpu device|Device: cpu|Running on (the )?CPU)\.?)$"),
)
"""Pairs of (cause, pattern for a sentence). The first group of a pattern is the sentence itself. If there is
no cause, the sentence can also be about a part of the program, so the check is UNKNOWN."""
_PATTERNS = [(cause, re.compile(pattern)) for cause, pattern in _SENTENCES]
_ANY = re.compile("|".join(pattern.replace("(?P<rank>", "(") for _, pattern in _SENTENCES))
"""Pattern for a line that may contain a sentence. Most lines are searched only for this pattern."""
_ENDS = re.compile(r" \((Triggered internally|function )")
"""Pattern for the text that C++ code of PyTorch adds to a warning."""
_USED = re.compile(
    rb"NCCL version \d|NCCL INFO |GPU available: True[^\n]*\bused: True|[Dd]evice:? cuda"
    rb"|ds_accelerator to (cuda|xpu)"
)
"""Pattern for lines of a process that uses a GPU. In a log with such a line, a sentence without a rank may be
from a process that is not a rank, such as a script that prepares the data."""
_OF_USE = (b"NCCL version", b"NCCL INFO", b"evice: cuda", b"evice cuda", b"used: True", b"ds_accelerator to ")
_NOT_INITIALISED = "PyTorch did not initialise CUDA, ROCm or XPU in its process"
_MAX_CHARACTERS = 300
_MAX_SENTENCES = 1000
"""Maximum number of lines with a sentence that are read. A program can print one in each step."""


@dataclass(frozen=True)
class _Sentence:
    """A statement that a rank used the CPU, with the rank if it is known."""

    cause: CauseId | None
    text: str
    ref: str
    rank: int | None


@dataclass(frozen=True)
class _OnCpu:
    """The ranks of one pod that used the CPU. If `some` is True, only some of `ranks` used it."""

    ranks: list[int]
    some: bool
    place: str
    sentence: _Sentence
    logged: bool = True
    """Whether the sentence is from a log."""

    @property
    def detail(self) -> str:
        return f"{self.place}{' logged' if self.logged else ''}: {self.sentence.text}"


def check(case: Case) -> Finding:
    """Run the `gpus` check: no rank whose container requests GPUs used the CPU instead."""
    requesting = requested(case)
    on_cpu = [found for index in requesting if (found := _of_pod(case, index)) is not None]
    on_cpu += _of_launchers(case, [rank for index in requesting for rank in case.ranks_of(index)])
    logged = {rank for each in on_cpu if each.sentence.cause is not None for rank in each.ranks}
    on_cpu += [each for each in _unused(case, requesting) if not logged.issuperset(each.ranks)]
    on_cpu = [each for each in on_cpu if each.sentence.cause is not None] or on_cpu
    if not on_cpu:
        return passed("gpus", "no process and no log shows that a rank used the CPU instead of its GPUs")
    ranks = sorted({rank for each in on_cpu for rank in each.ranks})
    subject = f"at least one of {names(ranks)}" if any(each.some for each in on_cpu) else names(ranks)
    pods = "the container requests" if len(ranks) == 1 else "the containers request"
    resources = dict.fromkeys(name for each in requesting.values() for name in each)
    details = [each.detail for each in on_cpu]
    refs = [each.sentence.ref for each in on_cpu][:8]
    first = on_cpu[0].sentence
    if first.cause is None:
        text = f"{subject} may have used the CPU, although {pods} GPUs ({', '.join(resources)})"
        return unknown("gpus", text, details=details, ranks=ranks, evidence=refs)
    return not_passed(
        "gpus",
        first.cause,
        f"{subject} used the CPU, although {pods} GPUs ({', '.join(resources)})",
        details=details,
        ranks=ranks,
        evidence=refs,
        advice=known_errors.advice(first.text),
    )


def requested(case: Case) -> dict[int, dict[str, float]]:
    """Map each node whose rank container requests GPUs to the amounts of the requested resources."""
    result = {}
    for index, pod in case.pods.items():
        containers = items(pod.last.object, "spec", "containers")
        own = next((each for each in containers if each.get("name") == case.launch.container), {})
        if resources := gpu_nodes.requested_by(own):
            result[index] = resources
    return result


def _of_pod(case: Case, index: int) -> _OnCpu | None:
    """Return the ranks of a node's pod that used the CPU, or None if its log does not show any."""
    log = case.bundle.log(case.pods[index].name, case.launch.container)
    ends = [end for life in case.lives.get(index, []) for end in life.ends]
    known_used = len(ends) >= len(case.ranks_of(index)) and all(end.gpu for end in ends)
    return _of_log(case, log, case.ranks_of(index), case.place(index), known_used)


def _unused(case: Case, requesting: Mapping[int, Mapping[str, float]]) -> Iterator[_OnCpu]:
    """Yield the ranks whose processes recorded that PyTorch did not initialise a GPU.

    A rank without torch.distributed may be a script that only starts the training. If the pod has more ranks
    than GPUs, a rank may coordinate the others. In both cases, the result has no cause.
    """
    for index, amounts in requesting.items():
        lives = case.lives.get(index, [])
        is_used = any(end.gpu for life in lives for end in life.ends)
        may_coordinate = is_used and len(lives) > sum(amounts.values())
        for life in lives:
            if (
                not life.ends
                or any(end.gpu is not False for end in life.ends)
                or _has_others(case, index, life)
            ):
                continue
            cause: CauseId | None = "gpu.not_used" if life.by == "group" and not may_coordinate else None
            sentence = _Sentence(cause, _NOT_INITIALISED, life.ref, life.rank)
            yield _OnCpu([life.rank], False, names([life.rank]), sentence, logged=False)


def _has_others(case: Case, index: int, life: RankLife) -> bool:
    """Return whether a process that started during this life of a rank may have used a GPU for the rank."""
    ranks = {process.id for other in case.lives[index] for process in other.processes}
    began = min(process.began for process in life.processes)
    ended = max(end.time_ms for end in life.ends)
    others = [
        process
        for process in case.processes[index].processes.values()
        if process.id not in ranks and began <= process.began <= ended and process.start is not None
    ]
    return any(process.end is None or process.end.gpu is not False for process in others)


def _of_launchers(case: Case, ranks: list[int]) -> Iterator[_OnCpu]:
    """Yield the ranks that used the CPU according to the log of an MPIJob's launcher.

    This log contains the output of the ranks. `ranks` are the ranks whose containers request GPUs.
    """
    for pod, container in launcher_failures.launcher_containers(case) if ranks else ():
        log = case.bundle.log(pod, container)
        if (found := _of_log(case, log, ranks, f"{names(ranks)} (log of the launcher {pod})")) is not None:
            yield found


def _of_log(case: Case, log: str, ranks: list[int], place: str, known_used: bool = False) -> _OnCpu | None:
    """Return those of `ranks` that used the CPU, or None if the log at `log` does not show any.

    If all processes of the ranks used a GPU (`known_used`), only sentences with a rank count.
    """
    sentences, used = _sentences(case, log, ranks)
    sentences = [each for each in sentences if each.cause is not None] or sentences
    labelled = [each for each in sentences if each.rank in ranks]
    if labelled:
        own = sorted({each.rank for each in labelled if each.rank is not None})
        return _OnCpu(own, False, place if own == ranks else names(own), labelled[0])
    if not sentences or used or known_used:
        return None
    first = sentences[0]
    processes = sum(each.text == first.text for each in sentences)
    return _OnCpu(ranks, len(ranks) > 1 and processes < len(ranks), place, first)


def _sentences(case: Case, log: str, ranks: list[int]) -> tuple[list[_Sentence], bool]:
    """Return the sentences in the last attempt in a log, and whether the log shows that a GPU was used."""
    lines: list[tuple[int, str]] = []
    used = False
    for number, line in enumerate(case.bundle.log_lines(log), 1):
        if launcher_reports.RANK_FAILED in line:
            lines, used = [], False
        elif any(word in line for word in _WORDS):
            text = line.decode(errors="replace").rstrip()
            if _ANY.search(text) and len(lines) < _MAX_SENTENCES:
                lines.append((number, text))
        used = used or (any(word in line for word in _OF_USE) and _USED.search(line) is not None)
    return list(_read(lines, log, ranks)), used


def _read(lines: list[tuple[int, str]], log: str, ranks: list[int]) -> Iterator[_Sentence]:
    """Yield the sentences in these lines of the log at `log`, to which these ranks write."""
    plain, processes = program_lines.with_processes(lines)
    for number, text in plain:
        cause, match = next(((c, m) for c, pattern in _PATTERNS if (m := pattern.search(text))), (None, None))
        if match is None:
            continue
        own = match.groupdict().get("rank")
        rank = int(own) if own else rank_of_process(processes.get(number, ""), ranks)
        yield _Sentence(cause, _ENDS.split(match[1])[0].strip()[:_MAX_CHARACTERS], f"{log}:{number}", rank)


def rank_of_process(process: str, ranks: list[int]) -> int | None:
    """Return the rank in a label of torchrun ("[default1]") or of mpirun ("[1,1]<stderr>"), or None."""
    if label := launcher_reports.OF_PROCESS.match(f"{process}:"):
        return int(label["rank"])
    local = program_lines.local_rank(process)
    return ranks[local] if local is not None and local < len(ranks) else None
