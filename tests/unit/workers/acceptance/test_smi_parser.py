"""What nvidia-smi prints, read."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest
import smi_texts
from hypothesis import given
from hypothesis import strategies as st

from harness.workers.acceptance import gpu_health
from harness.workers.acceptance.limits import Limits
from harness.workers.acceptance.smi_parser import NOT_SUPPORTED, Gpu, parse, parse_links


def read(**changed: str) -> Gpu:
    smi_log = parse(smi_texts.document(smi_texts.gpu(**changed)))
    assert smi_log
    return smi_log.gpus[0]


def test_a_real_one() -> None:
    """Contract: an H200 at rest, as driver 580 printed it (without its numbers and what is not read)."""
    smi_log = parse((Path(__file__).parents[2] / "files/nvidia-smi-h200.xml").read_text())
    assert smi_log is not None
    assert (smi_log.driver, smi_log.cuda) == ("580.159.04", "13.0")
    (one,) = smi_log.gpus
    missing = {field.name for field in fields(Gpu) if getattr(one, field.name) in (None, NOT_SUPPORTED)}
    # The file lacks these elements, and a GPU with row remapping retires no pages.
    assert missing == {"virtualization", "c2c", "recovery", "reset_required", "fabric", "fabric_status"} | {
        "pages_retired",
        "pages_pending",
    }
    assert (one.name, one.memory, one.reasons) == ("NVIDIA H200", 143771 << 20, frozenset({"gpu_idle"}))
    checks = list(gpu_health.at_rest(one, Limits.load(), gpu=one.uuid, index=0))
    assert {check.verdict for check in checks} == {"PASS"}


def test_a_healthy_gpu() -> None:
    """Contract: every field that is judged is found."""
    smi_log = parse(smi_texts.document(smi_texts.gpu(0), smi_texts.gpu(1)))
    assert smi_log is not None
    assert (smi_log.driver, smi_log.cuda, len(smi_log.gpus)) == ("550.127.08", "12.4", 2)
    assert smi_log.gpus[1] == Gpu(
        uuid=smi_texts.uuid(1),
        name="NVIDIA H100 80GB HBM3",
        index=1,
        bus=(0, 0x19, 0, 0),
        memory=81559 << 20,
        persistence="Enabled",
        mig="Disabled",
        mig_pending="Disabled",
        ecc_mode="Enabled",
        ecc_pending="Enabled",
        sram_corrected=0,
        sram_uncorrected=0,
        dram_corrected=0,
        dram_uncorrected=0,
        sram_threshold="No",
        rows_uncorrectable=0,
        rows_pending="No",
        rows_failed="No",
        pcie_generation=5,
        pcie_generation_max=5,
        pcie_width=16,
        pcie_width_max=16,
        sm_clock=1755,
        sm_clock_max=1980,
        reasons=frozenset({"sw_power_cap"}),
    )


def test_older_drivers_call_the_reasons_otherwise() -> None:
    smi_log = parse(
        smi_texts.document(smi_texts.gpu(reasons="clocks_throttle_reasons", hw_slowdown="Active"))
    )
    assert smi_log
    assert smi_log.gpus[0].reasons == {"sw_power_cap", "hw_slowdown"}


def test_the_sum_of_both_sram_counters() -> None:
    """Contract: Hopper has two counters of what Ampere counts in one."""
    seen = read(sram_uncorrectable_parity="2", sram_uncorrectable_secded="3")
    assert seen.sram_uncorrected == 5
    ampere = smi_texts.document(smi_texts.gpu()).replace("sram_uncorrectable_parity", "sram_uncorrectable")
    smi_log = parse(ampere.replace("<sram_uncorrectable>0", "<sram_uncorrectable>4"))
    assert smi_log
    assert smi_log.gpus[0].sram_uncorrected == 4


@pytest.mark.parametrize("words", ["N/A", "[N/A]", "Not Supported"])
def test_what_a_gpu_does_not_have(words: str) -> None:
    seen = read(current_ecc=words, remapped_row_unc=words, sram_correctable=words, current_mig=words)
    assert {seen.ecc_mode, seen.rows_uncorrectable, seen.sram_corrected, seen.mig} == {NOT_SUPPORTED}


@pytest.mark.parametrize("text", ["", "No devices were found\n", "<html></html>", "<nvidia_smi_log>"])
def test_what_is_no_answer(text: str) -> None:
    assert parse(text) is None


def test_a_document_without_gpus() -> None:
    smi_log = parse(smi_texts.document())
    assert smi_log is not None
    assert smi_log.gpus == ()


def test_what_is_not_there_is_none() -> None:
    """Contract: no field gets a value that nvidia-smi did not print."""
    smi_log = parse("<nvidia_smi_log><gpu><uuid>GPU-1</uuid></gpu></nvidia_smi_log>")
    assert smi_log is not None
    assert smi_log.gpus == (Gpu(uuid="GPU-1", name="", index=0),)


def test_reasons_in_words_that_nobody_knows_are_not_told() -> None:
    """Contract: a driver that tells of no reason at all does not say that there is none."""
    text = smi_texts.document(smi_texts.gpu()).replace("Not Active", "Unknown").replace("Active", "Unknown")
    smi_log = parse(text)
    assert smi_log is not None
    assert smi_log.gpus[0].reasons is None


@given(st.lists(st.lists(st.sampled_from([0.0, 25.0, 26.562, 53.125]), max_size=18), max_size=8))
def test_links_are_read_as_they_are_written(speeds: list[list[float]]) -> None:
    written = smi_texts.links(*speeds)
    assert parse_links(written) == {smi_texts.uuid(index): found for index, found in enumerate(speeds)}
