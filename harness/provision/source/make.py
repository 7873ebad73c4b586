"""Build everything, no step twice. Debian's steps mostly wait for disk and network: they run beside Go's."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from harness.context import RunContext
from harness.core.beside import beside
from harness.core.errors import HarnessError
from harness.core.locks import locked
from harness.core.progress import Progress
from harness.provision.source import debian, images, manifests, versions
from harness.provision.source.golang import Go
from harness.provision.source.plan import CONTROLLERS, Plan
from harness.provision.source.shell import CAUSE, Shell
from harness.provision.source.store import Store


@dataclass(frozen=True)
class SourceStack:
    """Images by their local Docker tag, and manifests that name them."""

    node_image: str
    kubernetes: str
    jobset_image: str
    kueue_image: str
    jobset_manifest: Path
    kueue_manifest: Path


def build(context: RunContext) -> SourceStack:
    """Build everything that a cluster needs and no registry gives, from Go modules and Debian packages.

    What exists already is not built again. One process builds at a time, others wait for it. Needs root
    (debootstrap), Docker and Go.

    Raises ToolError or HarnessError with cause cluster.node_image or controllers.image_failed. A ToolError
    names the log.
    """
    plan = Plan(Store(context.settings.cache_dir / "source"), versions.load(context.settings))
    logs = plan.store.root / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    stack = _stack(plan)
    lookup = logs / "lookup.log"
    lookup.unlink(missing_ok=True)
    if not _missing(plan, Shell(lookup)):
        return stack
    with locked(
        plan.store.root / "lock", lambda: context.progress("source: waiting for another build to end")
    ):
        shell = Shell(logs / time.strftime("build-%Y%m%d-%H%M%S.log", time.gmtime()))
        plan.store.clear_unfinished()
        missing = _missing(plan, shell)
        if missing:
            _Making(plan, shell, context.progress, missing).everything()
    return stack


def _stack(plan: Plan) -> SourceStack:
    return SourceStack(
        node_image=plan.node_image,
        kubernetes=plan.versions.kubernetes,
        jobset_image=plan.controller_image("jobset"),
        kueue_image=plan.controller_image("kueue"),
        jobset_manifest=plan.manifest("jobset"),
        kueue_manifest=plan.manifest("kueue"),
    )


def _missing(plan: Plan, shell: Shell) -> set[str]:
    """Return what is missing: tags that Docker lacks, files that do not exist."""
    present = images.tags(shell)
    controllers = {plan.controller_image(name) for name in CONTROLLERS}
    files = {plan.manifest(name) for name in CONTROLLERS}
    return ({plan.node_image} | controllers) - present | {str(path) for path in files if not path.is_file()}


@dataclass(frozen=True)
class _Making:
    plan: Plan
    shell: Shell
    progress: Progress
    missing: set[str]

    def everything(self) -> None:
        """Run each missing step. A step whose result nothing missing needs is left out."""
        images.remove_leftovers(self.shell)
        compiled = self.plan.store.root / "go-build"  # a build that was cut off goes on from it
        go = Go(self.shell, self.plan.versions.go, compiled)
        go.check()
        controllers = replace(self, shell=replace(self.shell, cause="controllers.image_failed"))
        if self.plan.node_image in self.missing:
            aside = replace(self, shell=replace(self.shell, log=self.shell.log.with_suffix(".node.log")))
            with beside(aside._root):
                for name in self.plan.modules:
                    if name not in CONTROLLERS:
                        self._programs(go, name)
            with beside(lambda: aside._node(replace(go, shell=aside.shell))):
                controllers._controllers(go)
        else:
            controllers._controllers(go)
        shutil.rmtree(compiled, ignore_errors=True)

    @contextmanager
    def _step(self, what: str) -> Iterator[Path]:
        """Report that a step runs and how long it took. Yields a folder to work in."""
        self.progress(f"{what} …")
        start = time.monotonic()
        with self.plan.store.work() as work:
            yield work
        self.progress(f"{what}: {time.monotonic() - start:.0f} s")

    def _root(self) -> None:
        if self.plan.root_image in images.tags(self.shell):
            return
        if os.geteuid() != 0:
            raise HarnessError(
                "building the node image needs root: debootstrap makes a Debian root",
                hint="run it once as root, or with internet use HARNESS_IMAGES=registry",
                cause=CAUSE,
            )
        with self._step(f"debian {self.plan.versions.debian}: root from the machine's mirror") as work:
            debian.import_root(self.shell, self.plan.versions.debian, self.plan.root_image, work)

    def _programs(self, go: Go, name: str) -> None:
        target = self.plan.programs(name)
        if target.is_dir():
            return
        module = self.plan.modules[name]
        count = len(module.programs)
        programs = f"{count} binaries" if count > 1 else "1 binary"
        what = f"{name} {module.version}: {programs}" if module.version else f"{name}: {programs}"
        with self._step(what) as work, self.plan.store.making(target) as made:
            go.build(module, work, made)

    def _node(self, go: Go) -> None:
        plan, names = self.plan, [name for name in self.plan.modules if name not in CONTROLLERS]
        with self._step(f"node image {plan.node_image}") as work:
            kind = go.download("sigs.k8s.io/kind", plan.versions.kind, work)
            parts = images.NodeParts(
                kubernetes=plan.versions.kubernetes,
                expected={"etcd": plan.versions.etcd, "coredns": plan.versions.coredns},
                programs={p: plan.programs(name) / p for name in names for p in plan.modules[name].programs},
                kind_files=kind / "images/base/files",
                root=plan.root_image,
            )
            images.build_node(self.shell, parts, plan.node_image, work)

    def _controllers(self, go: Go) -> None:
        for name in CONTROLLERS:
            self._controller(replace(go, shell=self.shell), name)

    def _controller(self, go: Go, name: str) -> None:
        plan, image, manifest = self.plan, self.plan.controller_image(name), self.plan.manifest(name)
        if image in self.missing:
            self._programs(go, name)
            with self._step(f"image {image}") as work:
                images.build_controller(self.shell, plan.programs(name) / name, image, work)
        if str(manifest) in self.missing:
            self._programs(go, "kubernetes")
            with self._step(f"manifest of {name}") as work, plan.store.making(manifest.parent) as made:
                module = plan.modules[name]
                folder = go.download(module.path, module.version, work)
                kubectl = plan.programs("kubernetes") / "kubectl"
                text = self.shell.run([kubectl, "kustomize", folder / "config/default"])
                images_of = {f"{name}-controller-manager": image}
                adapted = manifests.adapt(manifests.parse(text), images_of)
                (made / manifest.name).write_text(manifests.render(adapted))
