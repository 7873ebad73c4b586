"""Build this project's images, each tagged with a hash of its inputs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path

from harness.context import RunContext
from harness.core.errors import HarnessError
from harness.provision.images import scripts, versions
from harness.provision.images.containerd_import import LocalImage
from harness.provision.images.debian import Bases
from harness.provision.images.docker_images import CAUSE, files_of, image_id, making
from harness.provision.images.locked_packages import lock_key, packages, pinned
from harness.provision.images.stack import Stack
from harness.provision.platforms import Platform, target
from harness.provision.source.shell import build_command
from harness.provision.source.store import key

PACKAGE = Path(str(resources.files("harness")))
"""The directory of the installed `harness` package, which contains the Dockerfiles and lock files."""
ROOT = PACKAGE.parent
"""The folder that contains harness/: the checkout or site-packages. It is the build context for images."""
FILES = PACKAGE / "provision" / "images" / "files"
LOCKS = PACKAGE / "locks"


@dataclass(frozen=True)
class ImageRef:
    """A reference to a local Docker image: its tag, and its id as `sha256:…`."""

    tag: str
    image_id: str
    changed: Mapping[str, bytes] = field(default_factory=dict)
    """Scripts to mount over those in the image, keyed by path in /workspace."""
    components: Mapping[str, str] = field(default_factory=dict)
    """The version of each component in the image, for the evidence. Empty if the image was not built on this
    machine.
    """
    scripts: Mapping[str, str] = field(default_factory=dict)
    """The SHA-256 of each script that the ranks use, including `changed`.

    Empty if the image was not built on this machine.
    """

    @property
    def local(self) -> LocalImage:
        """Return the image as a LocalImage, which can be loaded into nodes."""
        return LocalImage(self.tag, self.image_id)


@dataclass(frozen=True)
class Recipe:
    """The inputs of an image build.

    `parts` are the files and folders in ROOT that the image's Dockerfile copies.
    """

    repository: str
    dockerfile: Path
    lock: Path
    parts: tuple[Path, ...]
    uses: tuple[Path, ...] = ()
    """Files in ROOT that the Dockerfile mounts during the build without copying them."""

    def tag(self, arguments: Mapping[str, str], python: str, platform: Platform) -> str:
        """Return `repository:<12 hex digits>`.

        The digits are a hash of the files, the arguments and the platform.
        """
        inputs = self._making(arguments, python, platform)
        for path in _files(self.parts):
            inputs += [str(path.relative_to(ROOT)), path.read_bytes().hex()]
        return f"{self.repository}:{key(*inputs)}"

    def making(self, arguments: Mapping[str, str], python: str, platform: Platform) -> str:
        """Return a hash of all inputs except the scripts.

        Images that differ only in scripts have the same hash.
        """
        return key(*self._making(arguments, python, platform))

    def _making(self, arguments: Mapping[str, str], python: str, platform: Platform) -> list[str]:
        inputs = [platform.docker, self.dockerfile.read_text(), lock_key(self.lock.read_text(), python)]
        inputs += [path.read_text() for path in self.uses]
        return inputs + [f"{name}={value}" for name, value in sorted(arguments.items())]


SCRIPTS = PACKAGE / "workers"
WORKER = Recipe(
    "pluto-multinode-test",
    FILES / "worker.Dockerfile",
    LOCKS / "worker.txt",
    (SCRIPTS,),
    (FILES / "install_torch.sh", LOCKS / "torch.txt"),
)
TRACKER = Recipe(
    "harness/tracker",
    FILES / "tracker.Dockerfile",
    LOCKS / "tracker.txt",
    tuple(
        PACKAGE / name
        for name in (
            "__init__.py",
            "core/__init__.py",
            "core/secret_rules.py",
            "core/terminal_row.py",
            "core/terminal_text.py",
            "tracker",
        )
    ),
)
CONTROLLER = Recipe(
    "harness/torchrun-controller",
    FILES / "controller.Dockerfile",
    LOCKS / "controller.txt",
    (
        *(PACKAGE / name for name in ("__init__.py", "core", "torchrun_sync", "torchrun_controller")),
        PACKAGE / "evidence/__init__.py",
        *(PACKAGE / f"evidence/kubernetes/{name}.py" for name in ("__init__", "objects", "unschedulable")),
        *(SCRIPTS / f"own_processes.{kind}" for kind in ("py", "sh")),
    ),
)


def build_worker(bases: Stack | Bases, context: RunContext, exact: bool = False) -> ImageRef:
    """Return the ranks' image: PyTorch, the Pluto client, and harness/workers/ in /workspace.

    Unless `exact` is true, an existing image that differs only in its scripts is used, and the changed
    scripts are mounted over it. Raises ToolError (cause image.build_failed) with the path of the log.
    """
    worker, platform = versions.load(context.settings).worker, target()
    arguments = {"BASE": bases.torch_base, "TORCH": worker.torch}
    arguments["TORCH_SHA256"] = worker.torch_sha256.get(platform.architecture, "")
    components = {"worker_base": bases.torch_base, "pluto": pinned(WORKER.lock.read_text(), "pluto-ml")}
    making, files = WORKER.making(arguments, worker.python, platform), scripts.read(SCRIPTS)
    tag = WORKER.tag(arguments, worker.python, platform)
    built_id = image_id(tag)
    if built_id is None and not exact:
        near_image = scripts.near(WORKER.repository, making, files)
        if near_image is not None:
            context.progress(
                f"{near_image.tag}: reusing this image, with changed scripts mounted over its own: "
                f"{', '.join(near_image.changed)}"
            )
            return ImageRef(
                near_image.tag, near_image.image_id, near_image.changed, components, scripts.digests(files)
            )
    if built_id is None:
        built_id = _build(WORKER, arguments, worker.python, context, scripts.labels(making, files)).image_id
    return ImageRef(tag, built_id, components=components, scripts=scripts.digests(files))


def build_tracker(bases: Stack | Bases, context: RunContext) -> ImageRef:
    """Return the embedded tracker's image. Raises the same errors as `build_worker`."""
    python = versions.load(context.settings).worker.python
    return _build(TRACKER, {"BASE": bases.python_base}, python, context)


