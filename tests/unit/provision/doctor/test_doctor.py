"""harness.provision.doctor: what it reads off a machine, what it would write there, and how it says so."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from harness.core.errors import HarnessError
from harness.provision.doctor import apt, check_results, checks, probe, repair
from harness.provision.doctor.check_results import Check, at_least, version_of
from harness.settings import Settings

MIRROR = "http://mirror.example/debian"
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"

DEB822 = f"""\
# a comment
Types: deb deb-src
URIs: {MIRROR}
Suites: bookworm bookworm-updates
Components: main contrib
Signed-By: {KEYRING}
Check-Valid-Until: no

Types: deb
URIs: http://other.example
Suites: trixie
Components: main
Signed-By: /usr/share/keyrings/other.gpg

Enabled: no
Types: deb
URIs: {MIRROR}
Suites: sid
Components: main
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A Debian 12's /etc/apt below a folder of the test."""
    (tmp_path / "etc/apt/sources.list.d").mkdir(parents=True)
    (tmp_path / "etc/apt/sources.list.d/debian.sources").write_text(DEB822)
    return tmp_path


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(cache_dir=tmp_path / "cache", state_dir=tmp_path / "state")


class TestVersions:
    @pytest.mark.parametrize(
        ("text", "version"),
        [
            ("kind v0.33.0 go1.27.2 linux/amd64", (0, 33, 0)),
            ("Docker version 20.10.24+dfsg1, build 297e128", (20, 10, 24)),
            ("go version go1.26 linux/amd64", (1, 26)),
            ("no number", None),
        ],
    )
    def test_are_read_from_what_tools_print(self, text: str, version: tuple[int, ...] | None) -> None:
        assert version_of(text) == version

    @pytest.mark.parametrize(
        ("seen", "wanted", "holds"),
        [
            ((0, 33, 0), (0, 33), True),
            ((0, 4, 9), (0, 33), False),
            ((1, 0), (0, 33), True),
            ((26,), (23, 0), True),
            ((23,), (23, 1), False),
            (None, (0, 1), False),
        ],
    )
    def test_are_compared_by_number_not_by_text(
        self, seen: tuple[int, ...] | None, wanted: tuple[int, ...], holds: bool
    ) -> None:
        assert at_least(seen, wanted) is holds


class TestSources:
    def test_deb822_keeps_options_and_leaves_out_what_is_off(self) -> None:
        debian, other = apt.parse_deb822(DEB822)
        assert debian.suites == ("bookworm", "bookworm-updates")
        assert debian.options == {"Signed-By": KEYRING, "Check-Valid-Until": "no"}
        assert debian.is_archive
        assert not other.is_archive

    def test_deb822_keeps_a_key_written_into_the_file(self) -> None:
        key = "\n -----BEGIN PGP PUBLIC KEY BLOCK-----\n .\n AAAA\n -----END PGP PUBLIC KEY BLOCK-----"
        text = f"Types: deb\nURIs: {MIRROR}\nSuites: bookworm\nComponents: main\nSigned-By:{key}\n"
        (source,) = apt.parse_deb822(text)
        assert source.options["Signed-By"] == key
        assert apt.parse_deb822(apt.our_source(["sid"], [source], "bookworm"))[0].options == source.options

    def test_one_line_options_become_fields(self) -> None:
        text = f"#deb {MIRROR} sid main\ndeb-src {MIRROR} sid main\n" + (
            f"deb [arch=amd64,arm64 signed-by={KEYRING}] {MIRROR} bookworm main contrib # theirs\n"
        )
        (source,) = apt.parse_one_line(text)
        assert (source.uris, source.suites, source.components) == (
            (MIRROR,),
            ("bookworm",),
            ("main", "contrib"),
        )
        assert source.options == {"Architectures": "amd64 arm64", "Signed-By": KEYRING}

    def test_both_forms_are_read_from_where_apt_reads_them(self, root: Path) -> None:
        (root / "etc/apt/sources.list").write_text(f"deb {MIRROR} bookworm-backports main\n")
        (root / "etc/apt/sources.list.d/old.save").write_text(f"deb {MIRROR} sid main\n")
        suites = [suite for source in apt.read_sources(root) for suite in source.suites]
        assert suites == ["bookworm-backports", "bookworm", "bookworm-updates", "trixie"]

    def test_another_repository_s_trixie_is_not_debian_s(self, root: Path) -> None:
        wanted = apt.specs(["docker.io", "kind", "iptables"], "bookworm")
        assert apt.missing_suites(wanted, apt.read_sources(root)) == ["trixie", "sid"]

    @pytest.mark.parametrize("name", ["sid", "unstable"])
    def test_a_suite_that_is_there_is_not_added(self, name: str) -> None:
        there = apt.parse_one_line(f"deb {MIRROR} trixie main\ndeb {MIRROR} {name} main")
        assert apt.missing_suites(["docker.io/trixie", "kind/sid"], there) == []


