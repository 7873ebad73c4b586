"""Define the causes of failed checks, and the recommended action for each cause."""

from __future__ import annotations

ADVICE: dict[str, str] = {
    "image.no_cuda": (
        "This image's PyTorch is built without CUDA: use an image with CUDA. The node was not tested."
    ),
    "gpu.absent": (
        "No GPU is visible: check the driver on the node, the device plugin, and the pod's "
        "nvidia.com/gpu limit."
    ),
    "gpu.fewer": (
        "Fewer GPUs are visible than were requested: search the node's kernel log for a GPU that fell "
        "off the bus (Xid 79), and check NVIDIA_VISIBLE_DEVICES."
    ),
    "gpu.not_tested": "The tests ran on the CPU because of --device cpu: run them with --device cuda.",
    "gpu.driver": (
        "The driver does not support this PyTorch build, or does not respond: update the driver, or use "
        "an image with an older CUDA version."
    ),
    "gpu.ecc": (
        "The GPU's memory has errors, or its ECC is disabled: drain the node, reset the GPU, and replace it "
        "if the errors return. To enable ECC, run nvidia-smi -e 1 before the reset."
    ),
    "gpu.remapped_rows": (
        "A memory row remap is pending or has failed: reset the GPU if the remap is pending, and replace "
        "the GPU if the remap has failed."
    ),
    "gpu.lost": (
        "The driver cannot use a GPU: search the node's kernel log for Xid 79, drain the node, and reset the "
        "GPU. Reseat or replace it if this happens again."
    ),
    "gpu.inforom": (
        "The infoROM of the GPU is corrupted, so the GPU loses its error counters: drain and "
        "power-cycle the node, and replace the GPU if the warning persists."
    ),
    "gpu.smi_warning": (
        "nvidia-smi reported a warning or an error that no other check covers: read the check's message, "
        "and run nvidia-smi -q on the node."
    ),
    "gpu.shared": (
        "The GPU is shared, so it cannot be accepted: test it without time slicing, MPS or vGPU, "
        "and while no other process uses it. The node is not at fault."
    ),
    "gpu.throttled": "The GPU throttles its clocks: check its cooling and its power supply.",
    "gpu.clocks": (
        "The GPU's clock stays below its maximum under load: check locked clocks (nvidia-smi "
        "-rgc) and the power limit."
    ),
    "gpu.pcie": (
        "The PCIe link runs below its maximum width or generation: reseat the GPU or its riser, and "
        "check the firmware settings."
    ),
    "gpu.nvlink": (
        "An NVLink is down or slower than other links: check nvidia-smi nvlink -s, the fabric "
        "manager, and the NVSwitches."
    ),
    "gpu.mig": "MIG is enabled on the GPU: disable it (nvidia-smi -mig 0) to test the whole GPU.",
    "gpu.persistence": "The driver is unloaded between jobs: start nvidia-persistenced on the node.",
    "shm.small": (
        "The pod's /dev/shm is too small for NCCL and data loaders: "
        "mount a larger emptyDir there (medium: Memory)."
    ),
    "shm.full": "The pod's /dev/shm is full: delete the files left there, or increase its size.",
    "memlock.low": (
        "The locked-memory limit is too low for RDMA: set memlock to unlimited in the container runtime."
    ),
    "clock.wrong": "The node's clock is wrong or not synchronised: check chrony or systemd-timesyncd.",
    "compute.wrong": "The GPU computes wrong numbers: drain the node and replace the GPU.",
    "compute.slow": (
        "Matrix products are slower than they should be on this GPU: check throttling, power limits, and "
        "other processes on the GPU."
    ),
    "compute.unequal": (
        "Given the same work, one GPU computed a different result from the other GPUs: drain the node and "
        "replace that GPU."
    ),
    "memory.slow": "The GPU's memory is slower than it should be: check memory clocks and remapped rows.",
    "copy.slow": (
        "Copies are slower than the link should allow: check PCIe width, NUMA placement, and NVLink."
    ),
    "training.not_learning": (
        "A small model did not learn: the GPU or the PyTorch build computes wrong gradients."
    ),
    "training.not_reproducible": (
        "The same training, run twice, gave different results: the GPU or its memory is unreliable."
    ),
    "training.failed": "The training could not run: see the error in the check's message.",
    "collective.wrong": "A collective returned wrong data: test the named ranks' GPUs and links separately.",
    "collective.slow": (
        "A collective is slower than it should be on this hardware: check NVLink, NCCL's choice of "
        "network (NCCL_DEBUG=INFO) and GPUDirect."
    ),
    "collective.hung": (
        "A collective did not complete: inspect the named rank first, because the others are waiting for it."
    ),
    "collective.failed": (
        "A collective ended with an error: a rank died or its connection broke. Read the log of that rank."
    ),
    "straggler.rank": (
        "The other ranks have to wait for this slow rank: check its GPU's clocks and its host's load."
    ),
    "link.slow": "Two nodes are slow together, but fast with other nodes: check the path between them.",
    "link.bad": "Two nodes fail together, but each works with other nodes: check the path between them.",
    "link.boundary": (
        "Two groups of nodes fail together, but each group works by itself: check their connection, for "
        "example a spine switch or a rail."
    ),
    "versions.differ": (
        "Nodes run different versions: use the same driver, CUDA, NCCL and PyTorch on all nodes."
    ),
}
"""Maps each cause to a description of the problem and the recommended action."""
