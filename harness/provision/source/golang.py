"""Build programs from Go modules, through a single generated Go module in the cache.

The generated module requires all other modules. So every dependency has one version, and shared packages are
compiled once: Kueue and JobSet use the same Kubernetes packages as the API server (docs/decisions/026). A Go
module of the user is never changed.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from harness.core.errors import HarnessError
from harness.provision.source.shell import CAUSE, Shell
from harness.provision.source.store import FILES
from harness.provision.source.versions import Versions

ENVIRONMENT = {
    "CGO_ENABLED": "0",
    "GOFLAGS": "-mod=mod -buildvcs=false",
    "GOGC": "off",  # The compiler then takes a quarter less CPU time for etcd.
    "GOMEMLIMIT": "2GiB",
    "GOOS": "linux",
    "GOTOOLCHAIN": "local",
    "GOWORK": "off",
}
NO_DEBUG_DATA = "-gcflags=all=-dwarf=false"
"""An option that omits debug data, which the linker strips anyway (-s -w).

For etcd, it saved 12 % of the CPU time and 22 % of the cache.
"""
KUBERNETES = [
    "kubeadm",
    "kubelet",
    "kubectl",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kube-proxy",
]


@dataclass(frozen=True)
class Module:
    """A Go module at one version, and the programs to build from it."""

    name: str
    path: str
    version: str
    packages: Mapping[str, str]
    """Maps a program to its import path. If there are several programs, each path must end with its name."""
    main: str = ""
    """A Go file of the harness that is built instead of `packages`."""
    stamps: tuple[str, ...] = ()
    """Variables that the linker sets, as `package.Variable=value`."""
    staging: bool = False
    """Whether the module requires its own submodules at v0.0.0, as Kubernetes does.

    For version v1.N.P, their real version is v0.N.P.
    """
    programs: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "programs", tuple(self.packages) or (self.name,))

    @property
    def mains(self) -> tuple[str, ...]:
        """Return the packages to build with Go in the generated module."""
        return (f"./{self.name}",) if self.main else tuple(self.packages.values())


def modules(versions: Versions) -> dict[str, Module]:
    """Return all modules to build, by name."""
    _, minor, _ = versions.kubernetes.split(".")
    stamp = {
        "gitVersion": versions.kubernetes,  # kubeadm refuses to run without a version
        "gitMajor": "1",
        "gitMinor": minor,
        "gitTreeState": "clean",
        "gitCommit": "unknown",
        "buildDate": "1970-01-01T00:00:00Z",
    }
    stamped = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
    every = [
        Module(
            "kubernetes",
            "k8s.io/kubernetes",
            versions.kubernetes,
            {name: f"k8s.io/kubernetes/cmd/{name}" for name in KUBERNETES},
            stamps=tuple(f"{package}.{name}={value}" for package in stamped for name, value in stamp.items()),
            staging=True,
        ),
        Module("etcd", "go.etcd.io/etcd/server/v3", versions.etcd, {"etcd": "go.etcd.io/etcd/server/v3"}),
        Module("coredns", "github.com/coredns/coredns", versions.coredns, {}, main="coredns.go"),
        Module("pause", "", "", {}, main="pause.go"),
        Module(
            "jobset",
            "sigs.k8s.io/jobset",
            versions.jobset,
            {"jobset": "sigs.k8s.io/jobset"},
            stamps=(f"sigs.k8s.io/jobset/pkg/version.GitVersion={versions.jobset}",),
        ),
        Module(
            "kueue",
            "sigs.k8s.io/kueue",
            versions.kueue,
            {"kueue": "sigs.k8s.io/kueue/cmd/kueue"},
            stamps=(f"sigs.k8s.io/kueue/pkg/version.GitVersion={versions.kueue}",),
        ),
    ]
    return {module.name: module for module in every}


@dataclass(frozen=True)
class Go:
    """The Go toolchain on PATH, with its configured proxy and module cache. `oldest` is the minimum version.

    Compiled packages are cached in `cache` and not in the user's cache, because a full build leaves 7 GB.
    """

    shell: Shell
    oldest: str
    cache: Path
    architecture: str = ""
    """GOARCH. An empty string means this machine's architecture, even if GOARCH is in the environment."""

    @property
    def _environment(self) -> dict[str, str]:
        return {
            **ENVIRONMENT,
            "GOARCH": self.architecture,
            "GOCACHE": str(self.cache.absolute()),
            "GOMAXPROCS": str(max(1, _processors() // 2)),
        }

    def check(self) -> None:
        """Raise HarnessError if the Go on PATH is too old."""
        version = self.shell.run(["go", "env", "GOVERSION"], env=self._environment).strip()
        if _numbers(version) < _numbers(self.oldest):
            raise HarnessError(
                f"Go {self.oldest} or newer was expected, {version} was seen",
                hint="`harness doctor` says how to get it",
                cause=CAUSE,
            )

    def download(self, path: str, version: str, work: Path) -> Path:
        """Download a module, and return its folder in Go's module cache.

        The folder is read-only, and its content was verified with the checksum database.
        """
        (work / "go.mod").write_text(f"module download\n\ngo {self.oldest}\n")
        out = self.shell.run(
            ["go", "mod", "download", "-json", f"{path}@{version}"], cwd=work, env=self._environment
        )
        return Path(json.loads(out)["Dir"])

    def require(self, modules: Iterable[Module], work: Path) -> None:
        """Create the generated Go module, which requires all `modules`, in the empty folder `work`.

        If two modules need different versions of a dependency, Go chooses the newer version for both.
        """
        required: dict[str, str] = {}
        sums: set[str] = set()
        for module in modules:
            if module.main:
                (work / module.name).mkdir()
                shutil.copyfile(FILES / module.main, work / module.name / "main.go")
            if not module.path:
                continue
            folder = self.download(module.path, module.version, work)
            required[module.path] = module.version
            if module.staging:
                required |= dict.fromkeys(self._parts(folder), re.sub(r"^v1\.", "v0.", module.version))
            # A module's go.sum lists every dependency, even those that are in no checksum database.
            sums |= set((folder / "go.sum").read_text().splitlines())
        lines = [f"module build\n\ngo {self.oldest}\n", *(f"require {p} {v}" for p, v in required.items())]
        (work / "go.mod").write_text("\n".join(lines) + "\n")
        (work / "go.sum").write_text("".join(f"{line}\n" for line in sorted(sums)))

    def _parts(self, folder: Path) -> list[str]:
        """Return the paths of a module's own submodules. The module requires them at v0.0.0."""
        listed = self.shell.run(["go", "mod", "edit", "-json", folder / "go.mod"], env=self._environment)
        return [part["Path"] for part in json.loads(listed)["Require"] if part["Version"] == "v0.0.0"]

    def packages(self, modules: Iterable[Module], work: Path) -> int:
        """Return the number of Go packages that the programs of these modules import, including their own.

        Missing modules are downloaded concurrently.
        """
        mains = [main for module in modules for main in module.mains]
        listed = self.shell.run(["go", "list", "-deps", *mains], cwd=work, env=self._environment)
        return len(listed.split())

    def build(
        self, module: Module, work: Path, target: Path, compiled: Callable[[], None] = lambda: None
    ) -> None:
        """Build the programs of a module, and write them to `target`.

        `work` is the folder passed to `require`. `compiled` is called for each package that is compiled.
        """
        linked = " ".join(["-s -w", *(f"-X {stamp}" for stamp in module.stamps)])
        several = len(module.mains) > 1
        output = f"{target}/" if several else str(target / module.programs[0])
        # One compiler per CPU, each limited to half of the CPUs. On 2 CPUs, etcd took 8 % less CPU time.
        command = ["go", "build", "-v", "-p", str(_processors()), NO_DEBUG_DATA, "-ldflags", linked]
        command += ["-o", output, *module.mains]
        self.shell.run(command, cwd=work, env=self._environment, each_line=lambda _line: compiled())


def _processors() -> int:
    return len(os.sched_getaffinity(0))


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:3])
