"""Launch with packages that the user replaces (`--replace`): konduktor, controllers and worker packages."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace

from harness.context import RecordedContext, RunContext
from harness.core.errors import UsageError
from harness.core.replacements import CONTROLLERS, KONDUKTOR, Replacement, parse
from harness.evidence.schema.bundle import Replaced
from harness.launch.workloads.base import Workload
from harness.provision.cluster import Ready
from harness.provision.images import replaced_image, scripts, versions
from harness.provision.images.origin import origin
from harness.provision.konduktor import replaced_konduktor
from harness.provision.replaced_wheels import Change, module_digest, version_texts
from harness.provision.source import versions as source_versions
from harness.settings import Settings


@dataclass(frozen=True)
class Packages:
    """The changes that the user's packages make to a launch.

    They are resolved before any object is created.
    """

    worker: Change | None = None
    konduktor: tuple[Replaced, ...] = ()
    controllers: tuple[Replaced, ...] = ()
    """The replaced controllers (JobSet, Kueue). The cluster is created with these versions."""

    def applied(self, ready: Ready, context: RecordedContext) -> Ready:
        """Load the changed worker image into the nodes. Return a copy of `ready` with this image and with the
        versions of all replaced packages."""
        if self.worker is not None:
            with context.writer.stage("image with replaced packages"):
                worker = replaced_image.with_change(ready.worker, self.worker, context)
            with context.writer.stage("replaced image to nodes"):
                ready.cluster.provide_image(worker.tag, context)
            worker_version = {"worker": scripts.version_text(worker.tag, worker.changed)}
            ready = replace(ready, worker=worker, versions=ready.versions | worker_version)
        replaced = (*self.controllers, *self.konduktor, *(self.worker.replaced if self.worker else ()))
        versions = version_texts(replaced)
        if self.konduktor:
            versions["konduktor"] = self.konduktor[0].version
        return replace(ready, replaced=replaced, versions=ready.versions | versions)


def check(workload: Workload, settings: Settings) -> None:
    """Raise UsageError if a package is to be replaced in an image that the harness does not build."""
    if problems := unusable(workload, settings):
        raise next(iter(problems.values()))


def unusable(workload: Workload, settings: Settings) -> dict[str, UsageError]:
    """Return the packages in settings.replace that this workload's launch cannot use, with the reasons."""
    problems: dict[str, UsageError] = {}
    packages = [name for name in settings.replace if name not in (KONDUKTOR, *CONTROLLERS)]
    if settings.kubeconfig is not None:
        hint = "install this version on the cluster yourself, and omit --replace"
        problems |= {
            name: UsageError(f"--replace cannot change {name} on your own cluster", hint=hint)
            for name in CONTROLLERS
            if name in settings.replace
        }
    if KONDUKTOR in settings.replace and workload.launcher != "konduktor":
        problems[KONDUKTOR] = UsageError(f"--replace konduktor: {workload.name} is not a konduktor job")
    if packages and (settings.kubeconfig is not None or not workload.uses_worker_image):
        image = settings.worker_image if settings.kubeconfig is not None else None
        error = UsageError(
            f"--replace cannot change {', '.join(packages)} in {image or 'your own image'}",
            hint="--replace applies only to the worker image on a kind cluster; "
            "install the package in your own image instead",
        )
        problems |= dict.fromkeys(packages, error)
    return problems


def resolved(context: RunContext) -> Packages:
    """Return the changes in settings.replace. Raises UsageError if a package cannot be resolved or built."""
    replacements = [parse(name, spec) for name, spec in context.settings.replace.items()]
    of_worker = [each for each in replacements if each.name not in (KONDUKTOR, *CONTROLLERS)]
    return Packages(
        replaced_image.change_of(of_worker, context) if of_worker else None,
        replaced_konduktor(context)[1] if KONDUKTOR in context.settings.replace else (),
        tuple(_controller(each, context) for each in replacements if each.name in CONTROLLERS),
    )


def _controller(each: Replacement, context: RunContext) -> Replaced:
    """Return the entry for a replaced controller in the record of replaced packages.

    Raises UsageError if the controller would be built from source and its version does not exist.
    """
    settings = context.settings
    locked = source_versions.load(settings.model_copy(update={"replace": {}}))
    path, digest = f"sigs.k8s.io/{each.name}", ""
    if settings.images != "registry" and shutil.which("go"):
        try:
            digest = module_digest(path, each.versions)
        except UsageError as error:
            if origin(versions.load(settings), context).image_source == "source":
                raise UsageError(f"--replace {each.name}: {error.message}") from None
    return Replaced(
        name=each.name,
        spec=each.spec,
        version=each.versions,
        digest=digest,
        origin=f"Go module {path}" if digest else "the published release",
        locked=getattr(locked, each.name),
    )
