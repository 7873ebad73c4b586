"""Outputs of nvidia-smi as users report them: each is parsed, or the check names what could not be read.

The texts follow the schema of the driver's DTDs (nvsmi_device_v9 to v13) and the lines of public bug reports,
which the names of the cases cite where there is one.
"""

from __future__ import annotations

import os
import re
import stat
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import smi_texts

from harness.workers.acceptance import gpu_count, gpu_health, smi_errors, smi_run
from harness.workers.acceptance.causes import ADVICE
from harness.workers.acceptance.check import Check
from harness.workers.acceptance.devices import Device, of
from harness.workers.acceptance.gpu_sharing import Sharing, sharing
from harness.workers.acceptance.limits import Limits
from harness.workers.acceptance.node_tests import Node
from harness.workers.acceptance.runner import Step
from harness.workers.acceptance.smi_errors import Reading
from harness.workers.acceptance.smi_parser import parse

LIMITS = Limits.load()
ONE = smi_texts.document(smi_texts.gpu(0))
TWO = smi_texts.document(smi_texts.gpu(0), smi_texts.gpu(1))
INFOROM = "WARNING: infoROM is corrupted at gpu 0000:18:00.0\n"
LOST = "Unable to determine the device handle for GPU0000:19:00.0: Unknown Error\n"


def without(text: str, tag: str) -> str:
    return re.sub(rf"\s*<{tag}>.*?</{tag}>", "", text, flags=re.DOTALL)


def with_value(text: str, tag: str, value: str) -> str:
    """Return the text with another value, or with a value in the place of a whole group."""
    changed = re.sub(rf"<{tag}>.*?</{tag}>", f"<{tag}>{value}</{tag}>", text, flags=re.DOTALL)
    assert changed != text
    return changed


def in_gpu(text: str, more: str) -> str:
    return text.replace("\t</gpu>", f"{more}\t</gpu>")


V9 = with_value(
    with_value(
        in_gpu(
            without(
                without(
                    smi_texts.document(
                        smi_texts.gpu(0, "clocks_throttle_reasons", product_name="Tesla V100")
                    ),
                    "cuda_version",
                ),
                "remapped_rows",
            ).replace("_v12", "_v9"),
            "<retired_pages><multiple_single_bit_retirement><retired_count>1</retired_count>"
            "</multiple_single_bit_retirement><double_bit_retirement><retired_count>2</retired_count>"
            "</double_bit_retirement><pending_retirement>No</pending_retirement></retired_pages>"
            "<remapped_rows>N/A</remapped_rows>",
        ),
        "ecc_errors",
        "<volatile><single_bit><total>0</total><device_memory>0</device_memory></single_bit>"
        "<double_bit><total>0</total><device_memory>0</device_memory></double_bit></volatile>"
        "<aggregate><single_bit><total>3</total></single_bit><double_bit><total>2</total></double_bit></aggregate>",
    ),
    "mig_mode",
    "<current_mig>N/A</current_mig><pending_mig>N/A</pending_mig>",
)
WITHOUT_ECC = (
    *("env.ecc.mode", "env.ecc.sram_uncorrected", "env.ecc.sram_corrected"),
    *("env.ecc.dram_uncorrected", "env.ecc.dram_corrected"),
    *("env.remapped_rows.uncorrectable", "env.remapped_rows.pending", "env.remapped_rows.failed"),
)
NO_MEMORY = {"ecc_errors": "N/A", "remapped_rows": "N/A", "fb_memory_usage": "<total>Not Supported</total>"}
GB10 = ONE.replace("H100 80GB HBM3", "GB10").replace("<current_ecc>Enabled", "<current_ecc>N/A")
for _tag, _value in NO_MEMORY.items():
    GB10 = with_value(GB10, _tag, _value)


def fabric(status: str = "Success", **health: str) -> str:
    """Return a GPU's registration with the NVLink fabric, as the schema of driver 580 has it."""
    words = {"summary": "Healthy", "bandwidth": "Full", "route_unhealthy": "False", **health}
    words = {"partition_assigned": "True", "incorrect_configuration": "None", **words}
    inner = "".join(f"<{name}>{word}</{name}>" for name, word in words.items())
    return f"<fabric><state>Completed</state><status>{status}</status><health>{inner}</health></fabric>"


