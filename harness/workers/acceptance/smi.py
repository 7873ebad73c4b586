"""Parse the output of `nvidia-smi -q -x` and `nvidia-smi nvlink -s`. Pure.

A field that nvidia-smi does not print is None. A field that it prints as N/A is NOT_SUPPORTED: the GPU lacks
the feature, or does not report it. Field names differ between drivers; old and new names are read.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, Optional, Union
from xml.etree import ElementTree

NotSupported = Literal["N/A"]
NOT_SUPPORTED: NotSupported = "N/A"
Number = Union[float, NotSupported, None]
Word = Optional[str]
_NOT_SUPPORTED_WORDS = ("n/a", "[n/a]", "not supported", "[not supported]")
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
_REASONS = ("clocks_event_reasons", "clocks_throttle_reasons")
_SRAM_UNCORRECTED = ("sram_uncorrectable", "sram_uncorrectable_parity", "sram_uncorrectable_secded")
"""One counter on Ampere, two from Hopper on."""


@dataclass(frozen=True)
class Gpu:
    """One GPU in the output of nvidia-smi."""

    uuid: str
    name: str
    index: int
    """Index in the list of nvidia-smi. PyTorch may use another order."""
    memory: int = 0
    """Bytes."""
    persistence: Word = None
    mig: Word = None
    ecc_mode: Word = None
    sram_corrected: Number = None
    sram_uncorrected: Number = None
    rows_uncorrectable: Number = None
    """Memory rows that were replaced after an uncorrectable error."""
    rows_pending: Word = None
    rows_failed: Word = None
    pcie_generation: Number = None
    pcie_generation_max: Number = None
    """The maximum that GPU and host support together."""
    pcie_width: Number = None
    pcie_width_max: Number = None
    sm_clock: Number = None
    """MHz."""
    sm_clock_max: Number = None
    reasons: frozenset[str] | NotSupported | None = None
    """Active throttle reasons: gpu_idle, sw_power_cap, hw_slowdown, hw_thermal_slowdown, …"""


@dataclass(frozen=True)
class Smi:
    """The output of one call of nvidia-smi."""

    driver: str
    cuda: str
    gpus: tuple[Gpu, ...] = field(default=())


def parse(text: str) -> Smi | None:
    """Return the content of a `nvidia-smi -q -x` document, or None if the text is not such a document."""
    try:
        # The text is trusted, because it comes from the driver on this host.
        root = ElementTree.fromstring(text)  # noqa: S314
    except ElementTree.ParseError:
        return None
    if root.tag != "nvidia_smi_log":
        return None
    found = root.findall("gpu")
    return Smi(
        driver=(root.findtext("driver_version") or "").strip(),
        cuda=(root.findtext("cuda_version") or "").strip(),
        gpus=tuple(_gpu(element, index) for index, element in enumerate(found)),
    )


def parse_links(text: str) -> dict[str, list[float]]:
    """Return the NVLink speeds in GB/s by GPU UUID, from the output of `nvidia-smi nvlink -s`.

    A link that is down has speed 0. A GPU without links has an empty list.
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


def _gpu(element: ElementTree.Element, index: int) -> Gpu:
    link = "pci/pci_gpu_link_info"
    mebibytes = _number(element.findtext("fb_memory_usage/total"))
    return Gpu(
        uuid=(element.findtext("uuid") or "").strip(),
        name=(element.findtext("product_name") or "").strip(),
        index=index,
        memory=int(mebibytes * 2**20) if isinstance(mebibytes, float) else 0,
        persistence=_word(element.findtext("persistence_mode")),
        mig=_word(element.findtext("mig_mode/current_mig")),
        ecc_mode=_word(element.findtext("ecc_mode/current_ecc")),
        sram_corrected=_errors(element, ("sram_correctable",)),
        sram_uncorrected=_errors(element, _SRAM_UNCORRECTED),
        rows_uncorrectable=_number(element.findtext("remapped_rows/remapped_row_unc")),
        rows_pending=_word(element.findtext("remapped_rows/remapped_row_pending")),
        rows_failed=_word(element.findtext("remapped_rows/remapped_row_failure")),
        pcie_generation=_number(element.findtext(f"{link}/pcie_gen/current_link_gen")),
        pcie_generation_max=_number(element.findtext(f"{link}/pcie_gen/max_link_gen")),
        pcie_width=_number(element.findtext(f"{link}/link_widths/current_link_width")),
        pcie_width_max=_number(element.findtext(f"{link}/link_widths/max_link_width")),
        sm_clock=_number(element.findtext("clocks/sm_clock")),
        sm_clock_max=_number(element.findtext("max_clocks/sm_clock")),
        reasons=_reasons(element),
    )


def _reasons(element: ElementTree.Element) -> frozenset[str] | NotSupported | None:
    for name in _REASONS:
        found = element.find(name)
        if found is None:
            continue
        if not len(found):
            return NOT_SUPPORTED if _word(found.text) == NOT_SUPPORTED else None
        prefix = name.removesuffix("s") + "_"
        states = {child.tag.removeprefix(prefix): _word(child.text) for child in found}
        states = {reason: state for reason, state in states.items() if state in ("Active", "Not Active")}
        # A driver that reports no state is not the same as a driver that reports no active reason.
        return frozenset(reason for reason, state in states.items() if state == "Active") if states else None
    return None


def _word(text: str | None) -> Word:
    if text is None or not text.strip():
        return None
    stripped = text.strip()
    return NOT_SUPPORTED if stripped.lower() in _NOT_SUPPORTED_WORDS else stripped


def _number(text: str | None) -> Number:
    word = _word(text)
    if word is None or word == NOT_SUPPORTED:
        return NOT_SUPPORTED if word else None
    found = _NUMBER.match(word)
    return float(found[0]) if found else None


def _errors(element: ElementTree.Element, names: tuple[str, ...]) -> Number:
    """Return the sum of the counters over the GPU's life, or since the driver was loaded if larger."""
    sums: list[Number] = [
        _total([_number(element.findtext(f"ecc_errors/{span}/{name}")) for name in names])
        for span in ("aggregate", "volatile")
    ]
    counted = [found for found in sums if isinstance(found, float)]
    return max(counted) if counted else sums[0] or sums[1]


def _total(numbers: Sequence[Number]) -> Number:
    """Return the sum of the counters that have a number."""
    counted = [number for number in numbers if isinstance(number, float)]
    if counted:
        return sum(counted)
    return NOT_SUPPORTED if NOT_SUPPORTED in numbers else None
