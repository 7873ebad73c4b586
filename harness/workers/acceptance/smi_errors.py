"""Judge nvidia-smi's exit code, its warnings and errors, and the lost GPUs that it reports.

nvidia-smi reports a corrupted infoROM or a lost GPU in a line before or after its data, or only through its
exit code. A script that reads only the data misses these problems. All functions are pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from .check import Check
from .devices import Device, of
from .smi_parser import NOT_SUPPORTED, Gpu, Smi, bus, notes

TAG = "ENV"
SMI, HEALTH, UNDER_LOAD = "env.smi", "env.health", "env.smi.load"
MAX_LETTERS = 300
_LOST_GPU = re.compile(
    r"unable to (?:determine|detect) the device handle|gpu is lost|fallen off the bus|requires? (?:a )?reset",
    re.IGNORECASE,
)
_INFOROM = re.compile(r"inforom.*corrupt|corrupt.*inforom", re.IGNORECASE)
_DRIVER = re.compile(
    r"version mismatch|communicate with the nvidia driver|driver not loaded|nvml: unknown error|"
    r"nvml: insufficient permissions|nvml shared library|couldn't find libnvidia-ml|did not end within",
    re.IGNORECASE,
)
_CODES = {
    8: ("gpu.lost", "a GPU has no external power"),
    9: ("gpu.driver", "the driver is not loaded"),
    10: ("gpu.lost", "the driver detected an interrupt issue with a GPU"),
    12: ("gpu.driver", "the NVML library cannot be found"),
    14: ("gpu.inforom", "the infoROM of a GPU is corrupted"),
    15: ("gpu.lost", "a GPU has fallen off the bus, or is not accessible"),
}
"""Maps each exit code of nvidia-smi to a cause and to the code's meaning according to nvidia-smi's manual."""
_HINTS = (
    (
        re.compile(r"nvml: unknown error|blocked by the operating system", re.IGNORECASE),
        "the container is not permitted to open the GPU devices; a systemd reload on the node can revoke "
        "this permission while a container runs: delete the pod, and suspect the driver only if nvidia-smi "
        "fails on the node too",
    ),
    (
        re.compile(r"version mismatch", re.IGNORECASE),
        "the driver was updated, but its old kernel module is still loaded: drain and reboot the node",
    ),
    (
        re.compile(r"insufficient permissions", re.IGNORECASE),
        "the container's user is not permitted to open the GPU devices: set runAsUser or supplementalGroups",
    ),
    (
        re.compile(r"no devices were found", re.IGNORECASE),
        "the container has no GPU device, or the driver could not initialize any GPU: look for RmInitAdapter "
        "in the node's kernel log",
    ),
)
"""nvidia-smi messages that do not contain a reason, each with the usual reason and the recommended action."""
_RECOVERED = ("none", "n/a")
_FABRIC_READY = ("completed", "n/a")
_REGISTERED = ("success", "n/a", "")
_BAD_HEALTH = ("unhealthy", "limited capacity", "degraded")
_BAD_IF_TRUE = ("route_unhealthy", "access_timeout_recovery")
_MISCONFIGURED, _CORRECT = "incorrect_configuration", ("none", "false", "no")


@dataclass(frozen=True)
class Reading:
    """The outcome of an `nvidia-smi -q -x` call. If `smi` is None, `error` contains the reason."""

    smi: Smi | None
    error: str = ""
    failed: bool = False
    """Whether nvidia-smi failed. False if it is missing from the container."""
    code: int = 0
    """The exit code of nvidia-smi if it failed, otherwise 0."""

    @property
    def cause(self) -> str | None:
        """Return the cause that a failed call's message or exit code proves, or None if there is none."""
        if not self.failed:
            return None
        return cause_of(self.error) or _CODES.get(self.code, (None, ""))[0]


def cause_of(text: str) -> str | None:
    """Return the cause that an nvidia-smi message proves, or None if it proves none."""
    for pattern, cause in ((_INFOROM, "gpu.inforom"), (_LOST_GPU, "gpu.lost"), (_DRIVER, "gpu.driver")):
        if pattern.search(text):
            return cause
    return None


