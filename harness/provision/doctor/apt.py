"""Make newer packages available on older Debian releases: read apt's sources, and add the harness's own.

Debian 12's dockerd cannot run privileged containers on machines where some Linux capabilities are
unavailable, and only sid has kind 0.33. Therefore trixie and sid are added with pin priorities below 100.
With these priorities, apt installs a package from them only if the release is requested by name, and never
upgrades a package from them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from harness.core.errors import HarnessError

NAME = "pluto-e2e-harness"
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
"""The Debian archive keyring, from the package debian-archive-keyring."""
COPIED = ("Signed-By", "Architectures", "Languages", "Targets", "Check-Valid-Until")
"""The options of an existing apt source that are copied to the sources that the harness adds on the same
mirror.

Trusted, Allow-Insecure, Allow-Weak and similar options are not copied, because the machine's owner accepted
these risks for the suites of one source, not for sid. Check-Valid-Until is copied, because a mirror that is
frozen is frozen for every suite.
"""
NO = {"no", "false", "without", "off", "disable", "0"}
"""The values that apt reads as false."""
PINS = {"trixie": 50, "sid": 40}
ALIASES = {"sid": {"sid", "unstable"}}

# The first Debian release with a suitable version of each package. On older releases, the package is
# installed from that release.
_NEWER = dict.fromkeys(["docker.io", "containerd", "docker-cli", "docker-buildx"], "trixie") | dict.fromkeys(
    ["kind", "kubectl", "golang-1.26-go", "golang-1.26-src"], "sid"
)
_RELEASES = ["bookworm", "trixie", "forky", "sid"]


@dataclass(frozen=True)
class Source:
    """An apt source. `options` maps deb822 fields to their values, including continuation lines."""

    uris: tuple[str, ...]
    suites: tuple[str, ...]
    components: tuple[str, ...]
    options: dict[str, str] = field(default_factory=dict)

    @property
    def is_archive(self) -> bool:
        """Return whether this source is Debian's archive, and not another repository that uses Debian's suite
        names."""
        signed = self.options.get("Signed-By", "")
        return "main" in self.components and (not signed or "debian-archive" in signed or "\n" in signed)


def parse_deb822(text: str) -> list[Source]:
    """Return the enabled binary package sources in the text of a .sources file."""
    # Imported here, because the import takes 30 ms and launches do not need it.
    from debian.deb822 import Deb822

    sources = []
    for stanza in Deb822.iter_paragraphs(text.splitlines(keepends=True), use_apt_pkg=False):
        fields = {str(name).title(): str(value) for name, value in stanza.items()}
        disabled = fields.pop("Enabled", "yes").lower() in {"no", "false"}
        if "deb" in fields.pop("Types", "").split() and not disabled:
            uris, suites, components = (
                tuple(fields.pop(key, "").split()) for key in ("Uris", "Suites", "Components")
            )
            sources.append(Source(uris, suites, components, fields))
    return sources


def parse_one_line(text: str) -> list[Source]:
    """Return the binary package sources in the text of a .list file.

    The line of such a source has the form `deb [option=value …] uri suite component …`.
    """
    sources = []
    for line in text.splitlines():
        match = re.match(r"\s*deb\s+(?:\[([^\]]*)\]\s*)?(\S+)\s+(\S+)([^#]*)", line)
        if match:
            options = {}
            for option in (match[1] or "").split():
                key, _, value = option.partition("=")
                key = {"arch": "architectures", "lang": "languages", "target": "targets"}.get(key, key)
                options[key.title()] = value.replace(",", " ")
            sources.append(Source((match[2],), (match[3],), tuple(match[4].split()), options))
    return sources


def read_sources(root: Path = Path("/")) -> list[Source]:
    """Return all apt sources of the system whose root directory is `root`, in apt's order."""
    apt = root / "etc/apt"
    sources = parse_one_line(text_of(apt / "sources.list"))
    for path in sorted((apt / "sources.list.d").glob("*")):
        if path.suffix == ".list":
            sources += parse_one_line(text_of(path))
        elif path.suffix == ".sources":
            sources += parse_deb822(text_of(path))
    return sources


