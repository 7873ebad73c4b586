"""Parse the output of `nvidia-smi -q -x` and `nvidia-smi nvlink -s`.

A field is NOT_SUPPORTED if nvidia-smi prints N/A, and None if nvidia-smi does not print the field. If
nvidia-smi prints other text instead of a value, such as "[Unknown Error]", the field is Unreadable. Old and
new field names are accepted, because they differ between driver versions.

nvidia-smi may print warnings about a GPU before or after the XML document, so this text is kept. If the
document is truncated or not valid XML, the GPUs whose elements are complete are still parsed. All functions
are pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Optional, Union
from xml.etree import ElementTree

NotSupported = Literal["N/A"]
NOT_SUPPORTED: NotSupported = "N/A"


class Unreadable(str):
    """The text that nvidia-smi prints instead of a value that it could not read."""

    __slots__ = ()


Number = Union[float, NotSupported, Unreadable, None]
Word = Optional[str]
Bus = tuple[int, int, int, int]
"""A GPU's PCIe address: domain, bus, device and function."""
_NOT_SUPPORTED_WORDS = ("n/a", "not supported", "not active on this gpu")
_DEPRECATED = "requested functionality has been deprecated"
_NUMBER = re.compile(r"(-?\d+(?:\.\d+)?)\s*(?:x|%|[A-Za-z/]+|bank\(s\))?")
_BUS = re.compile(r"(?:([0-9a-fA-F]{1,8}):)?([0-9a-fA-F]{2}):([0-9a-fA-F]{2})\.([0-9a-fA-F])")
_STATES = {word.lower(): word for word in ("Enabled", "Disabled", "Yes", "No")}
_ACTIVE = {"active": True, "not active": False}
_REASONS = ("clocks_event_reasons", "clocks_throttle_reasons")
_SRAM_UNCORRECTED = ("sram_uncorrectable", "sram_uncorrectable_parity", "sram_uncorrectable_secded")
"""The names under which drivers report uncorrectable SRAM errors: one counter on Ampere, two on Hopper and
later."""
_ROOT = "nvidia_smi_log"
_GPU = re.compile(r"<gpu(?: [^<>]*)?>.*?</gpu>", re.DOTALL)
_ILLEGAL = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML does not permit."""
_LIST_TAGS = ("processes", "supported_clocks", "accounted_processes", "vgpu_software_licensed_product")
"""XML elements that contain lists. They are ignored, because they do not describe a GPU's state."""


