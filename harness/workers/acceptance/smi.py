"""Parse the output of `nvidia-smi -q -x` and `nvidia-smi nvlink -s`.

A field that nvidia-smi does not print is None. A field that it prints as N/A is NOT_SUPPORTED: the GPU lacks
the feature, or does not report it. Field names differ between driver versions; old and new names are
accepted. All functions are pure.
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
"""Names of the counters. Ampere has one counter; Hopper and later have two."""


@dataclass(frozen=True)
class Gpu:
    """One GPU in the output of nvidia-smi."""

    uuid: str
    name: str
    index: int
    """Index in the output of nvidia-smi. PyTorch can use a different order."""
    memory: int = 0
    """Memory size in bytes."""
    persistence: Word = None
    mig: Word = None
    ecc_mode: Word = None
    sram_corrected: Number = None
    sram_uncorrected: Number = None
    rows_uncorrectable: Number = None
    """Number of memory rows that were remapped after an uncorrectable error."""
    rows_pending: Word = None
    rows_failed: Word = None
    pcie_generation: Number = None
    pcie_generation_max: Number = None
    """The highest generation that both the GPU and the host support."""
    pcie_width: Number = None
    pcie_width_max: Number = None
    sm_clock: Number = None
    """Current clock in MHz."""
    sm_clock_max: Number = None
    reasons: frozenset[str] | NotSupported | None = None
    """Active throttle reasons: gpu_idle, sw_power_cap, hw_slowdown, hw_thermal_slowdown, …"""


@dataclass(frozen=True)
class Smi:
    """The parsed output of one call of nvidia-smi."""

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
    """Parse the output of `nvidia-smi nvlink -s`. Return GPU UUID → the speed of each NVLink in GB/s.

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
    """Return the larger of two sums of the counters: over the GPU's life, and since the driver was loaded."""
    sums: list[Number] = [
        _total([_number(element.findtext(f"ecc_errors/{span}/{name}")) for name in names])
        for span in ("aggregate", "volatile")
    ]
    counted = [found for found in sums if isinstance(found, float)]
    return max(counted) if counted else sums[0] or sums[1]


def _total(numbers: Sequence[Number]) -> Number:
    """Return the sum of the numbers. If there is no number, return NOT_SUPPORTED or None."""
    counted = [number for number in numbers if isinstance(number, float)]
    if counted:
        return sum(counted)
    return NOT_SUPPORTED if NOT_SUPPORTED in numbers else None
