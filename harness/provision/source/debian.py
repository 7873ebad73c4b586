"""Build a Debian root file system from the mirror that this machine's apt uses."""

from __future__ import annotations

import shutil
from pathlib import Path

from harness.core.errors import HarnessError
from harness.provision.doctor import apt
from harness.provision.platforms import Platform
from harness.provision.source.shell import CAUSE, Shell
from harness.provision.source.store import FILES

_APT = ('Acquire::Languages "none"',)
_DPKG = (
    "force-unsafe-io",  # dpkg need not call fsync, because an incomplete image is discarded.
    *(f"path-exclude=/usr/share/{folder}/*" for folder in ("doc", "man", "locale", "info", "lintian")),
)
_CLOSED = 'for fd in /proc/$$/fd/*; do fd=${fd##*/}; [ $fd -le 2 ] || eval "exec $fd>&-"; done; exec "$@"'
CLOSE_INHERITED = ("bash", "-c", _CLOSED, "bash")
"""A command prefix that closes inherited file descriptors of locks. Otherwise, mmdebstrap's pipes would get
descriptor numbers above 9. mmdebstrap runs dash, a shell that does not support such numbers.
"""
SUITES = {"bookworm", "trixie", "forky", "sid", "stable", "oldstable", "testing", "unstable"}


def mirror(etc: Path = Path("/etc/apt")) -> str:
    """Return the first URL of Debian's archive in apt's sources.

    sources.list and debian.sources are read before all other files. Raises HarnessError if there is no such
    URL, for example because the machine does not run Debian.
    """
    folder = etc / "sources.list.d"
    files = [etc / "sources.list", folder / "debian.sources"]
    files += sorted(folder.glob("*.list")) + sorted(folder.glob("*.sources"))
    for path in files:
        if path.is_file():
            urls = mirrors(path.read_text())
            if urls:
                return urls[0]
    raise HarnessError(
        f"{etc} has no Debian package source for {', '.join(sorted(SUITES))} with the component main",
        hint="add a Debian mirror, which building the node image needs; or, with internet access, set "
        "HARNESS_IMAGES=registry",
        cause=CAUSE,
    )


def mirrors(text: str) -> list[str]:
    """Return the URLs of Debian's archive in an apt source file (.list or .sources), in file order."""
    return [uri for source in _archives(text) for uri in source.uris if uri.startswith("http")]


def _archives(text: str) -> list[apt.Source]:
    sources = (*apt.parse_one_line(text), *apt.parse_deb822(text))
    return [source for source in sources if SUITES & set(source.suites) and "main" in source.components]


def frozen(address: str, shell: Shell, etc: Path = Path("/etc/apt")) -> bool:
    """Return whether this machine's own apt accepts expired Release files from the mirror at `address`.

    On a mirror that is frozen at a point in time, Release files expire. On any other mirror, an expired file
    might mean that an old archive is being replayed.
    """
    for path in sorted([etc / "sources.list", *(etc / "sources.list.d").glob("*")]):
        for source in _archives(apt.text_of(path)) if path.suffix in {".list", ".sources"} else ():
            if address in source.uris and source.options.get("Check-Valid-Until", "").lower() in apt.NO:
                return True
    if shutil.which("apt-config") is None:
        return False
    return shell.run(["apt-config", "dump", "--format", "%v", "Acquire::Check-Valid-Until"]).lower() in apt.NO


def import_root(shell: Shell, suite: str, tag: str, work: Path, platform: Platform) -> None:
    """Import a minimal root file system of `suite` as Docker image `tag`. Requires root privileges.

    The image's apt also has sid as a source, pinned so that a package comes from sid only if it is requested
    by name. Both sources are verified with the Debian archive keyring if this machine has it. Expired Release
    files are accepted only if this machine's own apt accepts them. The dpkg options (excluded paths and
    unsafe I/O) also apply to packages that are installed in the image later.
    """
    address = mirror()
    sources, archive = work / "sid.sources", work / "root.tar"
    expired, options = frozen(address, shell), "[check-valid-until=no] "
    text = f"Types: deb\nURIs: {address}\nSuites: sid\nComponents: main\nSigned-By: {apt.KEYRING}\n"
    sources.write_text(f"{text}Check-Valid-Until: no\n" if expired else text)
    keyring = [f"--keyring={apt.KEYRING}"] if Path(apt.KEYRING).is_file() else []
    shell.run(
        [
            *CLOSE_INHERITED,
            "mmdebstrap",
            "--mode=root",
            "--variant=minbase",
            f"--architectures={platform.architecture}",
            "--include=ca-certificates",
            *keyring,
            *(f"--aptopt={option}" for option in _APT),
            *(f"--dpkgopt={option}" for option in _DPKG),
            f"--customize-hook=upload {sources} /etc/apt/sources.list.d/sid.sources",
            f"--customize-hook=upload {FILES / 'sid.pref'} /etc/apt/preferences.d/sid",
            suite,
            archive,
            f"deb {options if expired else ''}{address} {suite} main",
        ]
    )
    shell.run(["docker", "import", "--platform", platform.docker, "-", tag], stdin=archive)