@dataclass(frozen=True)
class Gpu:
    """One GPU, as described in nvidia-smi's output."""

    uuid: str
    name: str
    index: int
    """The GPU's index in nvidia-smi's output. PyTorch may number the GPUs differently."""
    bus: Bus | None = None
    memory: int = 0
    """The size of the GPU's memory in bytes."""
    memory_used: Number = None
    """The amount of GPU memory in use, in bytes."""
    persistence: Word = None
    mig: Word = None
    mig_pending: Word = None
    """The MIG mode that the GPU will have after its next reset."""
    virtualization: Word = None
    """The virtualization mode according to nvidia-smi: "None", "Pass-Through", "VGPU" or "Host VGPU"."""
    c2c: Word = None
    """Whether NVLink-C2C connects the GPU to a Grace CPU."""
    ecc_mode: Word = None
    ecc_pending: Word = None
    """The ECC mode that the GPU will have after its next reset."""
    sram_corrected: Number = None
    sram_uncorrected: Number = None
    dram_corrected: Number = None
    dram_uncorrected: Number = None
    """The number of errors in the GPU's main memory since the driver was loaded. Errors before that do not
    count, because the driver has remapped the affected rows in the meantime."""
    sram_threshold: Word = None
    """Whether the GPU should be replaced, because the number of uncorrectable SRAM errors exceeds a
    threshold."""
    rows_uncorrectable: Number = None
    """Number of memory rows that were remapped after an uncorrectable error."""
    rows_pending: Word = None
    rows_failed: Word = None
    banks_exhausted: Number = None
    """Number of memory banks that have no spare rows left."""
    pages_retired: Number = None
    """Number of retired memory pages. GPUs before Ampere retire pages, because they cannot remap rows."""
    pages_pending: Word = None
    repairs: Mapping[str, str] = field(default_factory=dict)
    """Fields that report a pending or impossible memory repair. They are included unless their value is
    "No"."""
    pcie_generation: Number = None
    pcie_generation_max: Number = None
    """The highest PCIe generation that both the GPU and the host support."""
    pcie_width: Number = None
    pcie_width_max: Number = None
    sm_clock: Number = None
    """The current SM clock in MHz."""
    sm_clock_max: Number = None
    reasons: frozenset[str] | NotSupported | None = None
    """The active throttle reasons, such as gpu_idle, sw_power_cap, hw_slowdown or hw_thermal_slowdown."""
    reasons_unreadable: Mapping[str, str] = field(default_factory=dict)
    """Maps each throttle reason that cannot be read to the text that nvidia-smi prints in place of its
    state."""
    recovery: Word = None
    """The driver's recommended recovery action: "None", "Reset", "Reboot", "Drain P2P" or "Drain and
    Reset"."""
    reset_required: Word = None
    fabric: Word = None
    """State of the GPU's registration with the NVLink fabric. It exists only on systems with NVSwitches."""
    fabric_status: Word = None
    """The result of a completed registration with the NVLink fabric, such as Success or Insufficient
    Resources."""
    fabric_health: Mapping[str, str] = field(default_factory=dict)
    """Maps the name of each health field of the NVLink fabric, such as bandwidth, to its value, such as Full
    or Degraded."""
    errors: Mapping[str, str] = field(default_factory=dict)
    """Maps the path of a field to the NVML error that nvidia-smi prints instead of a value."""


@dataclass(frozen=True)
class Smi:
    """The parsed output of one nvidia-smi call."""

    driver: str
    cuda: str
    gpus: tuple[Gpu, ...] = field(default=())
    code: int = 0
    """nvidia-smi's exit code."""
    notes: tuple[str, ...] = ()
    """Lines that nvidia-smi printed in addition to its data, such as warnings about a GPU."""
    attached: int | None = None
    """Number of GPUs according to the driver."""
    damage: str = ""
    """The reason why only a part of the XML document could be parsed. "" if it was parsed completely."""


def parse(text: str, code: int = 0) -> Smi | None:
    """Return the content of an `nvidia-smi -q -x` document, or None if the text does not contain one.

    `text` is the whole output, including stderr. `code` is the exit code.
    """
    text = _ILLEGAL.sub("\ufffd", text)
    start = text.find(f"<{_ROOT}>")
    if start < 0:
        return None
    end = text.find(f"</{_ROOT}>", start)
    xml = text[start : end + len(f"</{_ROOT}>")] if end >= 0 else text[start:]
    other_text = text[:start] + (text[start + len(xml) :])
    try:
        # The text is trusted, because it comes from the driver on this host.
        root = ElementTree.fromstring(xml)  # noqa: S314
        damage = ""
    except ElementTree.ParseError as error:
        root, rest = _salvaged(xml)
        damage = "it ends in the middle of a GPU" if end < 0 else f"it is not valid XML: {error}"
        if end < 0 and not rest:
            damage = "its end is missing"
    gpus = root.findall("gpu")
    if damage and not gpus:
        return None
    between = [root.text, *(child.tail for child in root), *(text for gpu in gpus for text in _tails(gpu))]
    attached_gpus = _number(root.findtext("attached_gpus"))
    return Smi(
        driver=(root.findtext("driver_version") or "").strip(),
        cuda=(root.findtext("cuda_version") or "").strip(),
        gpus=tuple(_gpu(element, index) for index, element in enumerate(gpus)),
        code=code,
        notes=tuple(notes("\n".join([other_text, *(part for part in between if part)]))),
        attached=int(attached_gpus) if isinstance(attached_gpus, float) else None,
        damage=damage,
    )


