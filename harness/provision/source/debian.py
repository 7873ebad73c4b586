"""Build a Debian root file system from the mirror that this machine's own apt uses."""

from __future__ import annotations

from pathlib import Path

from harness.core.errors import HarnessError
from harness.provision.doctor import apt
from harness.provision.source.shell import CAUSE, Shell
from harness.provision.source.store import FILES

KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
_APT = (
    'Acquire::Check-Valid-Until "false"',  # the Release files of a pinned mirror have expired
    'Acquire::Languages "none"',
)
_DPKG = (
    "force-unsafe-io",  # an incomplete image is discarded, so syncing files to disk has no use
    *(f"path-exclude=/usr/share/{folder}/*" for folder in ("doc", "man", "locale", "info", "lintian")),
)
_CLOSED = 'for fd in /proc/$$/fd/*; do fd=${fd##*/}; [ $fd -le 2 ] || eval "exec $fd>&-"; done; exec "$@"'
ALONE = ("bash", "-c", _CLOSED, "bash")
"""A command prefix that closes the inherited descriptors of lock files.

Otherwise mmdebstrap's pipes would get descriptor numbers above 9, which dash, its shell, does not support.
"""
SUITES = {"bookworm", "trixie", "forky", "sid", "stable", "oldstable", "testing", "unstable"}


def mirror(etc: Path = Path("/etc/apt")) -> str:
    """Return the first URL of Debian's archive in apt's sources. The machine's original sources come first.

    Raises HarnessError if there is none, as on a machine that does not run Debian.
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
        f"no source of Debian packages in {etc}: none of {', '.join(sorted(SUITES))} with component main",
        hint="building the node image needs a Debian mirror; with internet use HARNESS_IMAGES=registry",
        cause=CAUSE,
    )


def mirrors(text: str) -> list[str]:
    """Return the URLs of Debian's archive in the text of an apt source file (.list or .sources), in order."""
    return [
        uri
        for source in (*apt.parse_one_line(text), *apt.parse_deb822(text))
        if SUITES & set(source.suites) and "main" in source.components
        for uri in source.uris
        if uri.startswith("http")
    ]


def import_root(shell: Shell, suite: str, tag: str, work: Path) -> None:
    """Import a minimal root file system of `suite` as Docker image `tag`. Requires root privileges.

    The image's apt also has sid as a source, pinned so that a package comes from sid only if it is requested
    by name. dpkg's excluded paths and unsafe I/O also apply to packages that are installed in the image
    later.
    """
    address = mirror()
    sources, archive = work / "sid.sources", work / "root.tar"
    sources.write_text(f"Types: deb\nURIs: {address}\nSuites: sid\nComponents: main\nSigned-By: {KEYRING}\n")
    keyring = [f"--keyring={KEYRING}"] if Path(KEYRING).is_file() else []
    shell.run(
        [
            *ALONE,
            "mmdebstrap",
            "--mode=root",
            "--variant=minbase",
            "--include=ca-certificates",
            *keyring,
            *(f"--aptopt={option}" for option in _APT),
            *(f"--dpkgopt={option}" for option in _DPKG),
            f"--customize-hook=upload {sources} /etc/apt/sources.list.d/sid.sources",
            f"--customize-hook=upload {FILES / 'sid.pref'} /etc/apt/preferences.d/sid",
            suite,
            archive,
            f"deb {address} {suite} main",
        ]
    )
    shell.run(["docker", "import", "-", tag], stdin=archive)
