"""Define the tests for one node as an ordered list of steps."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Literal

from . import devices, equality, gpu_count, gpu_health, gpu_sharing, host_state, smi_errors, smi_run
from .check import Check
from .devices import CPU, Device
from .limits import Limits
from .runner import Section, Step


class Node:
    """One node under test. `extra` contains additional fields for its report."""

    def __init__(
        self, device: Literal["cpu", "cuda"], mode: str, limits: Limits, gpus: int | None = None
    ) -> None:
        self.device, self.mode, self.limits = device, mode, limits
        self.expected = devices.requested(gpus) if device == "cuda" else None
        self.devices: list[Device] = [CPU] if device == "cpu" else []
        self.extra: dict[str, Any] = {}
        self._reading = smi_errors.Reading(None, "nvidia-smi was not called")
        self._sharing: gpu_sharing.Sharing | None = None

    @cached_property
    def wrong_image(self) -> Check | None:
        """Return an UNKNOWN check if this image cannot test GPUs, otherwise None.

        If there is such a check, no tests are run.
        """
        if self.device == "cpu":
            return None
        try:
            return devices.image_check("env.image", "ENV")
        except Exception:  # If PyTorch cannot be imported, the first step reports it.
            return None

    def sections(self) -> list[Section]:
        """Return the ENV, COMPUTE and TRAIN sections, or only the `wrong_image` check if there is one."""
        if self.wrong_image is not None:
            check = self.wrong_image
            return [Section("env", "ENV", lambda: [Step(check.id, "ENV", lambda: (check,))])]
        of_gpus = [Section("env.gpu", "ENV", self._gpus)] if self.device == "cuda" else []
        return [
            Section("env", "ENV", self._environment),
            *of_gpus,
            Section("compute", "COMPUTE", lambda: map(self.fair, self._compute())),
            Section("train", "TRAIN", self._train),
        ]

    def nothing_to_test(self, id: str, tag: str) -> Callable[[], Iterable[Check]]:
        """Return a function that creates an UNKNOWN check.

        Use it for a section if there are no devices to test.
        """
        text = "no GPU is visible, so nothing was tested"
        return lambda: (Check(id=id, tag=tag, verdict="UNKNOWN", text=text),)

    def _environment(self) -> Iterator[Step]:
        yield Step("env.versions", "ENV", self._look)
        for name, make in (
            ("env.shm", lambda: host_state.shared_memory(host_state.SHM)),
            ("env.memlock", host_state.memlock),
            ("env.clock", host_state.clock),
        ):
            yield Step(name, "ENV", _one(make))

    def _look(self) -> Iterator[Check]:
        """Find the devices for the COMPUTE and TRAIN sections.

        Yield the checks for the devices and the software versions.
        """
        if self.device == "cpu":
            devices.calm()
            self.extra["versions"] = devices.versions(None)
            yield from devices.version_checks(self.extra["versions"], self.device)
            text = "the tests ran on the CPU: no GPU was tested, so no GPU is accepted"
            yield Check(id="env.gpus", tag="ENV", verdict="WARN", text=text, cause="gpu.not_tested")
            return
        self._reading = smi_run.read()
        self.devices = devices.visible()
        self.extra["gpus"] = [device.as_dict() for device in self.devices]
        sharing = gpu_sharing.sharing(self.devices, self._reading.smi, self.expected, os.environ)
        self._sharing = sharing
        yield gpu_count.count(self.devices, self._reading, self.expected, sharing)
        yield from smi_errors.checks(self._reading, self.devices)
        self.extra["versions"] = devices.versions(self._reading.smi)
        yield from devices.version_checks(self.extra["versions"], self.device)

    def _gpus(self) -> Iterator[Step]:
        """Yield the steps that inspect the GPUs' state."""
        if not self.devices:
            yield Step("env.gpu", "ENV", self.nothing_to_test("env.gpu", "ENV"))
        for device in self.devices:
            yield Step("env.gpu", "ENV", _many(self._at_rest, device), device.where)
        if self.devices:
            yield Step("env.nvlink", "ENV", self._links)
            yield self.fair(Step("env.load", "ENV", self._under_load))

    def _at_rest(self, device: Device) -> Iterator[Check]:
        gpu = devices.of(self._reading.smi, device)
        if gpu is None:
            return gpu_health.not_reported(
                gpu_health.AT_REST, _not_reported_reason(self._reading, device), **device.where
            )
        return gpu_health.at_rest(gpu, self.limits, **device.where)

    def _links(self) -> Iterator[Check]:
        all_links = smi_run.links()
        for device in self.devices:
            gpu = devices.of(self._reading.smi, device)
            if gpu is None:
                yield from gpu_health.not_reported(
                    ("env.nvlink",), _not_reported_reason(self._reading, device), **device.where
                )
            else:
                yield gpu_health.links(gpu, all_links, self.limits, gpus=len(self.devices), **device.where)

    def _under_load(self) -> Iterator[Check]:
        from . import gpu_load

        with gpu_load.busy(self.devices):
            now = smi_run.read()
        yield smi_errors.under_load(self._reading, now, self.devices)
        for device in self.devices:
            gpu = devices.of(now.smi, device)
            if gpu is None:
                yield from gpu_health.not_reported(
                    gpu_health.UNDER_LOAD, _not_reported_reason(now, device), **device.where
                )
            else:
                yield from gpu_health.under_load(gpu, self.limits, **device.where)

    def fair(self, step: Step) -> Step:
        """Wrap a step so that it does not judge the speed of GPUs that other processes may use too."""

        def make() -> Iterator[Check]:
            for check in step.make():
                if self._sharing is None or not gpu_sharing.excuse(check.verdict, check.cause):
                    yield check
                else:
                    text = gpu_sharing.excused(check.text, self._sharing.text)
                    yield replace(check, verdict="UNKNOWN", text=text, cause=self._sharing.cause)

        return replace(step, make=make)

    def _compute(self) -> Iterator[Step]:
        if not self.devices:
            yield Step("compute", "COMPUTE", self.nothing_to_test("compute", "COMPUTE"))
            return
        from . import bandwidth, gemm

        for device in self.devices:
            for precision in gemm.precisions(device):
                yield Step(
                    f"compute.gemm.{precision.name}.correct",
                    "COMPUTE",
                    _one(gemm.right, precision, device),
                    device.where,
                )
                yield Step(
                    f"compute.gemm.{precision.name}",
                    "COMPUTE",
                    _one(gemm.fast, precision, device, self.mode, self.limits),
                    device.where,
                )
            yield Step(
                "memory", "COMPUTE", _many(bandwidth.memory, device, self.mode, self.limits), device.where
            )
            if device.kind == "cuda":
                yield Step(
                    "copy", "COMPUTE", _many(bandwidth.host, device, self.mode, self.limits), device.where
                )
        if len(self.devices) > 1:
            yield Step("copy.peer", "COMPUTE", _many(bandwidth.peers, self.devices, self.mode, self.limits))
        yield Step("compute.equal", "COMPUTE", lambda: _equal(self.devices))

    def _train(self) -> Iterator[Step]:
        if not self.devices:
            yield Step("train", "TRAIN", self.nothing_to_test("train", "TRAIN"))
            return
        from . import training

        for device in self.devices:
            yield Step("train", "TRAIN", _many(training.checks, device, self.mode), device.where)


def _not_reported_reason(reading: smi_errors.Reading, device: Device) -> str:
    if reading.smi is None:
        return f"nvidia-smi gave no data: {reading.error}"
    return (
        f"nvidia-smi does not list the GPU {device.uuid or '(UUID unknown: PyTorch reports UUIDs since 2.5)'}"
    )


def _equal(tested: Sequence[Device]) -> Iterator[Check]:
    from . import gemm

    digests = {device: gemm.digests(device) for device in tested}
    return equality.checks("compute.equal", digests, "compute.unequal")


def _one(make: Callable[..., Check], *arguments: Any) -> Callable[[], Iterable[Check]]:
    return lambda: (make(*arguments),)


def _many(make: Callable[..., Iterable[Check]], *arguments: Any) -> Callable[[], Iterable[Check]]:
    return lambda: make(*arguments)
