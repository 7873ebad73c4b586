"""Build all missing artefacts of the source stack: programs, a Debian root file system, images and manifests.

The Debian steps run concurrently with the Go steps, because they mostly wait for disk and network I/O.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from harness.context import RunContext
from harness.core.concurrency import in_background
from harness.core.errors import HarnessError
from harness.core.locks import locked
from harness.core.progress import Progress
from harness.provision import platforms
from harness.provision.source import debian, images, manifests, versions
from harness.provision.source.golang import Go
from harness.provision.source.plan import CONTROLLERS, Plan
from harness.provision.source.shell import CAUSE, Shell
from harness.provision.source.store import Store

REPORT_SECONDS = 20.0
"""The interval, in seconds, between progress messages while Go compiles."""


@dataclass(frozen=True)
class SourceStack:
    """The results of a source build: tags of local images, and paths of the manifests that refer to these
    images."""

    node_image: str
    kubernetes: str
    jobset_image: str
    kueue_image: str
    jobset_manifest: Path
    kueue_manifest: Path


def build(context: RunContext, on_node_image: Callable[[str], object]) -> SourceStack:
    """Build all of a cluster's images from Go modules and Debian packages, without a registry.

    Existing artefacts are not built again. `on_node_image` is called with the tag of a newly built node
    image, while the controllers are compiled. Only one process builds at a time, and other processes wait.
    Requires root privileges (for mmdebstrap), Docker and Go.

    Raises ToolError or HarnessError (cause cluster.node_image or controllers.image_failed). A ToolError
    contains the path of the log.
    """
    plan = _plan(context)
    logs = plan.store.logs()
    stack = _stack(plan)
    if complete(context):
        return stack
    with locked(
        plan.store.root / "lock", lambda: context.progress("source: waiting for another build to end")
    ):
        shell = Shell(logs / time.strftime("build-%Y%m%d-%H%M%S.log", time.gmtime()))
        plan.store.clear_unfinished()
        missing = _missing(plan, shell)
        if missing:
            _Making(plan, shell, context.progress, missing, on_node_image).everything()
    return stack


def complete(context: RunContext) -> bool:
    """Return whether all artefacts exist. Raises ToolError or HarnessError if Docker does not respond."""
    plan = _plan(context)
    lookup = plan.store.logs() / "lookup.log"
    lookup.unlink(missing_ok=True)
    return not _missing(plan, Shell(lookup))


def _plan(context: RunContext) -> Plan:
    return Plan(Store.of(context.settings), versions.load(context.settings), platforms.target())


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
    """Return the tags of the missing Docker images and the paths of the missing files."""
    present = images.tags(shell)
    controllers = {plan.controller_image(name) for name in CONTROLLERS}
    files = {plan.manifest(name) for name in CONTROLLERS}
    return ({plan.node_image} | controllers) - present | {str(path) for path in files if not path.is_file()}


@dataclass
class _Compiling:
    """Counts compiled Go packages and reports, every REPORT_SECONDS, their number and the estimated remaining
    time."""

    packages: int
    progress: Progress
    compiled: int = 0
    begun: float = field(default_factory=time.monotonic)
    reported: float = field(default_factory=time.monotonic)

    def __call__(self) -> None:
        self.compiled += 1
        now = time.monotonic()
        if now - self.reported < REPORT_SECONDS:
            return
        self.reported = now
        minutes = max(0, self.packages - self.compiled) * (now - self.begun) / self.compiled / 60
        about = f"about {minutes:.0f} min left" if minutes >= 1 else "less than a minute left"
        self.progress(f"Go: {self.compiled} of {self.packages} packages compiled, {about}")


@dataclass(frozen=True)
class _Making:
    plan: Plan
    shell: Shell
    progress: Progress
    missing: set[str]
    on_node_image: Callable[[str], object]

    def everything(self) -> None:
        """Run the build steps whose results are missing."""
        images.remove_leftovers(self.shell)
        store, architecture = self.plan.store, self.plan.platform.architecture
        go = Go(self.shell, self.plan.versions.go, store.go_cache, architecture)
        go.check()
        with self.plan.store.work() as module:
            programs = _Programs(self, go, module)
            if self.plan.node_image in self.missing:
                node_build = replace(
                    self, shell=replace(self.shell, log=self.shell.log.with_suffix(".node.log"))
                )
                with in_background(node_build._root):
                    programs.make(name for name in self.plan.modules if name not in CONTROLLERS)
                with in_background(lambda: node_build._node(replace(go, shell=node_build.shell))):
                    self._controllers(programs)
            else:
                self._controllers(programs)
        self.plan.store.discard(go.cache)

    @contextmanager
    def _step(self, title: str) -> Iterator[Path]:
        """Report the start and the duration of a build step, and yield a temporary folder for the step."""
        self.progress(f"{title} …")
        start = time.monotonic()
        with self.plan.store.work() as work:
            yield work
        self.progress(f"{title}: {time.monotonic() - start:.0f} s")

    def _root(self) -> None:
        if self.plan.root_image in images.tags(self.shell):
            return
        if os.geteuid() != 0:
            raise HarnessError(
                "building the node image needs root privileges, because mmdebstrap creates its Debian "
                "root file system",
                hint="run the command once as root, or set HARNESS_IMAGES=registry if registries can be "
                "reached",
                cause=CAUSE,
            )
        with self._step(
            f"debian {self.plan.versions.debian}: creating the root file system from this machine's mirror"
        ) as work:
            plan = self.plan
            debian.import_root(self.shell, plan.versions.debian, plan.root_image, work, plan.platform)

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
                architecture=plan.platform.architecture,
            )
            images.build_node(self.shell, parts, plan.node_image, work)
        self.on_node_image(plan.node_image)

    def _controllers(self, programs: _Programs) -> None:
        shell = replace(self.shell, cause="controllers.image_failed")
        for name in CONTROLLERS:
            image, manifest = self.plan.controller_image(name), self.plan.manifest(name)
            if image in self.missing:
                programs.make([name], shell)
                with self._step(f"image {image}") as work:
                    program, architecture = self.plan.programs(name) / name, self.plan.platform.architecture
                    images.build_controller(shell, program, image, work, architecture)
            if str(manifest) in self.missing:
                programs.make(["kubernetes"])
                self._manifest(replace(programs.go, shell=shell), name, image, manifest)

    def _manifest(self, go: Go, name: str, image: str, manifest: Path) -> None:
        module, kubectl = self.plan.modules[name], self.plan.programs("kubernetes") / "kubectl"
        with self._step(f"manifest of {name}") as work, self.plan.store.making(manifest.parent) as target:
            folder = go.download(module.path, module.version, work)
            text = go.shell.run([kubectl, "kustomize", folder / "config/default"])
            adapted = manifests.adapt(manifests.parse(text), {f"{name}-controller-manager": image})
            (target / manifest.name).write_text(manifests.render(adapted))


@dataclass
class _Programs:
    """The Go programs in a build plan, which are compiled when they are needed.

    `module` is an empty folder for the generated Go module.
    """

    making: _Making
    go: Go
    module: Path
    compiling: _Compiling | None = None

    def make(self, names: Iterable[str], shell: Shell | None = None) -> None:
        """Build the missing programs of the modules in `names`.

        The programs run in `shell` if it is given, so that errors have the shell's cause.
        """
        plan = self.making.plan
        missing = [plan.modules[name] for name in names if not plan.programs(name).is_dir()]
        for module in missing:
            compiled = self._prepared()
            count = len(module.programs)
            programs = f"{count} binaries" if count > 1 else "1 binary"
            title = f"{module.name} {module.version}".rstrip() + f": {programs}"
            with self.making._step(title), plan.store.making(plan.programs(module.name)) as folder:
                replace(self.go, shell=shell or self.go.shell).build(module, self.module, folder, compiled)

    def _prepared(self) -> _Compiling:
        """On the first call, download all modules.

        Return the progress reporter that counts the packages of the missing programs.
        """
        if self.compiling is None:
            plan = self.making.plan
            with self.making._step("Go modules: downloading"):
                self.go.require(plan.modules.values(), self.module)
                remaining = [each for each in plan.modules.values() if not plan.programs(each.name).is_dir()]
                self.compiling = _Compiling(self.go.packages(remaining, self.module), self.making.progress)
        return self.compiling