def text_of(path: Path) -> str:
    """Return the text of a file, or "" if it does not exist."""
    return path.read_text(errors="replace") if path.is_file() else ""


def fields_of(os_release: str) -> dict[str, str]:
    """Return the fields in the text of /etc/os-release, without quotes around their values."""
    lines = (line.partition("=") for line in os_release.splitlines() if "=" in line)
    return {name.strip(): value.strip().strip("\"'") for name, _, value in lines}


def codename(os_release: str) -> str | None:
    """Return Debian's codename from the text of /etc/os-release, or None on another system."""
    fields = fields_of(os_release)
    return fields.get("VERSION_CODENAME", "sid") if fields.get("ID") == "debian" else None


def specs(packages: Iterable[str], release: str) -> list[str]:
    """Return the packages as apt-get arguments for a Debian release, such as `docker.io/trixie` on bookworm,
    but `docker.io` on trixie."""
    if release not in _RELEASES:
        raise HarnessError(
            f"the harness cannot install programs on Debian {release}: expected bookworm or a newer known "
            "release",
            hint="install Docker 23 or later with buildx, and kind 0.33 or later, then run `harness doctor`",
        )
    age = _RELEASES.index(release)
    newer = {name: suite for name, suite in _NEWER.items() if _RELEASES.index(suite) > age}
    return [f"{name}/{newer[name]}" if name in newer else name for name in packages]


def missing_suites(package_specs: Sequence[str], sources: Iterable[Source]) -> list[str]:
    """Return the suites that the package specs need but that no enabled source of Debian's archive
    provides."""
    suites = dict.fromkeys(spec.partition("/")[2] for spec in package_specs if "/" in spec)
    available = {suite for source in sources if source.is_archive for suite in source.suites}
    return [suite for suite in suites if not ALIASES.get(suite, {suite}) & available]


def our_source(suites: Sequence[str], sources: Iterable[Source], release: str, root: Path = Path("/")) -> str:
    """Return the text of a .sources file for `suites`, with the mirror and keyring used for `release`.

    apt always verifies the signatures of these suites, even if the source of `release` is marked as trusted.
    """
    base = next((s for s in sources if s.is_archive and release in s.suites), None)
    if base is None:
        raise HarnessError(
            f"/etc/apt/sources.list and sources.list.d contain no source for Debian {release}'s main archive",
            hint="add such a source, run `apt-get update`, then run `harness doctor --fix` again",
        )
    fields = {"Types": "deb", "URIs": " ".join(base.uris), "Suites": " ".join(suites), "Components": "main"}
    options = {name: value for name, value in base.options.items() if name in COPIED}
    if "Trusted" in base.options and (root / KEYRING.lstrip("/")).is_file():
        options.setdefault("Signed-By", KEYRING)
    fields |= options
    return "".join(f"{name}: {value}\n" for name, value in fields.items())


def our_pins(suites: Sequence[str]) -> str:
    return "\n".join(f"Package: *\nPin: release n={suite}\nPin-Priority: {PINS[suite]}\n" for suite in suites)


def write_sources(suites: Sequence[str], release: str, root: Path = Path("/")) -> list[Path]:
    """Add `suites` to apt's sources, in files with the harness's own names. Return the file paths.

    The file with the pins is written first, so that apt never sees the sources without pins.
    """
    source = root / f"etc/apt/sources.list.d/{NAME}.sources"
    pins = root / f"etc/apt/preferences.d/{NAME}"
    existing_suites = [s for parsed in parse_deb822(text_of(source)) for s in parsed.suites]
    suites = [*existing_suites, *(suite for suite in suites if suite not in existing_suites)]
    files = {pins: our_pins(suites), source: our_source(suites, read_sources(root), release, root)}
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return list(files)