REPORTS_NOTHING = {"env.ecc.mode": "UNKNOWN", "env.pcie.width": "UNKNOWN"}


@dataclass(frozen=True)
class Case:
    """`expected` has the checks that do not pass: id → verdict, or (verdict, cause)."""

    text: str
    expected: dict[str, object] = field(default_factory=dict)
    code: int = 0
    visible: int = 1
    requested: int = 1
    words: str = ""
    """Text that one of these checks must quote."""


CASES = {
    "v12 healthy": Case(ONE),
    "v12 throttle reasons of driver 525": Case(
        smi_texts.document(smi_texts.gpu(0, "clocks_throttle_reasons"))
    ),
    "v13 with gpu_power_readings (telegraf #16569)": Case(
        in_gpu(ONE, "<gpu_power_readings><average_power_draw>70 W</average_power_draw></gpu_power_readings>")
    ),
    "v13 histogram of remapped rows": Case(
        ONE.replace(
            "</remapped_rows>",
            "<row_remapper_histogram><row_remapper_histogram_none>0 bank(s)</row_remapper_histogram_none>"
            "</row_remapper_histogram></remapped_rows>",
        )
    ),
    "v13 a bank without spare rows": Case(
        ONE.replace(
            "</remapped_rows>",
            "<row_remapper_histogram><row_remapper_histogram_none>1 bank(s)</row_remapper_histogram_none>"
            "</row_remapper_histogram></remapped_rows>",
        ),
        {"env.remapped_rows.failed": ("WARN", "gpu.remapped_rows")},
    ),
    "v13 recovery action": Case(
        in_gpu(ONE, "<gpu_recovery_action>Drain and Reset</gpu_recovery_action>"),
        {"env.health": ("FAIL", "gpu.lost")},
        words="Drain and Reset",
    ),
    "v13 unrepairable memory": Case(
        ONE.replace("</aggregate>", "</aggregate><unrepairable_memory>Yes</unrepairable_memory>"),
        {"env.health": ("FAIL", "gpu.ecc")},
    ),
    "v12 SRAM threshold exceeded": Case(
        with_value(ONE, "sram_threshold_exceeded", "Yes"),
        {"env.ecc.sram_uncorrected": ("FAIL", "gpu.ecc")},
    ),
    "v9 Volta retires pages": Case(V9),
    "v9 page retirement is pending": Case(
        with_value(V9, "pending_retirement", "Yes"),
        {"env.remapped_rows.pending": ("FAIL", "gpu.remapped_rows")},
    ),
    "v9 double bit error since the driver was loaded": Case(
        V9.replace("<double_bit><total>0<", "<double_bit><total>1<"),
        {"env.ecc.sram_uncorrected": ("FAIL", "gpu.ecc")},
    ),
    "v10 GeForce without ECC (nvidia-smi-exporter #1)": Case(
        with_value(with_value(ONE, "ecc_errors", "N/A"), "remapped_rows", "N/A").replace(
            "<current_ecc>Enabled", "<current_ecc>N/A"
        ),
        {
            "env.ecc.mode": "UNKNOWN",
            "env.ecc.sram_uncorrected": "UNKNOWN",
            "env.ecc.sram_corrected": "UNKNOWN",
            "env.ecc.dram_uncorrected": "UNKNOWN",
            "env.ecc.dram_corrected": "UNKNOWN",
            "env.remapped_rows.uncorrectable": "UNKNOWN",
            "env.remapped_rows.pending": "UNKNOWN",
            "env.remapped_rows.failed": "UNKNOWN",
        },
        words="not supported by this GPU (N/A)",
    ),
    "old GPU with N/A everywhere (microsoft/pai #949)": Case(
        re.sub(r">(?:0|No|Enabled|Disabled|\d+x|5|Active|Not Active)<", ">N/A<", ONE),
        {
            **dict.fromkeys((id for id in gpu_health.AT_REST if id != "env.mig"), "UNKNOWN"),
            **dict.fromkeys(("env.pcie.generation", "env.throttle"), "UNKNOWN"),
        },
    ),
    "values of a failing GPU (dcgm-exporter #319)": Case(
        in_gpu(
            with_value(ONE, "persistence_mode", "[Unknown Error]"), "<fan_speed>Unknown Error</fan_speed>"
        ),
        {"env.health": ("WARN", "gpu.smi_warning"), "env.persistence": "UNKNOWN"},
        words="could not read it (Unknown Error)",
    ),
    "ECC that cannot be read": Case(
        with_value(ONE, "sram_uncorrectable_secded", "[Unknown Error]"),
        {"env.health": ("WARN", "gpu.smi_warning"), "env.ecc.sram_uncorrected": "UNKNOWN"},
    ),
    "a throttle reason that cannot be read": Case(
        with_value(ONE, "clocks_event_reason_hw_slowdown", "[Unknown Error]"),
        {"env.health": ("WARN", "gpu.smi_warning"), "env.throttle": "UNKNOWN"},
    ),
    "a deprecated throttle reason": Case(
        with_value(
            ONE,
            "clocks_event_reason_applications_clocks_setting",
            "Requested functionality has been deprecated",
        )
    ),
    "deprecated MIG mode": Case(
        with_value(ONE, "current_mig", "Requested functionality has been deprecated"),
        {"env.mig": "UNKNOWN"},
        words="deprecated",
    ),
    "no permission": Case(
        with_value(ONE, "ecc_mode", "<current_ecc>Insufficient Permissions</current_ecc>"),
        {"env.ecc.mode": "UNKNOWN"},
        words="Insufficient Permissions",
    ),
    "a lost GPU within the XML": Case(
        with_value(ONE, "sm_clock", "GPU is lost"),
        {"env.health": ("FAIL", "gpu.lost"), "env.clocks": "UNKNOWN"},
    ),
    "a GPU that requires a reset (ERR!, dcgm-exporter #46)": Case(
        in_gpu(ONE, "<fan_speed>ERR!</fan_speed><x>[GPU requires reset]</x>"),
        {"env.health": ("FAIL", "gpu.lost")},
    ),
    "infoROM warning behind the XML": Case(
        ONE + INFOROM, {"env.health": ("FAIL", "gpu.inforom")}, words="infoROM"
    ),
    "infoROM warning, exit code 14": Case(
        ONE + INFOROM, {"env.health": ("FAIL", "gpu.inforom")}, code=14, words="infoROM"
    ),
    "infoROM warning before the XML": Case(INFOROM + ONE, {"env.health": ("FAIL", "gpu.inforom")}, code=14),
    "infoROM warning within the XML": Case(
        ONE.replace("\t</gpu>", f"{INFOROM}\t</gpu>"), {"env.health": ("FAIL", "gpu.inforom")}
    ),
    "exit code 14 alone": Case(ONE, {"env.smi": ("FAIL", "gpu.inforom")}, code=14),
    "infoROM of another GPU": Case(
        ONE + "WARNING: infoROM is corrupted at gpu 0000:AF:00.0\n",
        {"env.smi": ("FAIL", "gpu.inforom")},
        code=14,
    ),
    "a warning that is not known": Case(
        ONE + "WARNING: the moon is full\n", {"env.smi": ("WARN", "gpu.smi_warning")}, words="moon"
    ),
    "an exit code that is not known": Case(ONE, {"env.smi": ("WARN", "gpu.smi_warning")}, code=255),
    "one of two GPUs fell off the bus (dcgm-exporter #604)": Case(
        LOST + ONE,
        {"env.smi": ("FAIL", "gpu.lost"), "env.gpus": ("FAIL", "gpu.lost")},
        code=15,
        requested=2,
        words="Unable to determine the device handle",
    ),
    "a handle with another notation (open-gpu-kernel-modules #387)": Case(
        LOST.replace("GPU0000:19:00.0", "GPU 000:19:00.0") + ONE,
        {"env.smi": ("FAIL", "gpu.lost"), "env.gpus": ("FAIL", "gpu.lost")},
        requested=2,
    ),
    "no XML at all, because a GPU fell off the bus": Case(
        LOST,
        {"env.smi": ("FAIL", "gpu.lost"), "env.gpus": ("FAIL", "gpu.lost")},
        code=15,
        visible=0,
    ),
    "a driver that was updated without a reboot": Case(
        "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 535.161\n",
        {"env.smi": ("FAIL", "gpu.driver"), "env.gpus": ("FAIL", "gpu.driver")},
        code=18,
        visible=0,
        words="version mismatch",
    ),
    "a container that lost its devices (nvidia-container-toolkit #48)": Case(
        "Failed to initialize NVML: Unknown Error\n",
        {"env.smi": ("FAIL", "gpu.driver"), "env.gpus": ("FAIL", "gpu.driver")},
        code=255,
        visible=0,
    ),
    "no devices": Case(
        "No devices were found\n",
        {"env.smi": "UNKNOWN", "env.gpus": ("FAIL", "gpu.absent")},
        code=6,
        visible=0,
        words="No devices were found",
    ),
    "truncated in the second GPU": Case(
        TWO[: TWO.index(smi_texts.uuid(1))], {"env.smi": "UNKNOWN"}, words="ends in the middle of a GPU"
    ),
    "truncated after the last GPU": Case(
        ONE[: ONE.index("</nvidia_smi_log>")], {"env.smi": "UNKNOWN"}, words="its end is missing"
    ),
    "truncated in the first GPU": Case(
        ONE[:600], {"env.smi": "UNKNOWN"}, words="cut off before the end of its first GPU"
    ),
    "text that is not XML between the GPUs": Case(
        TWO.replace("</gpu>\n\t<gpu", "</gpu>\nERROR <0x3f> & more\n<gpu"), {"env.smi": "UNKNOWN"}, visible=2
    ),
    "characters that XML does not permit": Case(with_value(ONE, "timestamp", "\x00\x1b")),
    "fewer GPUs than attached": Case(
        with_value(ONE, "attached_gpus", "2"), {"env.smi": "UNKNOWN"}, words="counts 2 GPUs"
    ),
    "Grace Hopper": Case(
        with_value(
            in_gpu(ONE.replace("H100 80GB HBM3", "GH200 480GB"), "<c2c_mode>Enabled</c2c_mode>"),
            "pci_gpu_link_info",
            "<pcie_gen><max_link_gen>N/A</max_link_gen></pcie_gen>",
        )
    ),
    "Grace Hopper with a narrow PCIe link": Case(
        in_gpu(ONE, "<c2c_mode>Enabled</c2c_mode>").replace(
            "<current_link_width>16x", "<current_link_width>1x"
        ),
        {"env.pcie.width": ("WARN", "gpu.pcie")},
    ),
    "MIG": Case(
        smi_texts.document(smi_texts.gpu(0, current_mig="Enabled")),
        {"env.gpus": ("UNKNOWN", "gpu.mig"), "env.mig": ("WARN", "gpu.mig")},
        requested=7,
    ),
    "MIG without MIG devices": Case(
        smi_texts.document(smi_texts.gpu(0, current_mig="Enabled")),
        {"env.gpus": ("UNKNOWN", "gpu.mig")},
        visible=0,
    ),
    "vGPU": Case(
        in_gpu(
            ONE,
            "<gpu_virtualization_mode><virtualization_mode>VGPU</virtualization_mode></gpu_virtualization_mode>",
        ),
        {"env.gpus": ("UNKNOWN", "gpu.shared")},
    ),
    "a GPU that others use": Case(
        ONE.replace("<total>81559 MiB</total>", "<total>81559 MiB</total><used>30000 MiB</used>"),
        {"env.gpus": ("UNKNOWN", "gpu.shared")},
        words="29.3 of 79.6 GiB",
    ),
    "the libraries of the driver are not in the container (k8s-device-plugin #826)": Case(
        "NVIDIA-SMI couldn't find libnvidia-ml.so library in your system.\n",
        {"env.smi": ("FAIL", "gpu.driver"), "env.gpus": ("FAIL", "gpu.driver")},
        code=12,
        visible=0,
        words="libnvidia-ml.so",
    ),
    "registered with the NVLink fabric": Case(in_gpu(ONE, fabric())),
    "a failed registration with the NVLink fabric (azhpc-images #506)": Case(
        in_gpu(ONE, fabric("Insufficient Resources")),
        {"env.health": ("FAIL", "gpu.nvlink")},
        words="Insufficient Resources",
    ),
    "degraded bandwidth of the NVLink fabric (gpu-operator #2511, nccl #2186)": Case(
        in_gpu(ONE, fabric(bandwidth="Degraded")),
        {"env.health": ("FAIL", "gpu.nvlink")},
        words="bandwidth: Degraded",
    ),
    "a wrong configuration of the NVLink fabric": Case(
        in_gpu(ONE, fabric(incorrect_configuration="Incorrect SysGUID")),
        {"env.health": ("FAIL", "gpu.nvlink")},
    ),
    "GB10, whose memory and PCIe link are those of its CPU (dra-driver-nvidia-gpu #1073, nvtop #426)": Case(
        GB10, dict.fromkeys(WITHOUT_ECC, "UNKNOWN"), words="not supported by this GPU (N/A)"
    ),
    "a value in brackets (telegraf #7659)": Case(
        with_value(ONE, "sm_clock", "[N/A]"), {"env.clocks": "UNKNOWN"}
    ),
    "NVLink fabric without its manager": Case(
        in_gpu(ONE, "<fabric><state>In Progress</state><status>N/A</status></fabric>"),
        {"env.gpus": ("FAIL", "gpu.driver")},
        visible=0,
        words="fabric manager",
    ),
}


