"""Derive the names of all build results from the versions file and the harness's files, without building
anything."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from harness.provision.platforms import Platform
from harness.provision.source import archive, debian, golang, images, manifests
from harness.provision.source.golang import Module
from harness.provision.source.store import Store, code_input, file_input, key
from harness.provision.source.versions import Versions

CONTROLLERS = ("jobset", "kueue")


@dataclass(frozen=True)
class Plan:
    """The paths and image tags of all build results.

    The cache key of a build step includes the keys of all steps whose results it uses.
    """

    store: Store
    versions: Versions
    platform: Platform

    @property
    def modules(self) -> dict[str, Module]:
        return golang.modules(self.versions)

    def programs(self, name: str) -> Path:
        """Return the folder that contains a Go module's compiled programs."""
        module = self.modules[name]
        return self.store.path(name, module.version, self._go_key())

    @property
    def root_image(self) -> str:
        return f"harness/debian:{self.versions.debian}-{self._root_key()}"

    @property
    def node_image(self) -> str:
        inputs = [
            self._root_key(),
            self.versions.kind,
            code_input(images.__file__),
            code_input(archive.__file__),
        ]
        inputs += [self._go_key()]
        inputs += [file_input(name) for name in ["node.Dockerfile", *images.NODE_FILES]]
        return f"harness/node:{self.versions.kubernetes}-{key('node', *inputs)}"

    def controller_image(self, name: str) -> str:
        inputs = [name, self._go_key(), code_input(images.__file__), code_input(archive.__file__)]
        return f"harness/{name}:{self.modules[name].version}-{key('image', *inputs)}"

    def manifest(self, name: str) -> Path:
        inputs = [self.controller_image(name), self._go_key(), code_input(manifests.__file__)]
        folder = self.store.path(f"{name}-manifest", self.modules[name].version, key("manifest", *inputs))
        return folder / f"{name}.yaml"

    def _root_key(self) -> str:
        inputs = [self.platform.docker, self.versions.debian]
        return key("root", *inputs, file_input("sid.pref"), code_input(debian.__file__))

    def _go_key(self) -> str:
        """Return the cache key of all compiled programs.

        They share one key, because a single Go module requires all modules.
        """
        modules = self.modules.values()
        mains = [file_input(module.main) for module in modules if module.main]
        inputs = [*map(repr, modules), *mains, self.versions.go, code_input(golang.__file__)]
        return key("go", self.platform.docker, *inputs)
