"""The causes that checks name, and what to do about each."""

from __future__ import annotations

ADVICE: dict[str, str] = {
    "image.no_cuda": (
        "PyTorch of this image is built without CUDA: take an image that has it. The node was not judged."
    ),
    "gpu.absent": (
        "No GPU is visible: check the driver on the node, the device plugin, and the pod's "
        "nvidia.com/gpu limit."
    ),
    "gpu.fewer": (
        "Fewer GPUs are visible than were asked for: look for a GPU that fell off the bus in the "
        "node's kernel log (Xid 79), and for NVIDIA_VISIBLE_DEVICES."
    ),
    "gpu.not_tested": "The tests ran on the CPU because they were told to: run them with --device cuda.",
    "gpu.driver": (
        "The driver does not fit this PyTorch, or does not answer: update the driver, or take an "
        "image with an older CUDA."
    ),
    "gpu.ecc": (
        "The GPU's memory has uncorrectable errors: drain the node, reset the GPU, and replace it "
        "when they come back."
    ),
    "gpu.remapped_rows": (
        "A memory row waits for its replacement or could not be replaced: reset the GPU when it "
        "is pending, replace the GPU when it failed."
    ),
    "gpu.throttled": "The GPU slows itself down: check its cooling and its power supply.",
    "gpu.clocks": (
        "The GPU's clock stays below its maximum under load: check locked clocks (nvidia-smi "
        "-rgc) and the power limit."
    ),
    "gpu.pcie": (
        "The PCIe link is narrower or slower than it can be: reseat the GPU or its riser, and "
        "check the firmware's settings."
    ),
    "gpu.nvlink": (
        "An NVLink is down or slower than its neighbours: check nvidia-smi nvlink -s, the fabric "
        "manager, and the NVSwitches."
    ),
    "gpu.mig": "The GPU is split by MIG: switch it off (nvidia-smi -mig 0) to accept the whole GPU.",
    "gpu.persistence": "The driver unloads itself between jobs: start nvidia-persistenced on the node.",
    "shm.small": (
        "The pod's /dev/shm is too small for NCCL and data loaders: mount an emptyDir of medium Memory there."
    ),
    "shm.full": "The pod's /dev/shm is full: find what was left there, or give it more room.",
    "memlock.low": (
        "The limit of locked memory is low, and RDMA needs it: set memlock to unlimited in the "
        "container runtime."
    ),
    "clock.wrong": "The node's clock is wrong or not synchronised: check chrony or systemd-timesyncd.",
    "compute.wrong": "The GPU computes wrong numbers: drain the node and replace the GPU.",
    "compute.slow": (
        "Matrix products are slower than this GPU should be: check throttling, power limits, and "
        "other processes on the GPU."
    ),
    "compute.unequal": (
        "One GPU gives another result than its neighbours for the same work: drain the node and "
        "replace that GPU."
    ),
    "memory.slow": "The GPU's memory is slower than it should be: check memory clocks and remapped rows.",
    "copy.slow": (
        "Copies are slower than the link should allow: check PCIe width, NUMA placement, and NVLink."
    ),
    "training.not_learning": (
        "A small model did not learn: the GPU or the PyTorch build computes wrong gradients."
    ),
    "training.not_reproducible": "The same training gave two results: the GPU or its memory is unreliable.",
    "training.failed": "The training could not run: the text has its error.",
    "collective.wrong": "A collective gave wrong data: test the named ranks' GPUs and links alone.",
    "collective.slow": (
        "A collective is slower than this hardware should be: check NVLink, NCCL's choice of "
        "network (NCCL_DEBUG=INFO) and GPU-direct."
    ),
    "collective.hung": "A collective did not end: look at the named rank first; the others wait for it.",
    "collective.failed": (
        "A collective ended with an error: a rank died or its connection broke; read its log."
    ),
    "straggler.rank": "The other ranks wait for this one: check its GPU's clocks and its host's load.",
    "link.slow": "Two nodes are slow with each other, and fast with others: check the path between them.",
    "link.bad": "Two nodes fail with each other, and each works with others: check the path between them.",
    "link.boundary": (
        "Two groups of nodes fail with each other, and each works by itself: check what connects them, a "
        "spine switch or a rail."
    ),
    "versions.differ": "Nodes run different versions: bring driver, CUDA, NCCL and PyTorch to one state.",
}
"""Cause → what to do, in one sentence."""