def notes(text: str) -> list[str]:
    """Return the distinct lines of a text, except empty lines and the declarations at the start of XML."""
    lines = (line.strip() for line in text.splitlines())
    return list(dict.fromkeys(line for line in lines if line and not line.startswith(("<?xml", "<!DOCTYPE"))))


def bus(text: str) -> Bus | None:
    """Return the PCIe address in a string, or None if there is none.

    The domain may have one to eight digits, or be missing.
    """
    match = _BUS.search(text)
    if match is None:
        return None
    return (int(match[1] or "0", 16), int(match[2], 16), int(match[3], 16), int(match[4], 16))


def parse_links(text: str) -> dict[str, list[float]]:
    """Parse the output of `nvidia-smi nvlink -s`, and return the speed of each NVLink in GB/s.

    The keys are the UUIDs of the GPUs, and the values are lists of speeds. A link that is down has speed 0. A
    GPU without links has an empty list.
    """
    links: dict[str, list[float]] = {}
    uuid = None
    for line in text.splitlines():
        if head := re.match(r"GPU \d+: .*\(UUID: (\S+)\)", line):
            uuid = head[1]
            links[uuid] = []
        elif uuid and (link := re.match(r"\s+Link \d+: (?:(\d+(?:\.\d+)?) GB/s|<inactive>)", line)):
            links[uuid].append(float(link[1] or 0))
    return links


def _salvaged(text: str) -> tuple[ElementTree.Element, str]:
    """Return a document with a damaged document's complete GPUs, and the text that was not parsed."""
    root = ElementTree.Element(_ROOT)
    for tag in ("driver_version", "cuda_version", "attached_gpus"):
        if match := re.search(f"<{tag}>([^<]*)</{tag}>", text):
            ElementTree.SubElement(root, tag).text = match[1]
    rest = text
    for part in _GPU.findall(text):
        try:
            root.append(ElementTree.fromstring(part))  # noqa: S314
        except ElementTree.ParseError:
            continue
        rest = rest.replace(part, "", 1)
    return root, rest[rest.find("<gpu") :] if "<gpu" in rest else ""


def _tails(element: ElementTree.Element) -> list[str]:
    """Return the texts between an element's child elements.

    nvidia-smi prints messages there that are not values of a field.
    """
    texts = []
    for child in element.iter():
        if len(child):
            texts += [child.text or "", *(below.tail or "" for below in child)]
    return texts