class TestWrittenSources:
    def test_use_the_machine_s_own_mirror_keyring_and_options(self, root: Path) -> None:
        pins, source = apt.write_sources(["trixie", "sid"], "bookworm", root)
        assert source.read_text() == (
            f"Types: deb\nURIs: {MIRROR}\nSuites: trixie sid\nComponents: main\n"
            f"Signed-By: {KEYRING}\nCheck-Valid-Until: no\n"
        )
        assert "Pin: release n=trixie\nPin-Priority: 50\n" in pins.read_text()
        assert "Pin: release n=sid\nPin-Priority: 40\n" in pins.read_text()

    @pytest.mark.parametrize(
        "option", ["trusted", "allow-insecure", "allow-weak", "allow-downgrade-to-insecure", "snapshot"]
    )
    def test_never_accept_what_was_accepted_for_another_suite(self, tmp_path: Path, option: str) -> None:
        """sid was not the suite whose signatures its owner did without."""
        lists = tmp_path / "etc/apt/sources.list"
        lists.parent.mkdir(parents=True)
        lists.write_text(f"deb [{option}=yes] {MIRROR} bookworm main\n")
        keyring = tmp_path / KEYRING.lstrip("/")
        keyring.parent.mkdir(parents=True)
        keyring.touch()
        _, source = apt.write_sources(["sid"], "bookworm", tmp_path)
        signed = f"Signed-By: {KEYRING}\n" if option == "trusted" else ""
        assert source.read_text() == f"Types: deb\nURIs: {MIRROR}\nSuites: sid\nComponents: main\n{signed}"

    def test_touch_no_file_but_our_own(self, root: Path) -> None:
        before = (root / "etc/apt/sources.list.d/debian.sources").read_bytes()
        written = apt.write_sources(["sid"], "bookworm", root)
        assert {path.stem for path in written} == {apt.NAME}
        assert (root / "etc/apt/sources.list.d/debian.sources").read_bytes() == before

    def test_a_later_suite_joins_the_earlier_ones(self, root: Path) -> None:
        apt.write_sources(["sid"], "bookworm", root)
        _, source = apt.write_sources(["trixie"], "bookworm", root)
        assert apt.parse_deb822(source.read_text())[0].suites == ("sid", "trixie")

    def test_without_debian_s_archive_say_so(self, tmp_path: Path) -> None:
        with pytest.raises(HarnessError, match="contain no source for Debian bookworm"):
            apt.write_sources(["sid"], "bookworm", tmp_path)