def judge(reading: Reading, visible: int, requested: int) -> list[Check]:
    devices = [
        Device("cuda", index, smi_texts.uuid(index), "NVIDIA H100 80GB HBM3") for index in range(visible)
    ]
    whose = sharing(devices, reading.smi, requested, {})
    checks = [
        gpu_count.count(devices, reading, requested, whose),
        *smi_errors.checks(reading, devices),
    ]
    for device in devices:
        gpu = of(reading.smi, device)
        if gpu is not None:
            checks += gpu_health.at_rest(gpu, LIMITS, **device.where)
            checks += gpu_health.under_load(gpu, LIMITS, **device.where)
    return checks


@pytest.mark.parametrize("name", CASES)
def test_an_output_is_judged_or_named(name: str) -> None:
    """Contract: no warning is lost, nothing unreadable passes, and healthy values are not accused."""
    case = CASES[name]
    smi = parse(case.text, case.code)
    error = "" if smi else smi_errors.unparsed(case.text, case.code)
    checks = judge(Reading(smi, error, failed=smi is None), case.visible, case.requested)
    wrong = [check for check in checks if check.verdict != "PASS"]
    expected = {id: (one, None) if isinstance(one, str) else one for id, one in sorted(case.expected.items())}
    found = {check.id: (check.verdict, check.cause) for check in sorted(wrong, key=lambda one: one.id)}
    if smi is None:
        found.pop("env.health", None)
    assert found == expected, [check.text for check in wrong]
    assert case.words in " ".join(check.text for check in wrong)
    assert {check.cause for check in wrong if check.cause} <= set(ADVICE)


