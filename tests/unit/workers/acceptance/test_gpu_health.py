"""The state of a GPU, judged."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
import smi_texts

from harness.workers.acceptance import gpu_health
from harness.workers.acceptance.causes import ADVICE
from harness.workers.acceptance.check import Check
from harness.workers.acceptance.devices import Device
from harness.workers.acceptance.limits import Limits
from harness.workers.acceptance.smi_parser import Gpu, parse, parse_links

LIMITS = Limits.load()
UP = [26.562] * 18


def gpu(**changed: str) -> Gpu:
    smi_log = parse(smi_texts.document(smi_texts.gpu(**changed)))
    assert smi_log
    return smi_log.gpus[0]


def judge(one: Gpu) -> dict[str, Check]:
    where = Device("cuda", 1, one.uuid, one.name).where
    checks = [*gpu_health.at_rest(one, LIMITS, **where), *gpu_health.under_load(one, LIMITS, **where)]
    assert {(check.gpu, check.index) for check in checks} == {(one.uuid, 1)}
    return {check.id: check for check in checks}


def test_a_healthy_gpu_passes_all() -> None:
    """Contract: the limits let a healthy H100 pass, its power limit active under load."""
    checks = judge(gpu())
    assert {check.verdict for check in checks.values()} == {"PASS"}
    assert set(checks) == {*gpu_health.AT_REST, *gpu_health.UNDER_LOAD}


@pytest.mark.parametrize(
    ("changed", "id", "verdict", "cause"),
    [
        ({"current_ecc": "Disabled"}, "env.ecc.mode", "FAIL", "gpu.ecc"),
        ({"sram_uncorrectable_secded": "1"}, "env.ecc.sram_uncorrected", "FAIL", "gpu.ecc"),
        ({"sram_correctable": "10001"}, "env.ecc.sram_corrected", "FAIL", "gpu.ecc"),
        ({"sram_correctable": "9900"}, "env.ecc.sram_corrected", "WARN", "gpu.ecc"),
        ({"dram_uncorrectable": "1"}, "env.ecc.dram_uncorrected", "FAIL", "gpu.ecc"),
        # NVSentinel #1748, DCGM #313
        ({"dram_correctable": "9600000000"}, "env.ecc.dram_corrected", "FAIL", "gpu.ecc"),
        ({"remapped_row_unc": "513"}, "env.remapped_rows.uncorrectable", "FAIL", "gpu.remapped_rows"),
        ({"remapped_row_pending": "Yes"}, "env.remapped_rows.pending", "FAIL", "gpu.remapped_rows"),
        ({"remapped_row_failure": "Yes"}, "env.remapped_rows.failed", "FAIL", "gpu.remapped_rows"),
        ({"current_link_width": "8x"}, "env.pcie.width", "FAIL", "gpu.pcie"),
        ({"current_link_gen": "3"}, "env.pcie.generation", "FAIL", "gpu.pcie"),
        ({"current_mig": "Enabled"}, "env.mig", "WARN", "gpu.mig"),
        # gpu-operator#118, dra-driver-nvidia-gpu#883
        ({"pending_mig": "Enabled"}, "env.mig", "WARN", "gpu.mig"),
        ({"current_mig": "Enabled", "pending_mig": "Disabled"}, "env.mig", "WARN", "gpu.mig"),
        ({"pending_ecc": "Disabled"}, "env.ecc.mode", "WARN", "gpu.ecc"),
        ({"persistence_mode": "Disabled"}, "env.persistence", "WARN", "gpu.persistence"),
        ({"sm_clock": "345 MHz"}, "env.clocks", "FAIL", "gpu.clocks"),
        ({"hw_thermal_slowdown": "Active"}, "env.throttle", "FAIL", "gpu.throttled"),
        ({"sw_thermal_slowdown": "Active"}, "env.throttle", "WARN", "gpu.throttled"),
    ],
)
def test_one_fault_is_one_check(changed: dict[str, str], id: str, verdict: str, cause: str) -> None:
    """Contract: each fault spoils its own check and no other, with a cause that has advice."""
    checks = judge(gpu(**changed))
    assert (checks[id].verdict, checks[id].cause) == (verdict, cause)
    assert [other.id for other in checks.values() if other.verdict != "PASS"] == [id]
    assert cause in ADVICE


def test_corrected_errors_and_errors_before_the_last_reset_pass() -> None:
    """Contract: the rows of earlier errors are remapped, and a few corrected errors are normal."""
    document = smi_texts.document(smi_texts.gpu(dram_correctable="5000"))
    volatile, aggregate, rest = document.partition("<aggregate>")
    earlier = rest.replace("<dram_uncorrectable>0", "<dram_uncorrectable>12")
    parsed = parse(volatile + aggregate + earlier)
    assert parsed
    assert {check.verdict for check in judge(parsed.gpus[0]).values()} == {"PASS"}


def test_disabled_ecc_is_reported_as_a_setting() -> None:
    """Contract: the text gives the command, because nothing is wrong with the GPU."""
    assert "nvidia-smi -e 1" in judge(gpu(current_ecc="Disabled"))["env.ecc.mode"].text


@pytest.mark.parametrize(
    ("counters", "verdict"),
    [
        ("<single_bit><device_memory>0</device_memory><total>0</total></single_bit>", "PASS"),
        ("<single_bit><device_memory>21000000</device_memory></single_bit>", "FAIL"),
        ("<dram_correctable>N/A</dram_correctable>", "UNKNOWN"),
    ],
)
def test_the_dram_counters_of_older_gpus(counters: str, verdict: str) -> None:
    document = smi_texts.document(smi_texts.gpu()).replace("<dram_correctable>0</dram_correctable>", counters)
    parsed = parse(document)
    assert parsed
    assert judge(parsed.gpus[0])["env.ecc.dram_corrected"].verdict == verdict


NOT_REQUIRED = (
    *("uuid", "name", "index", "bus", "memory", "memory_used", "virtualization", "c2c", "fabric"),
    *("sram_threshold", "banks_exhausted", "pages_retired", "pages_pending", "repairs", "recovery"),
    *("reset_required", "errors", "reasons_unreadable", "fabric_status", "fabric_health"),
    *("mig_pending", "ecc_pending"),
)
"""Fields that identify a GPU, and fields that only some drivers and GPUs have."""


@pytest.mark.parametrize("field", [one.name for one in fields(Gpu) if one.name not in NOT_REQUIRED])
@pytest.mark.parametrize("seen", [None, "N/A"])
def test_a_field_that_is_missing_never_passes(field: str, seen: str | None) -> None:
    """Contract: no signal is UNKNOWN. A GPU without MIG is the only one that passes by not having it."""
    checks = judge(replace(gpu(), **{field: seen}))
    bad = {check.verdict for check in checks.values() if check.verdict != "PASS"}
    assert bad == (set() if (field, seen) == ("mig", "N/A") else {"UNKNOWN"})


def test_a_clock_that_was_read_at_rest_is_unknown() -> None:
    assert judge(gpu(gpu_idle="Active", sm_clock="345 MHz"))["env.clocks"].verdict == "UNKNOWN"


def test_a_gpu_that_nvidia_smi_does_not_list() -> None:
    checks = list(gpu_health.not_reported(gpu_health.AT_REST, "why", index=1))
    assert [check.id for check in checks] == list(gpu_health.AT_REST)
    assert {(check.verdict, check.index) for check in checks} == {("UNKNOWN", 1)}


@pytest.mark.parametrize(
    ("name", "speeds", "gpus", "verdict"),
    [
        ("NVIDIA H100 80GB HBM3", [UP, UP], 2, "PASS"),
        ("NVIDIA H100 80GB HBM3", [[0.0, *UP[1:]], UP], 2, "FAIL"),
        ("NVIDIA H100 80GB HBM3", [[0.0] * 18, [0.0] * 18], 2, "FAIL"),
        ("NVIDIA H100 80GB HBM3", [[13.0, *UP[1:]], UP], 2, "FAIL"),
        ("NVIDIA H100 80GB HBM3", [[0.0] * 18], 1, "PASS"),
        ("NVIDIA H200", [], 1, "PASS"),
        ("NVIDIA L40S", [[0.0] * 4, UP[:4]], 2, "FAIL"),
        ("NVIDIA L40S", [UP[:4], UP[:4]], 2, "UNKNOWN"),
        ("NVIDIA L40S", [[], []], 2, "UNKNOWN"),
        ("NVIDIA H100 80GB HBM3", [], 2, "UNKNOWN"),
    ],
)
def test_an_nvlink_that_is_down_or_slow_fails(
    name: str, speeds: list[list[float]], gpus: int, verdict: str
) -> None:
    """Contract: a link that is down or slow fails, also when it is so on every GPU of a known model."""
    links = parse_links(smi_texts.links(*speeds))
    one = replace(gpu(), name=name)
    where = Device("cuda", 1, one.uuid, one.name).where
    check = gpu_health.links(one, links, LIMITS, gpus=gpus, **where)
    assert (check.verdict, check.gpu, check.index) == (verdict, one.uuid, 1)
    assert (check.cause == "gpu.nvlink") == (verdict == "FAIL")


def test_pcie_cards_without_a_bridge_are_not_accused() -> None:
    """Contract: the links are down on each GPU of a model without a limit (DCGM #49, NVSentinel #1481)."""
    one = replace(gpu(), name="NVIDIA A100 80GB PCIe")
    links = parse_links(smi_texts.links([0.0] * 12, [0.0] * 12))
    where = Device("cuda", 0, smi_texts.uuid(0), one.name).where
    check = gpu_health.links(replace(one, uuid=smi_texts.uuid(0)), links, LIMITS, gpus=2, **where)
    assert (check.verdict, check.cause) == ("UNKNOWN", None)
    assert "without an NVLink bridge" in check.text