def unparsed(text: str, code: int) -> str:
    """Return a sentence that explains why nvidia-smi's output has no GPU data, and quotes the output."""
    if "<nvidia_smi_log" in text:
        return f"nvidia-smi's XML output (exit code {code}) is cut off before the end of its first GPU"
    lines = "; ".join(notes(text))[:MAX_LETTERS]
    text = f"nvidia-smi ended with exit code {code} and printed {f'no data: {lines}' if lines else 'nothing'}"
    hint = next((hint for pattern, hint in _HINTS if pattern.search(lines)), "")
    if not hint and code in _CODES and cause_of(lines) is None:
        hint = f"the code means that {_CODES[code][1]}"
    return f"{text}; {hint}" if hint else text


def checks(reading: Reading, devices: Sequence[Device]) -> Iterator[Check]:
    """Yield the check SMI for the node and a check HEALTH for each of its devices."""
    smi = reading.smi
    if smi is None:
        cause = reading.cause
        verdict, id = ("FAIL" if cause else "UNKNOWN"), SMI
        yield Check(id=id, tag=TAG, verdict=verdict, text=reading.error, cause=cause)  # type: ignore[arg-type] # a literal
        for device in devices:
            text = f"not known: {reading.error}"
            yield Check(id=HEALTH, tag=TAG, verdict="UNKNOWN", text=text, **device.where)
        return
    gpus = {device: of(smi, device) for device in devices}
    gpu_notes = [note for note in smi.notes if any(gpu and gpu.bus == bus(note) for gpu in gpus.values())]
    yield _of_node(smi, [note for note in smi.notes if note not in gpu_notes])
    for device, gpu in gpus.items():
        if gpu is None:
            text = f"nvidia-smi does not list GPU {device.uuid or device.index}"
            yield Check(id=HEALTH, tag=TAG, verdict="UNKNOWN", text=text, **device.where)
            continue
        own = [note for note in gpu_notes if bus(note) == gpu.bus]
        yield _of_gpu(gpu, own, device)


def under_load(at_rest: Reading, loaded: Reading, devices: Sequence[Device]) -> Check:
    """Return the check UNDER_LOAD. It contains the worst problem that nvidia-smi reports only under load."""
    before = {(one.id, one.gpu, one.verdict, one.text) for one in checks(at_rest, devices)}
    new = [
        one
        for one in checks(loaded, devices)
        if one.verdict != "PASS" and (one.id, one.gpu, one.verdict, one.text) not in before
    ]
    order = ("FAIL", "UNKNOWN", "WARN")
    if new:
        return replace(min(new, key=lambda one: order.index(one.verdict)), id=UNDER_LOAD)
    text = "nvidia-smi reports no further problem while the GPUs are under load"
    return Check(id=UNDER_LOAD, tag=TAG, verdict="PASS", text=text)


def lost_gpus(smi: Smi | None) -> list[str]:
    """Return the lines in nvidia-smi's output about GPUs that the driver cannot reach."""
    return [note for note in smi.notes if _LOST_GPU.search(note)] if smi else []


def fabric_problem(smi: Smi | None) -> str | None:
    """Return the NVLink fabric's state if it prevents CUDA from starting, otherwise None."""
    states = {gpu.fabric for gpu in smi.gpus if gpu.fabric} if smi else set()
    bad = sorted(state for state in states if state.lower() not in _FABRIC_READY)
    return bad[0] if bad else None