def test_an_inforom_warning_names_the_gpu() -> None:
    """Contract: the bus address in the warning is matched to the UUID."""
    checks = judge(Reading(parse(TWO + INFOROM.replace("18", "19"), 14)), 2, 2)
    (failed,) = [check for check in checks if check.verdict == "FAIL"]
    assert (failed.gpu, failed.index, failed.cause) == (smi_texts.uuid(1), 1, "gpu.inforom")


def test_a_gpu_that_is_lost_under_load() -> None:
    """Contract: what nvidia-smi reports only under load fails, and a known warning is not repeated."""
    devices = [Device("cuda", index, smi_texts.uuid(index), "NVIDIA H100") for index in (0, 1)]
    first = Reading(parse(TWO + INFOROM, 14))
    assert smi_errors.under_load(first, first, devices).verdict == "PASS"
    lost = smi_errors.under_load(first, Reading(parse(LOST + ONE + INFOROM, 15)), devices)
    assert (lost.id, lost.verdict, lost.cause) == ("env.smi.load", "FAIL", "gpu.lost")
    hung = smi_errors.under_load(first, Reading(None, "nvidia-smi did not end within 60 s", True), devices)
    assert (hung.verdict, hung.cause) == ("FAIL", "gpu.driver")


def program(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = folder / "nvidia-smi"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


@pytest.mark.parametrize("code", [0, 14])
def test_a_program_that_warns_on_either_stream(
    code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "one.xml").write_text(ONE)
    script = f"cat {tmp_path}/one.xml; echo '{INFOROM.strip()}' >&2; printf '\\377\\n'; exit {code}"
    program(tmp_path, script, monkeypatch)
    smi = smi_run.read().smi
    assert smi is not None
    assert (smi.code, len(smi.gpus), INFOROM.strip() in smi.notes) == (code, 1, True)


def test_a_driver_that_hangs_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Contract: a call ends in time, even if a child of nvidia-smi keeps its output open."""
    program(tmp_path, "sleep 60 & wait", monkeypatch)
    started = time.monotonic()
    reading = smi_run.read(seconds=0.2)
    assert time.monotonic() - started < 50
    (check,) = smi_errors.checks(reading, [])
    assert (check.verdict, check.cause) == ("FAIL", "gpu.driver")
    assert "did not end within 0.2 s" in check.text


def test_links_of_a_program_that_warns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "links.txt").write_text(smi_texts.links([26.562, 0.0]))
    program(tmp_path, f"cat {tmp_path}/links.txt; exit 14", monkeypatch)
    assert smi_run.links() == {smi_texts.uuid(0): [26.562, 0.0]}


def test_an_absent_program_accuses_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    (check,) = smi_errors.checks(smi_run.read(), [])
    assert (check.verdict, check.cause) == ("UNKNOWN", None)
    assert "NVIDIA_DRIVER_CAPABILITIES" in check.text


@pytest.mark.parametrize(
    ("environ", "visible", "requested", "cause"),
    [
        ({"NVIDIA_VISIBLE_DEVICES": "GPU-a,GPU-b"}, 2, 2, None),
        ({"NVIDIA_VISIBLE_DEVICES": "GPU-a::3"}, 1, 15, "gpu.shared"),
        ({"NVIDIA_VISIBLE_DEVICES": "MIG-a,MIG-b"}, 1, 2, "gpu.mig"),
        ({"CUDA_MPS_PIPE_DIRECTORY": "/mps/nvidia.com/gpu/pipe"}, 1, 1, "gpu.shared"),
        ({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, 1, 15, "gpu.shared"),
        ({"KUBERNETES_SERVICE_HOST": "10.0.0.1", "ACCEPT_WHOLE": "1"}, 4, 8, None),
        ({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, 7, 8, None),
        ({}, 1, 8, None),
        (
            {"KUBERNETES_SERVICE_HOST": "1", "NVIDIA_VISIBLE_DEVICES": "GPU-a,GPU-b,GPU-c,GPU-d"},
            2,
            4,
            None,
        ),
    ],
)
def test_shared_gpus_are_told_from_missing_ones(
    environ: dict[str, str], visible: int, requested: int, cause: str | None
) -> None:
    """Contract: a shared GPU accuses no node, and a missing GPU is not excused by a possible sharing."""
    devices = [Device("cuda", index, smi_texts.uuid(index), "NVIDIA A10") for index in range(visible)]
    whose = sharing(devices, parse(TWO), requested, environ)
    assert (whose.cause if whose else None) == cause
    check = gpu_count.count(devices, Reading(parse(TWO)), requested, whose)
    failed = visible < requested and cause is None
    assert check.verdict == ("FAIL" if failed else "UNKNOWN" if cause else "PASS")
    assert check.cause == ("gpu.fewer" if failed else cause)


def test_the_speed_of_a_shared_gpu_is_not_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Contract: a slow result accuses no shared GPU, and a wrong result does."""
    node = Node("cuda", "quick", LIMITS, 1)
    slow = Check("compute.gemm.bf16", "COMPUTE", "FAIL", "300 TFLOP/s", cause="compute.slow")
    wrong = Check("compute.gemm.bf16.correct", "COMPUTE", "FAIL", "9 elements", cause="compute.wrong")
    step = Step("compute", "COMPUTE", lambda: (slow, wrong))
    assert list(node.fair(step).make()) == [slow, wrong]
    monkeypatch.setattr(node, "_sharing", Sharing("gpu.shared", "1 GPU is offered 15 times"))
    first, second = node.fair(step).make()
    assert (first.verdict, first.cause, second) == ("UNKNOWN", "gpu.shared", wrong)
    assert first.text == "300 TFLOP/s; not judged: 1 GPU is offered 15 times"
