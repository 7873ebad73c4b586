"""Build a Debian root from the mirror that this machine's own apt uses."""

from __future__ import annotations

import shutil
from pathlib import Path

from harness.core.errors import HarnessError
from harness.provision.doctor import apt
from harness.provision.source.shell import CAUSE, Shell
from harness.provision.source.store import FILES

KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
SUITES = {"bookworm", "trixie", "forky", "sid", "stable", "oldstable", "testing", "unstable"}


def mirror(etc: Path = Path("/etc/apt")) -> str:
    """Return the address of Debian's archive in apt's sources, the machine's own sources first.

    Raises HarnessError when apt knows none, as on a machine that is not Debian.
    """
    folder = etc / "sources.list.d"
    files = [etc / "sources.list", folder / "debian.sources"]
    files += sorted(folder.glob("*.list")) + sorted(folder.glob("*.sources"))
    for path in files:
        if path.is_file():
            found = mirrors(path.read_text())
            if found:
                return found[0]
    raise HarnessError(
        f"no source of Debian packages in {etc}: none of {', '.join(sorted(SUITES))} with component main",
        hint="building the node image needs a Debian mirror; with internet use HARNESS_IMAGES=registry",
        cause=CAUSE,
    )


def mirrors(text: str) -> list[str]:
    """Return addresses of Debian's archive in one file, in either of apt's formats, in their order."""
    return [
        uri
        for source in (*apt.parse_one_line(text), *apt.parse_deb822(text))
        if SUITES & set(source.suites) and "main" in source.components
        for uri in source.uris
        if uri.startswith("http")
    ]


def import_root(shell: Shell, suite: str, tag: str, work: Path) -> None:
    """Import a minimal root of `suite` as Docker image `tag`. Needs root.

    Its apt also knows sid, pinned so that nothing comes from there unless asked for by name.
    """
    address = mirror()
    root = work / "root"
    keyring = [f"--keyring={KEYRING}"] if Path(KEYRING).is_file() else []
    # In a mount namespace of its own: what it mounts goes with it, however it ends.
    private: list[str | Path] = ["unshare", "--mount", "--propagation", "private"]
    bootstrap: list[str | Path] = [
        "debootstrap",
        "--variant=minbase",
        "--include=ca-certificates",
        *keyring,
        suite,
        root,
        address,
    ]
    shell.run([*private, *bootstrap])
    own = root / "etc/apt"
    (own / "sources.list.d/sid.sources").write_text(
        f"Types: deb\nURIs: {address}\nSuites: sid\nComponents: main\nSigned-By: {KEYRING}\n"
    )
    shutil.copyfile(FILES / "sid.pref", own / "preferences.d/sid")
    archive = work / "root.tar"
    used_up = ["--exclude=./var/cache/apt/*.bin", "--exclude=./var/cache/apt/archives/*.deb"]
    shell.run(
        [
            "tar",
            "--numeric-owner",
            *used_up,
            "--exclude=./var/lib/apt/lists/*",
            "-C",
            root,
            "-cf",
            archive,
            ".",
        ]
    )
    shell.run(["docker", "import", "-", tag], stdin=archive)