def _gpu(element: ElementTree.Element, index: int) -> Gpu:
    link, rows, pages = "pci/pci_gpu_link_info", "remapped_rows", "retired_pages"
    mebibytes = _number(_text(element, "fb_memory_usage/total"))
    used = _number(_text(element, "fb_memory_usage/used"))
    reasons, unreadable = _reasons(element)
    return Gpu(
        uuid=(element.findtext("uuid") or "").strip(),
        name=(element.findtext("product_name") or "").strip(),
        index=index,
        bus=bus(element.get("id") or element.findtext("pci/pci_bus_id") or ""),
        memory=int(mebibytes * 2**20) if isinstance(mebibytes, float) else 0,
        memory_used=used * 2**20 if isinstance(used, float) else used,
        persistence=_state(_text(element, "persistence_mode")),
        mig=_state(_text(element, "mig_mode/current_mig")),
        mig_pending=_state(_text(element, "mig_mode/pending_mig")),
        virtualization=_word(_text(element, "gpu_virtualization_mode/virtualization_mode")),
        c2c=_state(_text(element, "c2c_mode")),
        ecc_mode=_state(_text(element, "ecc_mode/current_ecc")),
        ecc_pending=_state(_text(element, "ecc_mode/pending_ecc")),
        sram_corrected=_errors(element, ("sram_correctable",), "single_bit"),
        sram_uncorrected=_errors(element, _SRAM_UNCORRECTED, "double_bit"),
        dram_corrected=_recent_errors(element, "dram_correctable", "single_bit"),
        dram_uncorrected=_recent_errors(element, "dram_uncorrectable", "double_bit"),
        sram_threshold=_state(_text(element, "ecc_errors/aggregate/sram_threshold_exceeded")),
        rows_uncorrectable=_number(_text(element, f"{rows}/remapped_row_unc")),
        rows_pending=_state(_text(element, f"{rows}/remapped_row_pending")),
        rows_failed=_state(_text(element, f"{rows}/remapped_row_failure")),
        banks_exhausted=_number(_text(element, f"{rows}/row_remapper_histogram/row_remapper_histogram_none")),
        pages_retired=_total(
            [
                _number(_text(element, f"{pages}/{kind}/retired_count"))
                for kind in ("multiple_single_bit_retirement", "double_bit_retirement")
            ]
        ),
        pages_pending=_first_state(element, f"{pages}/pending_retirement", f"{pages}/pending_blacklist"),
        repairs=_repairs(element),
        pcie_generation=_number(_text(element, f"{link}/pcie_gen/current_link_gen")),
        pcie_generation_max=_number(_text(element, f"{link}/pcie_gen/max_link_gen")),
        pcie_width=_number(_text(element, f"{link}/link_widths/current_link_width")),
        pcie_width_max=_number(_text(element, f"{link}/link_widths/max_link_width")),
        sm_clock=_number(_text(element, "clocks/sm_clock")),
        sm_clock_max=_number(_text(element, "max_clocks/sm_clock")),
        reasons=reasons,
        reasons_unreadable=unreadable,
        recovery=_word(_text(element, "gpu_recovery_action")),
        reset_required=_state(_text(element, "gpu_reset_status/reset_required")),
        fabric=_word(_text(element, "fabric/state")),
        fabric_status=_word(_text(element, "fabric/status")),
        fabric_health=_fabric_health(element),
        errors=_nvml_errors(element),
    )


def _text(element: ElementTree.Element, path: str) -> str | None:
    """Return a field's text.

    If nvidia-smi prints N/A or an error in place of the group that contains the field, return this text.
    """
    group: ElementTree.Element | None = element
    for tag in path.split("/"):
        assert group is not None
        child = group.find(tag)
        if child is None:
            return None if group is element or len(group) else group.text
        group = child
    assert group is not None
    return group.text


def _reasons(
    element: ElementTree.Element,
) -> tuple[frozenset[str] | NotSupported | None, dict[str, str]]:
    """Return the active throttle reasons, and the text that nvidia-smi prints for each unreadable reason.

    If no reason has a readable state, the first value is NOT_SUPPORTED or None.
    """
    for name in _REASONS:
        group = element.find(name)
        if group is None:
            continue
        if not len(group):
            word = _word(group.text)
            if word in (None, NOT_SUPPORTED):
                return word, {}
            return None, {"all reasons": str(word)}
        prefix = name.removesuffix("s") + "_"
        words = {child.tag.removeprefix(prefix): _word(child.text) for child in group}
        states = {reason: _ACTIVE.get((word or "").lower()) for reason, word in words.items()}
        unreadable = {
            reason: word
            for reason, word in words.items()
            if word and states[reason] is None and not (word == NOT_SUPPORTED or word.lower() == _DEPRECATED)
        }
        if any(state is not None for state in states.values()):
            return frozenset(reason for reason, active in states.items() if active), unreadable
        # The driver did not report the state of any reason. This does not mean that no reason is active.
        return None, unreadable
    return None, {}


def _repairs(element: ElementTree.Element) -> dict[str, str]:
    repairs = {}
    for tag in ("channel_repair_pending", "tpc_repair_pending", "unrepairable_memory"):
        state = _state(_text(element, f"ecc_errors/{tag}"))
        if state not in (None, NOT_SUPPORTED, "No"):
            repairs[tag] = str(state)
    return repairs


def _fabric_health(element: ElementTree.Element) -> dict[str, str]:
    words = {child.tag: _word(child.text) for child in element.findall("fabric/health/*")}
    return {tag: str(word) for tag, word in words.items() if word not in (None, NOT_SUPPORTED)}


