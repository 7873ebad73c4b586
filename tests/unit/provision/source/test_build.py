"""The parts of a build that touch neither Docker nor a cluster."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest

from harness.core.errors import HarnessError, ToolError
from harness.provision.source.archive import ProgramImage, write
from harness.provision.source.debian import CLOSE_INHERITED, frozen, mirror, mirrors
from harness.provision.source.shell import Shell

DEB822 = """Types: deb
# a pinned snapshot
URIs: http://mirror.test/debian
Suites: bookworm bookworm-updates
Components: main

Types: deb
URIs: http://mirror.test/debian-security
Suites: bookworm-security
Components: main
"""


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (DEB822, ["http://mirror.test/debian"]),
        (DEB822.replace("Types: deb\n#", "Enabled: no\nTypes: deb\n#"), []),
        (DEB822.replace("Types: deb\n#", "Types: deb-src\n#"), []),
        ("deb [arch=amd64 signed-by=/k.gpg] http://a.test/d bookworm main # own\n", ["http://a.test/d"]),
        ("deb http://a.test/d bookworm contrib\n# deb http://b.test/d bookworm main\n", []),
        ("deb http://tools.test/apt tools-bookworm main\ndeb cdrom:[x]/ bookworm main\n", []),
    ],
)
def test_debian_s_archive_is_told_from_other_sources(text: str, found: list[str]) -> None:
    """Both of apt's formats; neither security, nor sources of others, nor what is switched off."""
    assert mirrors(text) == found


def test_a_machine_without_debian_s_archive_is_told_so(tmp_path: Path) -> None:
    """The error says what was looked for, and names the other way."""
    with pytest.raises(HarnessError, match="HARNESS_IMAGES=registry"):
        mirror(tmp_path)


@pytest.mark.parametrize(
    ("sources", "config", "expected"),
    [
        ("deb http://a.test/d bookworm main\n", "", False),
        ("deb [check-valid-until=no] http://a.test/d bookworm main\n", "", True),
        ("deb [check-valid-until=no] http://b.test/d bookworm main\n", "", False),
        ("deb [check-valid-until=yes] http://a.test/d bookworm main\n", "yes", False),
        ("deb http://a.test/d bookworm main\n", "false", True),
    ],
)
def test_expired_archive_is_accepted_only_where_machine_accepts_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sources: str, config: str, expected: bool
) -> None:
    """Contract: an old Release file is a replay, unless the owner of this machine pinned the mirror."""
    (tmp_path / "apt-config").write_text(f"#!/bin/sh\nprintf %s '{config}'\n")
    (tmp_path / "apt-config").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    (tmp_path / "sources.list").write_text(sources)
    assert frozen("http://a.test/d", Shell(tmp_path / "log"), tmp_path) is expected


def test_mmdebstrap_gets_no_file_of_a_lock(tmp_path: Path) -> None:
    """It numbers its pipes above what it inherits, and the shell that it runs knows no number above 9."""
    files = [os.open(tmp_path, os.O_RDONLY) for _ in range(12)]
    try:
        listed = subprocess.run(
            [*CLOSE_INHERITED, "sh", "-c", "ls /proc/$$/fd"],
            pass_fds=files,
            capture_output=True,
            text=True,
            check=True,
        )
    finally:
        for each in files:
            os.close(each)
    assert listed.stdout.split() == ["0", "1", "2"]


def test_an_archive_is_what_docker_load_reads(tmp_path: Path) -> None:
    """One layer over the root, the digests are the layers' own, the program can be executed."""
    root, program, target = tmp_path / "root.tar", tmp_path / "program", tmp_path / "images.tar"
    with tarfile.open(root, "w") as layer:
        layer.addfile(tarfile.TarInfo("etc/motd"), io.BytesIO())
    program.write_bytes(b"\x7fELF")
    write(
        [ProgramImage("a.test/p:1", program, "/usr/local/bin/p", user="65532:65532", root=root)],
        target,
        "arm64",
    )
    with tarfile.open(target) as archive:

        def content(name: str) -> bytes:
            member = archive.extractfile(name)
            assert member is not None
            return member.read()

        (image,) = json.loads(content("manifest.json"))
        config = json.loads(content(image["Config"]))
        assert config["architecture"] == "arm64"
        assert image["RepoTags"] == ["a.test/p:1"]
        assert config["config"]["Entrypoint"] == ["/usr/local/bin/p"]
        assert config["config"]["User"] == "65532:65532"
        assert [f"sha256:{name.removesuffix('.tar')}" for name in image["Layers"]] == config["rootfs"][
            "diff_ids"
        ]
        layers = [tarfile.open(fileobj=io.BytesIO(content(n))) for n in image["Layers"]]  # noqa: SIM115
        assert layers[0].getnames() == ["etc/motd"]
        assert layers[1].getnames() == ["usr", "usr/local", "usr/local/bin", "usr/local/bin/p"]
        assert layers[1].getmember("usr/local/bin/p").mode == 0o755
    assert sorted(path.name for path in tmp_path.iterdir()) == ["images.tar", "program", "root.tar"]


def test_failed_tool_names_log_and_shows_its_end(tmp_path: Path) -> None:
    """stdout and stderr of this tool alone are in the error, everything is in the log."""
    shell = Shell(tmp_path / "log", cause="controllers.image_failed")
    assert shell.run(["sh", "-c", "echo before; echo noise >&2"]) == "before\n"
    with pytest.raises(ToolError, match="exit code 3") as failed:
        shell.run(["sh", "-c", "echo out; echo err >&2; exit 3"])
    assert failed.value.cause == "controllers.image_failed"
    assert str(tmp_path / "log") in str(failed.value)
    assert sorted(failed.value.output.split()) == ["err", "out"]
    assert "noise" in (tmp_path / "log").read_text()


def test_an_interrupt_takes_the_tool_s_children_along(tmp_path: Path) -> None:
    """Ctrl-C reaches the harness alone; nothing that it started goes on."""
    child = tmp_path / "child"
    code = (
        "import signal, sys; from pathlib import Path; from harness.provision.source.shell import Shell\n"
        "signal.signal(2, signal.default_int_handler)\n"  # a shell's background job ignores it
        f"Shell(Path({str(tmp_path / 'log')!r})).run(['sh', '-c', 'sleep 60 & echo $! > {child}; wait'])"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 20
    while not (child.exists() and child.read_text().strip()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(2)
    assert process.wait(20) != 0
    state = Path(f"/proc/{child.read_text().strip()}/stat")
    deadline = time.monotonic() + 5
    while state.exists() and state.read_text().split()[2] != "Z":
        assert time.monotonic() < deadline, "the child goes on"
        time.sleep(0.02)
    assert os.path.exists(tmp_path / "log")