def _of_node(smi: Smi, general: Sequence[str]) -> Check:
    """Return the check for the node's nvidia-smi output.

    `general` contains the lines that do not name a tested GPU.
    """
    causes = [(cause, note) for note in general if (cause := cause_of(note)) is not None]
    if causes:
        cause = causes[0][0]
        return Check(id=SMI, tag=TAG, verdict="FAIL", text=_quoted([n for _, n in causes]), cause=cause)
    if smi.code in _CODES and not any(map(cause_of, smi.notes)):
        cause, meaning = _CODES[smi.code]
        text = f"nvidia-smi ended with exit code {smi.code} and did not name the GPU: {meaning}"
        return Check(id=SMI, tag=TAG, verdict="FAIL", text=text, cause=cause)
    if smi.damage:
        text = f"nvidia-smi's XML output is damaged ({smi.damage}); {len(smi.gpus)} GPUs could be read"
        return Check(id=SMI, tag=TAG, verdict="UNKNOWN", text=text)
    if smi.attached is not None and smi.attached > len(smi.gpus):
        text = f"the driver counts {smi.attached} GPUs, but nvidia-smi lists only {len(smi.gpus)}"
        return Check(id=SMI, tag=TAG, verdict="UNKNOWN", text=text)
    if general or (smi.code and not any(map(cause_of, smi.notes))):
        words = [_quoted(general)] if general else []
        words += [f"nvidia-smi ended with exit code {smi.code}"] if smi.code else []
        text = "; ".join(words)
        return Check(id=SMI, tag=TAG, verdict="WARN", text=text, cause="gpu.smi_warning")
    text = f"nvidia-smi described {len(smi.gpus)} GPUs" + (f" (exit code {smi.code})" if smi.code else "")
    return Check(id=SMI, tag=TAG, verdict="PASS", text=text)


def _of_gpu(gpu: Gpu, own: Sequence[str], device: Device) -> Check:
    """Return the check for one GPU.

    The check covers warnings that name the GPU, errors in its data, and required repairs.
    """
    faults = [(cause, note) for note in own if (cause := cause_of(note)) is not None]
    faults += [
        (cause, f"{field}: {text}")
        for field, text in gpu.errors.items()
        if (cause := cause_of(text)) is not None
    ]
    if gpu.recovery and gpu.recovery.lower() not in _RECOVERED and "recovery" not in gpu.errors:
        faults.append(("gpu.lost", f"the driver's recommended action for this GPU: {gpu.recovery}"))
    if gpu.reset_required == "Yes":
        faults.append(("gpu.lost", "this GPU requires a reset"))
    faults += [("gpu.nvlink", text) for text in _fabric_faults(gpu)]
    for name, state in gpu.repairs.items():
        if state == "Yes":
            cause = "gpu.ecc" if name == "unrepairable_memory" else "gpu.remapped_rows"
            faults.append((cause, f"{name.replace('_', ' ')}: Yes"))
    if faults:
        cause, text = faults[0][0], _quoted([text for _, text in faults])
        return Check(id=HEALTH, tag=TAG, verdict="FAIL", text=text, cause=cause, **device.where)
    doubts = list(own)
    if gpu.errors:
        first = ", ".join(f"{field}: {text}" for field, text in list(gpu.errors.items())[:3])
        doubts.append(f"number of values that nvidia-smi could not read: {len(gpu.errors)} ({first})")
    doubts += [f"{name.replace('_', ' ')}: {state}" for name, state in gpu.repairs.items()]
    if doubts:
        text, warning = _quoted(doubts), "gpu.smi_warning"
        return Check(id=HEALTH, tag=TAG, verdict="WARN", text=text, cause=warning, **device.where)
    text = "nvidia-smi reports no error for this GPU"
    if gpu.recovery and gpu.recovery != NOT_SUPPORTED:
        text += ", and the driver recommends no recovery action"
    return Check(id=HEALTH, tag=TAG, verdict="PASS", text=text, **device.where)


def _fabric_faults(gpu: Gpu) -> Iterator[str]:
    """Yield a GPU's problems with the NVLink fabric: a registration that failed, and poor health."""
    status = gpu.fabric_status or ""
    if (gpu.fabric or "").lower() == "completed" and status.lower() not in _REGISTERED:
        yield f"the registration with the NVLink fabric ended with {status}"
    for name, text in gpu.fabric_health.items():
        word = text.lower()
        misconfigured = name == _MISCONFIGURED and word not in _CORRECT
        if word in _BAD_HEALTH or misconfigured or (name in _BAD_IF_TRUE and word in ("true", "yes")):
            yield f"health of the NVLink fabric: {name.replace('_', ' ')}: {text}"


def _quoted(lines: Sequence[str]) -> str:
    text = "; ".join(dict.fromkeys(lines))
    return text if len(text) <= MAX_LETTERS else text[: MAX_LETTERS - 1] + "…"