class TestPackages:
    def test_newer_releases_supply_only_outdated_packages(self) -> None:
        names = ["docker.io", "kind", "iptables"]
        assert apt.specs(names, "bookworm") == ["docker.io/trixie", "kind/sid", "iptables"]
        assert apt.specs(names, "trixie") == ["docker.io", "kind/sid", "iptables"]
        assert apt.specs(names, "sid") == names

    def test_an_older_debian_is_refused_with_what_to_do(self) -> None:
        with pytest.raises(HarnessError, match="Debian bullseye: expected bookworm") as refused:
            apt.specs(["kind"], "bullseye")
        assert "kind 0.33 or later" in refused.value.hint

    def test_debian_is_told_from_its_descendants(self) -> None:
        assert apt.codename('ID=debian\nVERSION_CODENAME=bookworm\nPRETTY_NAME="x"\n') == "bookworm"
        assert apt.codename("ID=ubuntu\nID_LIKE=debian\nVERSION_CODENAME=noble\n") is None

    def test_only_what_is_missing_is_installed(self, settings: Settings) -> None:
        assert repair.needed_packages([_failed("kind")], settings, None) == ["kind"]
        assert repair.needed_packages([_failed("memory")], settings, None) == []

    def test_kind_named_by_user_is_theirs_to_install(self, settings: Settings) -> None:
        theirs = settings.model_copy(update={"kind_bin": "/opt/kind"})
        assert repair.needed_packages([_failed("kind")], theirs, None) == []

    def test_a_daemon_that_only_stands_still_is_not_reinstalled(
        self, settings: Settings, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv("DOCKER_HOST", raising=False)
        stopped = [_failed("Docker daemon")]
        assert repair.needed_packages(stopped, settings, "Docker version 26.1.5+dfsg1") == []
        assert "docker.io" in repair.needed_packages(stopped, settings, None)

    def test_a_daemon_elsewhere_gets_none_here(
        self, settings: Settings, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("DOCKER_HOST", "tcp://192.0.2.1:2376")
        assert repair.needed_packages([_failed("Docker daemon")], settings, None) == []


class TestProbes:
    def test_capabilities_missing_from_the_bounding_set(self) -> None:
        assert probe.lacking_capabilities("Name:\tsh\nCapBnd:\t000001fffeffffff\n", 40) == [24]
        assert probe.lacking_capabilities("CapBnd:\t000001ffffffffff\n", 40) == []

    def test_a_program_that_does_not_exist_is_an_answer(self) -> None:
        answer = probe.run("no-such-program-here")
        assert (answer.code, answer.last_line) == (127, "no-such-program-here: not found")

    def test_a_program_that_hangs_is_an_answer(self) -> None:
        assert probe.run("sleep", "5", seconds=0.1).code == 124

    def test_the_nearest_folder_that_exists(self, tmp_path: Path) -> None:
        assert probe.existing(tmp_path / "a" / "b") == tmp_path


class TestPlatform:
    @pytest.mark.parametrize(
        ("system", "architecture", "chosen", "ok"),
        [
            ("linux", "x86_64", "", True),
            ("linux", "aarch64", "", True),
            ("linux", "aarch64", "linux/arm64", True),
            ("linux", "aarch64", "linux/amd64", False),
            ("linux", "x86_64", "linux/arm64", False),
            ("linux", "s390x", "", False),
            ("windows", "x86_64", "", False),
            ("linux", "x86_64", "arm64", False),
        ],
    )
    def test_of_the_server_is_checked_before_anything_is_built(
        self, monkeypatch: pytest.MonkeyPatch, system: str, architecture: str, chosen: str, ok: bool
    ) -> None:
        """`docker info` reports the kernel's name of an architecture."""
        monkeypatch.setenv("DOCKER_DEFAULT_PLATFORM", chosen)
        found = checks._platform({"OSType": system, "Architecture": architecture})
        assert found.ok is ok
        assert f"{system}/{architecture}" in found.seen
        assert "DOCKER_DEFAULT_PLATFORM" in found.fix


class TestReport:
    def test_exit_code_is_2_for_a_required_check_only(self) -> None:
        assert check_results.exit_code([_failed("a", required=False), Check("b", True, "x", "y")]) == 0
        assert check_results.exit_code([_failed("a")]) == 2

    def test_json_is_one_document_with_every_field(self) -> None:
        seen = json.loads(json.dumps(check_results.as_json([_failed("kind")])))
        assert seen["ok"] is False
        assert seen["checks"] == [
            {"name": "kind", "ok": False, "seen": "x", "expected": "y", "fix": "do z", "required": True}
        ]

    def test_terminal_shows_what_was_seen_expected_and_to_do(self) -> None:
        text = _terminal(
            [_failed("kind"), Check("cores", True, "[2]", "≥ 2"), _failed("tea", required=False)]
        )
        assert "no  kind" in text
        assert "ok  cores  [2]" in text
        assert text.index("kind → do z") < text.index("tea → do z")
        assert text.rstrip().endswith("1 of 3 checks failed")

    def test_terminal_says_ready(self) -> None:
        assert _terminal([Check("cores", True, "2", "≥ 2")]).rstrip().endswith("ready")


def test_every_check_that_can_fail_says_what_to_do(settings: Settings) -> None:
    """Run for real, here: whatever this machine lacks, the answer is never a bare 'no'."""
    found = checks.checks(settings)
    assert {"Python", "Docker client", "Docker daemon", "kind", "memory"} <= {check.name for check in found}
    assert all(check.seen and check.expected for check in found)
    assert all(check.fix for check in found if check.failed)


def _failed(name: str, *, required: bool = True) -> Check:
    return Check(name, False, "x", "y", "do z", required)


def _terminal(checks: list[Check]) -> str:
    console = Console(file=io.StringIO(), width=100)
    console.print(check_results.render(checks))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_an_image_of_another_architecture_says_nothing_about_docker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Contract: an image that cannot run here is passed over, and the next one is tried."""
    answers = {
        "ls": probe.ProgramResult(0, "sha256:arm\nsha256:here\n"),
        "sha256:arm": probe.ProgramResult(255, "exec /bin/true: exec format error"),
        "sha256:here": probe.ProgramResult(0, ""),
    }
    monkeypatch.setattr(probe, "run", lambda *command, **_: answers["ls" if "ls" in command else command[-1]])
    assert probe.privileged_run() == (True, "a privileged container ran")
