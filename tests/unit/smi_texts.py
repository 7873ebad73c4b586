"""What nvidia-smi prints of a node of H100, healthy unless told otherwise.

The elements are those of `nvidia-smi -q -x` of driver 550, as far as the acceptance tests read them.
"""

from __future__ import annotations

HEALTHY = {
    "product_name": "NVIDIA H100 80GB HBM3",
    "persistence_mode": "Enabled",
    "current_mig": "Disabled",
    "current_ecc": "Enabled",
    "sram_correctable": "0",
    "sram_uncorrectable_parity": "0",
    "sram_uncorrectable_secded": "0",
    "dram_correctable": "0",
    "dram_uncorrectable": "0",
    "remapped_row_unc": "0",
    "remapped_row_pending": "No",
    "remapped_row_failure": "No",
    "max_link_gen": "5",
    "current_link_gen": "5",
    "max_link_width": "16x",
    "current_link_width": "16x",
    "gpu_idle": "Not Active",
    "applications_clocks_setting": "Not Active",
    "sw_power_cap": "Active",
    "hw_slowdown": "Not Active",
    "hw_thermal_slowdown": "Not Active",
    "hw_power_brake_slowdown": "Not Active",
    "sw_thermal_slowdown": "Not Active",
    "sm_clock": "1755 MHz",
    "max_sm_clock": "1980 MHz",
}


def uuid(index: int) -> str:
    """Return the UUID of one of these GPUs."""
    return f"GPU-6968dfc2-d444-d92c-c36b-6abe53445c{index:02x}"


def gpu(index: int = 0, reasons: str = "clocks_event_reasons", **changed: str) -> str:
    """Return the element of one GPU."""
    v = {**HEALTHY, **changed}
    one = reasons.removesuffix("s")
    reason_lines = "".join(
        f"\t\t\t<{one}_{name}>{v[name]}</{one}_{name}>\n"
        for name in (
            "gpu_idle",
            "applications_clocks_setting",
            "sw_power_cap",
            "hw_slowdown",
            "hw_thermal_slowdown",
            "hw_power_brake_slowdown",
            "sw_thermal_slowdown",
        )
    )
    counters = "".join(
        f"\t\t\t\t<{name}>{v[name]}</{name}>\n"
        for name in (
            *("sram_correctable", "sram_uncorrectable_parity", "sram_uncorrectable_secded"),
            *("dram_correctable", "dram_uncorrectable"),
        )
    )
    return f"""\t<gpu id="00000000:{index + 0x18:02X}:00.0">
\t\t<product_name>{v["product_name"]}</product_name>
\t\t<persistence_mode>{v["persistence_mode"]}</persistence_mode>
\t\t<mig_mode>
\t\t\t<current_mig>{v["current_mig"]}</current_mig>
\t\t\t<pending_mig>{v.get("pending_mig", v["current_mig"])}</pending_mig>
\t\t</mig_mode>
\t\t<uuid>{uuid(index)}</uuid>
\t\t<pci>
\t\t\t<pci_gpu_link_info>
\t\t\t\t<pcie_gen>
\t\t\t\t\t<max_link_gen>{v["max_link_gen"]}</max_link_gen>
\t\t\t\t\t<current_link_gen>{v["current_link_gen"]}</current_link_gen>
\t\t\t\t\t<max_device_link_gen>5</max_device_link_gen>
\t\t\t\t\t<max_host_link_gen>5</max_host_link_gen>
\t\t\t\t</pcie_gen>
\t\t\t\t<link_widths>
\t\t\t\t\t<max_link_width>{v["max_link_width"]}</max_link_width>
\t\t\t\t\t<current_link_width>{v["current_link_width"]}</current_link_width>
\t\t\t\t</link_widths>
\t\t\t</pci_gpu_link_info>
\t\t</pci>
\t\t<{reasons}>
{reason_lines}\t\t</{reasons}>
\t\t<fb_memory_usage>
\t\t\t<total>81559 MiB</total>
\t\t</fb_memory_usage>
\t\t<ecc_mode>
\t\t\t<current_ecc>{v["current_ecc"]}</current_ecc>
\t\t\t<pending_ecc>{v.get("pending_ecc", v["current_ecc"])}</pending_ecc>
\t\t</ecc_mode>
\t\t<ecc_errors>
\t\t\t<volatile>
{counters}\t\t\t</volatile>
\t\t\t<aggregate>
{counters}\t\t\t\t<sram_threshold_exceeded>No</sram_threshold_exceeded>
\t\t\t</aggregate>
\t\t</ecc_errors>
\t\t<remapped_rows>
\t\t\t<remapped_row_corr>0</remapped_row_corr>
\t\t\t<remapped_row_unc>{v["remapped_row_unc"]}</remapped_row_unc>
\t\t\t<remapped_row_pending>{v["remapped_row_pending"]}</remapped_row_pending>
\t\t\t<remapped_row_failure>{v["remapped_row_failure"]}</remapped_row_failure>
\t\t</remapped_rows>
\t\t<clocks>
\t\t\t<graphics_clock>{v["sm_clock"]}</graphics_clock>
\t\t\t<sm_clock>{v["sm_clock"]}</sm_clock>
\t\t</clocks>
\t\t<max_clocks>
\t\t\t<graphics_clock>{v["max_sm_clock"]}</graphics_clock>
\t\t\t<sm_clock>{v["max_sm_clock"]}</sm_clock>
\t\t</max_clocks>
\t</gpu>
"""


def document(*gpus: str) -> str:
    """Return the whole of `nvidia-smi -q -x`."""
    return f"""<?xml version="1.0" ?>
<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">
<nvidia_smi_log>
\t<timestamp>Mon Nov 23 03:00:00 2026</timestamp>
\t<driver_version>550.127.08</driver_version>
\t<cuda_version>12.4</cuda_version>
\t<attached_gpus>{len(gpus)}</attached_gpus>
{"".join(gpus)}</nvidia_smi_log>
"""


def links(*speeds: list[float]) -> str:
    """Return what `nvidia-smi nvlink -s` prints of links with these speeds. 0 is a link that is down."""
    lines = []
    for index, of_gpu in enumerate(speeds):
        lines.append(f"GPU {index}: NVIDIA H100 80GB HBM3 (UUID: {uuid(index)})")
        lines += [
            f"\t Link {number}: " + (f"{speed} GB/s" if speed else "<inactive>")
            for number, speed in enumerate(of_gpu)
        ]
    return "\n".join(lines) + "\n"