def _nvml_errors(element: ElementTree.Element) -> dict[str, str]:
    """Return the fields for which nvidia-smi prints an NVML error, with this error.

    Lists of processes are skipped.
    """
    errors: dict[str, str] = {}

    def walk(one: ElementTree.Element, path: str) -> None:
        for child in one:
            if child.tag in _LIST_TAGS:
                continue
            below = f"{path}/{child.tag}" if path else child.tag
            word = (_word(child.text) or "").lower()
            if not len(child) and (word in _ERRORS or word.startswith("unknown error")):
                errors[below] = str(_word(child.text))
            walk(child, below)

    walk(element, "")
    return errors


_ERRORS = frozenset(
    {
        *("err!", "unknown error", "gpu is lost", "gpu requires reset", "timeout", "no data"),
        *("gpu access blocked by the operating system", "corrupted inforom", "driver not loaded"),
        *("interrupt request issue", "insufficient external power", "system is not in ready state"),
    }
)
"""NVML error messages that concern the GPU as a whole. They are in lower case and without brackets."""


def _word(text: str | None) -> Word:
    """Return a string without surrounding spaces and brackets.

    Return NOT_SUPPORTED for N/A, and None for "".
    """
    if text is None or not text.strip():
        return None
    stripped = text.strip()
    if stripped.startswith("[") and stripped.endswith("]"):
        stripped = stripped[1:-1].strip()
    return NOT_SUPPORTED if stripped.lower() in _NOT_SUPPORTED_WORDS else stripped


def _state(text: str | None) -> Word:
    """Return Enabled, Disabled, Yes or No, and Unreadable for any other text.

    N/A and "" are handled as in `_word`.
    """
    word = _word(text)
    if word is None or word == NOT_SUPPORTED:
        return word
    return _STATES.get(word.lower()) or Unreadable(word)


def _first_state(element: ElementTree.Element, *paths: str) -> Word:
    states = [_state(_text(element, path)) for path in paths]
    reported = [state for state in states if state not in (None, NOT_SUPPORTED)]
    return reported[0] if reported else next((state for state in states if state), None)


def _number(text: str | None) -> Number:
    word = _word(text)
    if word is None:
        return None
    if word == NOT_SUPPORTED:
        return NOT_SUPPORTED
    match = _NUMBER.fullmatch(word)
    return float(match[1]) if match else Unreadable(word)


def _errors(element: ElementTree.Element, names: tuple[str, ...], old: str) -> Number:
    """Return the number of errors since the driver was loaded, or in the GPU's lifetime if that is larger.

    GPUs before Turing have different counters (`old`). For them, only errors since the driver was loaded
    count, because the memory pages with earlier errors have been retired.
    """
    spans = [
        _total([_number(_text(element, f"ecc_errors/{span}/{name}")) for name in names])
        for span in ("aggregate", "volatile")
    ]
    if spans == [None, None]:
        spans.append(_number(_text(element, f"ecc_errors/volatile/{old}/total")))
    values = [one for one in spans if isinstance(one, float)]
    unreadable = [one for one in spans if isinstance(one, Unreadable)]
    if unreadable and not any(values):
        return unreadable[0]
    return max(values) if values else next((one for one in spans if one), None)


def _recent_errors(element: ElementTree.Element, name: str, old: str) -> Number:
    """Return the number of errors since the driver was loaded. `old` is the counter of GPUs before Turing."""
    texts = (_text(element, f"ecc_errors/volatile/{path}") for path in (name, f"{old}/device_memory"))
    return _number(next((text for text in texts if text is not None), None))


def _total(numbers: Sequence[Number]) -> Number:
    """Return the sum of the numbers. If there are none, return NOT_SUPPORTED or None.

    If the sum is 0 and a number is unreadable, return Unreadable, because the real sum may be greater.
    """
    values = [number for number in numbers if isinstance(number, float)]
    unreadable = [number for number in numbers if isinstance(number, Unreadable)]
    if unreadable and not sum(values):
        return unreadable[0]
    if values:
        return sum(values)
    return NOT_SUPPORTED if NOT_SUPPORTED in numbers else None
