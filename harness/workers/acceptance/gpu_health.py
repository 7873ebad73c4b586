"""Judge the GPU state that nvidia-smi reports: memory errors, links, clocks, MIG and persistence mode.

Most values do not depend on load (`at_rest`). The clocks and the PCIe generation are lower if a GPU is idle,
so they are read while the GPU computes (`under_load`). If nvidia-smi does not report a value, the verdict is
UNKNOWN. All functions are pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from .check import Check, Verdict, Where
from .limits import Limits, judged
from .smi_parser import NOT_SUPPORTED, Gpu, Number, Unreadable

if TYPE_CHECKING:
    from typing import Unpack

TAG = "ENV"
FAILING_REASONS = ("hw_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown")
"""Throttle reasons that mean that the hardware protects itself from overheating or from a weak power
supply."""
WARNING_REASONS = ("sw_thermal_slowdown", "applications_clocks_setting", "sync_boost")
_ECC_ADVICE = "ECC is a setting, so this is not a defect: run `nvidia-smi -e 1` on the node and reset the GPU"
_NO_BRIDGE = (
    ". PCIe cards without an NVLink bridge have no active links: if this is such a card, add a row for "
    "env.nvlink with the value 0 to the --limits file. Otherwise, check the fabric manager"
)
AT_REST = (
    "env.ecc.mode",
    "env.ecc.sram_uncorrected",
    "env.ecc.sram_corrected",
    "env.ecc.dram_uncorrected",
    "env.ecc.dram_corrected",
    "env.remapped_rows.uncorrectable",
    "env.remapped_rows.pending",
    "env.remapped_rows.failed",
    "env.pcie.width",
    "env.mig",
    "env.persistence",
)
UNDER_LOAD = ("env.pcie.generation", "env.clocks", "env.throttle")


def at_rest(gpu: Gpu, limits: Limits, /, **location: Unpack[Where]) -> Iterator[Check]:
    """Yield the checks in AT_REST for one GPU."""
    ecc = _word("env.ecc.mode", gpu.ecc_mode, "ECC", "Enabled", "FAIL", "gpu.ecc", **location)
    ecc = replace(ecc, text=f"{ecc.text}. {_ECC_ADVICE}") if gpu.ecc_mode == "Disabled" else ecc
    yield _with_pending(ecc, gpu.ecc_mode, gpu.ecc_pending, "gpu.ecc")
    counts: tuple[tuple[str, Number, str, str, str], ...] = (
        ("env.ecc.sram_uncorrected", gpu.sram_uncorrected, "errors", "gpu.ecc", "uncorrected SRAM errors"),
        ("env.ecc.sram_corrected", gpu.sram_corrected, "errors", "gpu.ecc", "corrected SRAM errors"),
        ("env.ecc.dram_uncorrected", gpu.dram_uncorrected, "errors", "gpu.ecc", "uncorrected DRAM errors"),
        ("env.ecc.dram_corrected", gpu.dram_corrected, "errors", "gpu.ecc", "corrected DRAM errors"),
    )
    for id, count, unit, cause, words in counts:
        if gpu.sram_threshold == "Yes" and id == "env.ecc.sram_uncorrected":
            text = f"{words}: their number exceeds the threshold at which the driver recommends a replacement"
            yield Check(id=id, tag=TAG, verdict="FAIL", text=text, cause=cause, **location)
            continue
        yield _count(id, count, unit, cause, words, id, gpu, limits, **location)
    yield from _rows(gpu, limits, **location)
    yield _link(gpu, "env.pcie.width", gpu.pcie_width, gpu.pcie_width_max, "PCIe lanes", **location)
    if gpu.mig == NOT_SUPPORTED:
        yield Check(id="env.mig", tag=TAG, verdict="PASS", text="this GPU does not support MIG", **location)
    else:
        mig = _word("env.mig", gpu.mig, "MIG", "Disabled", "WARN", "gpu.mig", **location)
        yield _with_pending(mig, gpu.mig, gpu.mig_pending, "gpu.mig")
    yield _word(
        "env.persistence", gpu.persistence, "persistence", "Enabled", "WARN", "gpu.persistence", **location
    )


def _with_pending(check: Check, mode: str | None, pending: str | None, cause: str) -> Check:
    """Return the check of a mode, with a warning if the mode changes when the GPU is reset."""
    if {mode, pending} != {"Enabled", "Disabled"}:
        return check
    text = f"{check.text}; {pending} is pending and takes effect when the GPU is reset"
    return replace(
        check, verdict="WARN" if check.verdict == "PASS" else check.verdict, text=text, cause=cause
    )


def _rows(gpu: Gpu, limits: Limits, /, **location: Unpack[Where]) -> Iterator[Check]:
    """Yield the checks for remapped memory rows.

    If the GPU cannot remap rows, check its retired pages instead.
    """
    family, cause = "env.remapped_rows", "gpu.remapped_rows"
    pages = gpu.rows_pending == NOT_SUPPORTED and gpu.pages_pending not in (None, NOT_SUPPORTED)
    if pages:
        words = "retired memory pages (this GPU cannot remap rows)"
        limit_id = "env.retired_pages"
        count = gpu.pages_retired
        yield _count(
            f"{family}.uncorrectable", count, "pages", cause, words, limit_id, gpu, limits, **location
        )
        words = "memory page retirement pending"
        yield _word(f"{family}.pending", gpu.pages_pending, words, "No", "FAIL", cause, **location)
        text = "this GPU retires pages and cannot remap rows"
        yield Check(id=f"{family}.failed", tag=TAG, verdict="PASS", text=text, **location)
        return
    words, id = "memory rows remapped after uncorrectable errors", f"{family}.uncorrectable"
    yield _count(id, gpu.rows_uncorrectable, "rows", cause, words, id, gpu, limits, **location)
    yield _word(f"{family}.pending", gpu.rows_pending, "row remap pending", "No", "FAIL", cause, **location)
    failed = _word(f"{family}.failed", gpu.rows_failed, "row remap failed", "No", "FAIL", cause, **location)
    if failed.verdict == "PASS" and isinstance(gpu.banks_exhausted, float) and gpu.banks_exhausted > 0:
        text = f"{gpu.banks_exhausted:.0f} memory banks have no spare rows for another remap"
        failed = Check(id=failed.id, tag=TAG, verdict="WARN", text=text, cause=cause, **location)
    yield failed


def under_load(gpu: Gpu, limits: Limits, /, **location: Unpack[Where]) -> Iterator[Check]:
    """Yield the checks listed in UNDER_LOAD for one GPU. The GPU must have been busy while nvidia-smi ran."""
    yield _link(
        gpu,
        "env.pcie.generation",
        gpu.pcie_generation,
        gpu.pcie_generation_max,
        "PCIe generation",
        **location,
    )
    yield _clock(gpu, limits, **location)
    yield _throttle(gpu, **location)


def not_reported(ids: Iterable[str], reason: str, **location: Unpack[Where]) -> Iterator[Check]:
    """Yield an UNKNOWN check for each check id. Use this for a GPU whose state nvidia-smi does not report."""
    for id in ids:
        yield Check(id=id, tag=TAG, verdict="UNKNOWN", text=reason, **location)


def links(
    gpu: Gpu, all_links: Mapping[str, list[float]], limits: Limits, /, *, gpus: int, **location: Unpack[Where]
) -> Check:
    """Judge how many NVLinks of a GPU are active, and whether each is as fast as the node's fastest NVLink.

    If no limit for the number of links is known for the GPU model, the verdict is FAIL if another GPU on the
    node has more active links, otherwise UNKNOWN.
    """
    id, own = "env.nvlink", all_links.get(gpu.uuid)
    if own is None and gpus < 2:
        text = "nvidia-smi reports no NVLink, but a single GPU does not need any"
        return Check(id=id, tag=TAG, verdict="PASS", text=text, **location)
    if own is None:
        return _missing(id, "NVLink", None, **location)
    active = [speed for speed in own if speed > 0]
    text = f"{len(active)} of {len(own)} NVLinks are up" + (
        f", each at {min(active):g} GB/s or more" if active else ""
    )
    measurement: dict[str, Any] = {"measured": float(len(active)), "unit": "links", **location}
    if gpus < 2:
        # Cloud providers disable the links on machines with a single GPU, so inactive links are correct here.
        return Check(
            id=id, tag=TAG, verdict="PASS", text=f"{text}; a single GPU does not use them", **measurement
        )
    fastest = max((speed for speeds in all_links.values() for speed in speeds), default=0.0)
    most_links = max(sum(speed > 0 for speed in speeds) for speeds in all_links.values())
    row = limits.row(model=gpu.name, check=id)
    if row and not (active and min(active) < 0.99 * fastest):
        return judged(id, TAG, float(len(active)), "links", row, "gpu.nvlink", text, **location)
    verdict: Verdict
    if active and min(active) < 0.99 * fastest:
        verdict, text = "FAIL", f"{text}; the fastest link on this node runs at {fastest:g} GB/s"
    elif len(active) < most_links:
        verdict, text = "FAIL", f"{text}; another GPU on this node has {most_links} active links"
    else:
        verdict, text = "UNKNOWN", f"{text}; the expected number of links for {gpu.name} is unknown"
        text += "" if most_links else _NO_BRIDGE
    cause = "gpu.nvlink" if verdict == "FAIL" else None
    return Check(id=id, tag=TAG, verdict=verdict, text=text, cause=cause, **measurement)


def _word(
    id: str,
    state: str | None,
    words: str,
    expected: str,
    verdict: Verdict,
    cause: str,
    **location: Unpack[Where],
) -> Check:
    if state in (None, NOT_SUPPORTED) or isinstance(state, Unreadable):
        return _missing(id, words, state, **location)
    text = f"{words}: {state}"
    if state == expected:
        return Check(id=id, tag=TAG, verdict="PASS", text=text, **location)
    return Check(
        id=id, tag=TAG, verdict=verdict, text=f"{text}; expected {expected}", cause=cause, **location
    )


def _count(
    id: str,
    count: Number,
    unit: str,
    cause: str,
    words: str,
    limit_id: str,
    gpu: Gpu,
    limits: Limits,
    /,
    **location: Unpack[Where],
) -> Check:
    """Judge a counter. The limit comes from the row for the check `limit_id`."""
    if not isinstance(count, float):
        return _missing(id, words, count, **location)
    row = limits.row(model=gpu.name, check=limit_id)
    return judged(id, TAG, count, unit, row, cause, f"{count:.0f} {words}", **location)


def _link(
    gpu: Gpu, id: str, current: Number, maximum: Number, words: str, /, **location: Unpack[Where]
) -> Check:
    """Judge the width or the generation of the PCIe link.

    The verdict is FAIL if the link is below its maximum, but only WARN if the GPU uses NVLink-C2C.
    """
    if gpu.c2c == "Enabled" and (current in (None, NOT_SUPPORTED) or maximum in (None, NOT_SUPPORTED)):
        text = f"{words}: not reported, because NVLink-C2C connects this GPU to its CPU"
        return Check(id=id, tag=TAG, verdict="PASS", text=text, **location)
    if not isinstance(current, float) or not isinstance(maximum, float) or maximum <= 0:
        missing = (
            current if not isinstance(current, float) else maximum if not isinstance(maximum, float) else None
        )
        return _missing(id, words, missing, **location)
    verdict: Verdict = "WARN" if gpu.c2c == "Enabled" else "FAIL"
    return Check(
        id=id,
        tag=TAG,
        verdict="PASS" if current >= maximum else verdict,
        text=f"{words} {current:.0f} of {maximum:.0f}",
        cause=None if current >= maximum else "gpu.pcie",
        measured=current,
        expected=maximum,
        limit=maximum,
        limit_kind="peak",
        limit_source="nvidia-smi: the maximum that GPU and host both support",
        **location,
    )


def _clock(gpu: Gpu, limits: Limits, /, **location: Unpack[Where]) -> Check:
    if (
        not isinstance(gpu.sm_clock, float)
        or not isinstance(gpu.sm_clock_max, float)
        or gpu.sm_clock_max <= 0
    ):
        values = [value for value in (gpu.sm_clock, gpu.sm_clock_max) if not isinstance(value, float)]
        return _missing("env.clocks", "the SM clock", (values or [None])[0], **location)
    if isinstance(gpu.reasons, frozenset) and "gpu_idle" in gpu.reasons:
        words = "the GPU was idle when its clock was read, although the test put it under load"
        return Check(id="env.clocks", tag=TAG, verdict="UNKNOWN", text=words, **location)
    share = gpu.sm_clock / gpu.sm_clock_max
    text = f"SM clock {gpu.sm_clock:.0f} of {gpu.sm_clock_max:.0f} MHz under load"
    row = limits.row(model=gpu.name, check="env.clocks")
    return judged("env.clocks", TAG, round(share, 4), "share", row, "gpu.clocks", text, **location)


def _throttle(gpu: Gpu, /, **location: Unpack[Where]) -> Check:
    id = "env.throttle"
    unreadable_text = ", ".join(f"{reason}: {text}" for reason, text in gpu.reasons_unreadable.items())
    if not isinstance(gpu.reasons, frozenset):
        state = Unreadable(unreadable_text) if unreadable_text else gpu.reasons
        return _missing(id, "reasons for reduced clocks", state, **location)
    # sw_power_cap is not judged, because the power limit reduces the clocks of a healthy GPU under full load.
    text = "clocks reduced under load by: " + (", ".join(sorted(gpu.reasons)) or "nothing")
    if any(reason in gpu.reasons for reason in FAILING_REASONS):
        return Check(id=id, tag=TAG, verdict="FAIL", text=text, cause="gpu.throttled", **location)
    if unreadable_text and any(
        reason in gpu.reasons_unreadable for reason in (*FAILING_REASONS, "all reasons")
    ):
        return _missing(id, "reasons for reduced clocks", Unreadable(unreadable_text), **location)
    if any(reason in gpu.reasons for reason in WARNING_REASONS):
        return Check(id=id, tag=TAG, verdict="WARN", text=text, cause="gpu.throttled", **location)
    return Check(id=id, tag=TAG, verdict="PASS", text=text, **location)


def _missing(id: str, words: str, value: Number | str | frozenset[str], **location: Unpack[Where]) -> Check:
    reason = "not supported by this GPU (N/A)" if value == NOT_SUPPORTED else "nvidia-smi does not report it"
    if isinstance(value, Unreadable):
        reason = f"nvidia-smi could not read it ({value})"
    return Check(id=id, tag=TAG, verdict="UNKNOWN", text=f"{words}: {reason}", **location)
