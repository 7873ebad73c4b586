"""All programs come from one Go module, with one version of whatever they share."""

from __future__ import annotations

import json
import subprocess
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from harness.provision.source.golang import Go, Module
from harness.provision.source.shell import Shell

GO = "1.21"


def publish(proxy: Path, path: str, version: str, files: dict[str, str]) -> None:
    """Put a module into a folder that Go takes for a module proxy."""
    folder = proxy / path / "@v"
    folder.mkdir(parents=True, exist_ok=True)
    files = {"go.sum": "", **files}
    (folder / f"{version}.info").write_text(json.dumps({"Version": version}))
    (folder / f"{version}.mod").write_text(files["go.mod"])
    with zipfile.ZipFile(folder / f"{version}.zip", "w") as archive:
        for name, text in files.items():
            archive.writestr(f"{path}@{version}/{name}", text)


@pytest.fixture
def go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Go]:
    """Return the machine's Go, with a proxy that has two programs and two versions of what they share."""
    proxy = tmp_path / "proxy"
    for version in ("v1.0.0", "v1.1.0"):
        text = f'package shared\n\nconst Version = "{version}"\n'
        publish(
            proxy, "a.test/shared", version, {"go.mod": f"module a.test/shared\n\ngo {GO}\n", "s.go": text}
        )
    for name, wanted in (("old", "v1.0.0"), ("new", "v1.1.0")):
        mod = f"module a.test/{name}\n\ngo {GO}\n\nrequire a.test/shared {wanted}\n"
        main = 'package main\n\nimport "a.test/shared"\n\nfunc main() { print(shared.Version) }\n'
        publish(proxy, f"a.test/{name}", "v1.0.0", {"go.mod": mod, "main.go": main})
    monkeypatch.setenv("GOPROXY", proxy.as_uri())
    monkeypatch.setenv("GONOSUMDB", "*")
    monkeypatch.setenv("GOMODCACHE", str(tmp_path / "modules"))
    yield Go(Shell(tmp_path / "log"), GO, tmp_path / "cache")
    subprocess.run(["chmod", "-R", "u+w", tmp_path / "modules"], check=False)  # pytest is to remove them


def test_shared_module_has_one_version_compiled_once(go: Go, tmp_path: Path) -> None:
    """The newer one, as Go chooses. The second program compiles itself alone."""
    modules = [Module(name, f"a.test/{name}", "v1.0.0", {name: f"a.test/{name}"}) for name in ("old", "new")]
    work, made = tmp_path / "work", tmp_path / "made"
    work.mkdir()
    made.mkdir()
    go.require(modules, work)
    counts = []
    for module in modules:
        compiled: list[None] = []
        go.build(module, work, made, lambda compiled=compiled: compiled.append(None))  # type: ignore[misc]
        counts.append(len(compiled))
    versions = [
        subprocess.run([made / m.name], capture_output=True, text=True, check=True).stderr for m in modules
    ]
    assert versions == ["v1.1.0", "v1.1.0"]
    assert counts[1] == 1
    assert go.packages(modules, work) == sum(counts)


def test_a_main_of_ours_is_built_in_place(go: Go, tmp_path: Path) -> None:
    """pause.go belongs to no module."""
    module = Module("pause", "", "", {}, main="pause.go")
    work = tmp_path / "work"
    work.mkdir()
    go.require([module], work)
    assert module.mains == ("./pause",)
    assert (work / "pause/main.go").is_file()


@pytest.mark.parametrize("wanted", ["amd64", "arm64", ""])
def test_a_program_is_for_the_platform_of_its_image(
    go: Go, monkeypatch: pytest.MonkeyPatch, wanted: str
) -> None:
    """Contract: GOARCH of the environment has no say, or the cache would mix platforms up."""
    monkeypatch.setenv("GOARCH", "riscv64")
    made_for = replace(go, architecture=wanted)
    architectures = go.shell.run(["go", "env", "GOARCH", "GOHOSTARCH"], env=made_for._environment).split()
    assert architectures[0] == (wanted or architectures[1])