def build_controller(bases: Stack | Bases, context: RunContext) -> ImageRef:
    """Return the torchrun controller's image. Raises the same errors as `build_worker`."""
    python = versions.load(context.settings).worker.python
    return _build(CONTROLLER, {"BASE": bases.python_base}, python, context)


def _build(
    recipe: Recipe,
    arguments: Mapping[str, str],
    python: str,
    context: RunContext,
    labels: Mapping[str, str] = {},
) -> ImageRef:
    platform = target()
    tag = recipe.tag(arguments, python, platform)
    existing_id = image_id(tag)
    if existing_id is not None:
        return ImageRef(tag, existing_id)
    folder = packages(recipe.lock, python, platform, context)
    return ImageRef(tag, built(tag, recipe.dockerfile, arguments, folder, context, labels))


def built(
    tag: str,
    dockerfile: Path,
    arguments: Mapping[str, str],
    folder: Path,
    context: RunContext,
    labels: Mapping[str, str] = {},
) -> str:
    """Build an image based on `arguments["BASE"]` with the packages in `folder`, and return its id.

    Raises ToolError (cause image.build_failed) with the path of the log.
    """
    with making(tag, context) as shell:
        if shell is not None:
            context.progress(f"{tag}: building on {arguments['BASE']}")
            words = [word for name, value in arguments.items() for word in ("--build-arg", f"{name}={value}")]
            words += [word for name, value in labels.items() for word in ("--label", f"{name}={value}")]
            words += ["--build-arg", f"IMAGE={tag}", "--build-context", f"packages={folder}"]
            # In a checkout, the Dockerfile in this folder is a symbolic link. Docker expects .dockerignore
            # next to its target.
            shell.run([*build_command(), *words, "-f", dockerfile.resolve(), "-t", tag, ROOT])
    built_id = image_id(tag)
    if built_id is None:
        raise HarnessError(
            f"{tag} was built, but Docker no longer has this image",
            hint="try again: another process may have removed the image",
            cause=CAUSE,
        )
    return built_id


def _files(parts: Iterable[Path]) -> list[Path]:
    return [path for part in parts for path in (files_of(part) if part.is_dir() else [part])]
