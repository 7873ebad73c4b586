"""What is said before a folder is sent: secrets by their names, large files, what stays here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.core.errors import UsageError
from harness.torchrun_sync import warnings
from harness.torchrun_sync.selection import BUILT_IN
from harness.torchrun_sync.tree import Walker

SECRETS = (
    *(".env", ".env.local", "prod.env", "server.pem", "tls.key", "id_rsa", "ID_ED25519", "credentials.json"),
    *(
        "aws_credentials.csv",
        "kubeconfig",
        "dev.kubeconfig",
        ".netrc",
        ".npmrc",
        ".pypirc",
        ".git-credentials",
    ),
    *("client_secret_1.json", "my-service-account.json", "secrets.yaml", ".kube/config", ".aws/config"),
    *(".docker/config.json", ".ssh/deploy", "credentials", "terraform.tfstate", "store.p12"),
    *("server.key.bak", ".netrc.orig", ".env.bak", "id_rsa.old"),
    *("serviceAccountKey.json", "kaggle.json", ".kaggle/kaggle.json", "hf_token", "wandb-token.txt"),
    *("openai_api_key.txt", ".databrickscfg", "my-project-32a39a69c821.json"),
)
HARMLESS = (
    *("train.py", "credentials.py", "secrets.py", "env.py", "environment.yaml", ".env.example", "id_rsa.pub"),
    *(
        "tokens.json",
        "tokenizer.json",
        "added_tokens.json",
        "token_classification.py",
        "api_keys.md",
        "public.json",
        "keys.txt",
        "pem.md",
        "config.json",
        "monkey.txt",
        "known_hosts",
        "roots.pem",
    ),
)


def test_secret_names_are_warned_about_code_names_not(tmp_path: Path) -> None:
    """GitGuardian/s1ngularity-scanner#2, gitleaks/gitleaks#1818, n4mlz/sns-backend#55: keys of Google Cloud
    have any name.

    Contract: each name alone gives the warning; a bundle of certificates has no secret.
    """
    for name in (*SECRETS, *HARMLESS):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    key = {"type": "service_account", "private_key": "-----BEGIN PRIVATE KEY-----\nAA==\n"}
    (tmp_path / "my-project-32a39a69c821.json").write_text(json.dumps(key))
    (tmp_path / "public.json").write_text('{"public_key": "-----BEGIN PUBLIC KEY-----", "private_key": ""}')
    (tmp_path / "roots.pem").write_text("# Root\n-----BEGIN CERTIFICATE-----\nAAAA\n")
    files = [entry for entry in Walker(tmp_path).scan().entries if entry["kind"] == "file"]
    warned = {entry["path"] for entry in files if any(warnings.warnings(tmp_path, [entry]))}
    assert warned == set(SECRETS)


def test_a_private_key_beside_a_certificate_is_a_secret(tmp_path: Path) -> None:
    """Contract: a file with both is not taken for a bundle of certificates."""
    (tmp_path / "both.pem").write_text("-----BEGIN CERTIFICATE-----\n-----BEGIN PRIVATE KEY-----\n")
    messages: list[str] = []
    Walker(tmp_path, messages.append).scan()
    assert "secrets are sent to the cluster: both.pem;" in messages[0]


def test_large_files_are_named_with_their_size(tmp_path: Path) -> None:
    """Contract: the largest first, and no more than can be read."""
    for index in range(7):
        with (tmp_path / f"{index}.bin").open("wb") as file:
            file.truncate(warnings.LARGE_BYTES + index * 1_000_000 - (index == 0))
    messages: list[str] = []
    Walker(tmp_path, messages.append).scan()
    [line] = messages
    assert "6.bin (16.0 MB), 5.bin (15.0 MB)" in line
    assert "and 1 more; " in line


def test_a_pointer_of_git_lfs_is_not_the_file(tmp_path: Path) -> None:
    """Contract: a training would read the pointer in place of the weights, in the cluster alone."""
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 4000000000\n"
    (tmp_path / "weights.bin").write_text(pointer)
    (tmp_path / "train.py").write_text("")
    messages: list[str] = []
    Walker(tmp_path, messages.append).scan()
    assert messages == [
        "warning: Git LFS pointers are sent instead of files: weights.bin; run `git lfs pull`"
    ]


def test_warning_comes_once_and_before_file_is_sent(tmp_path: Path) -> None:
    """Contract: each scan warns only about what is new, as `--watch` scans again and again."""
    (tmp_path / "train.py").write_text("")
    messages: list[str] = []
    walker = Walker(tmp_path, messages.append)
    walker.scan()
    assert messages == []
    (tmp_path / ".env").write_text("KEY=1")
    walker.scan()
    walker.scan()
    assert len(messages) == 1


def test_what_stays_here_is_one_line_or_a_list() -> None:
    """Contract: caches are no news; a name cannot write into the terminal."""
    excluded = [(".git/", BUILT_IN), ("data/", "git ignores it"), ("a\x1b[2J\n.bin", "git ignores it")]
    assert warnings.summary(excluded[:1]) == ""
    expected = "not sent: data/, 'a\\x1b[2J\\n.bin' (git ignores it); `--dry-run` lists all"
    assert warnings.summary(excluded) == expected
    assert next(iter(warnings.listing(excluded))) == "not sent: .git/ (a built-in rule excludes it)"
    assert len([*warnings.listing(excluded)]) == 3


def test_large_folder_is_reported_before_it_is_read(tmp_path: Path) -> None:
    """keras-team/kinetic#262, skypilot-org/skypilot#391, ray-project/ray#18618: a launch from a folder with a
    data set read all of it, for minutes and without a word.

    Contract: sizes and links that lead out are known before the first file is read.
    """
    (tmp_path / "data").mkdir()
    with (tmp_path / "data/a.bin").open("wb") as file:
        file.truncate(20_000_000)
    lines: list[str] = []

    class Reading(Walker):
        def _digest(self, path: str) -> tuple[int, str]:
            lines.append(f"read {path}")
            return super()._digest(path)

    Reading(tmp_path, lines.append).scan()
    assert [line.split(":")[0] for line in lines] == ["warning", "read data/a.bin"]
    assert "data/a.bin (20.0 MB)" in lines[0]
    lines.clear()
    (tmp_path / "z").symlink_to("/etc")
    with pytest.raises(UsageError, match="lead out of"):
        Reading(tmp_path, lines.append).scan()
    assert not [line for line in lines if line.startswith("read")]


@pytest.mark.parametrize("count", [5, 6])
def test_the_line_has_an_end(count: int) -> None:
    """Contract: a thousand ignored files are a number."""
    line = warnings.summary([(f"{index}.bin", "git ignores it") for index in range(count)])
    assert ("and 1 more" in line) == (count == 6)


def warned(folder: Path) -> list[str]:
    """Return the warnings of a scan."""
    messages: list[str] = []
    Walker(folder, messages.append).scan()
    return messages


def test_many_small_files_are_named_with_their_folder(tmp_path: Path) -> None:
    """Contract: no single file is large, and the text stays the same while a few files change."""
    (tmp_path / "img").mkdir()
    (tmp_path / "train.py").write_text("")
    for index in range(26):
        with (tmp_path / f"img/{index}.bin").open("wb") as file:
            file.truncate(8_000_000)
    [line] = warned(tmp_path)
    assert line.startswith("warning: more than 200 MB are sent, most of them in img/; move data to a claim")
    (tmp_path / "img/0.bin").write_text("")
    assert warned(tmp_path) == [line]


def test_many_files_are_named_with_their_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warnings, "MANY_FILES", 10)
    (tmp_path / "wandb").mkdir()
    for index in range(25):
        (tmp_path / f"wandb/{index}").write_text("")
    assert warned(tmp_path)[0].startswith("warning: more than 20 files are sent, most of them in wandb/; ")


def test_scripts_with_windows_line_ends_are_named(tmp_path: Path) -> None:
    """Contract: the kernel looks for an interpreter whose name ends with CR; other files may."""
    (tmp_path / "run.sh").write_bytes(b"#!/bin/bash\r\necho\r\n")
    (tmp_path / "tool").write_bytes(b"#!/usr/bin/env python3\r\n")
    (tmp_path / "tool").chmod(0o755)
    (tmp_path / "good.sh").write_bytes(b"#!/bin/bash\necho '\r'\n")
    (tmp_path / "notes.txt").write_bytes(b"#!/bin/bash\r\n")
    [line] = warned(tmp_path)
    assert line.startswith(
        "warning: scripts whose first line ends with CRLF do not start in a pod: run.sh, tool;"
    )


def test_links_to_files_that_are_not_sent_are_named(tmp_path: Path) -> None:
    """Contract: also through a linked folder. A link that is broken here too is left alone."""
    for folder in ("data", "conf"):
        (tmp_path / folder).mkdir()
    for name in ("data/x.csv", "conf/a.yaml"):
        (tmp_path / name).write_text("x")
    (tmp_path / ".gitignore").write_text("data/\n")
    (tmp_path / "conf/data").symlink_to("../data")
    (tmp_path / "l.csv").symlink_to("conf/data/x.csv")
    (tmp_path / "good").symlink_to("conf/a.yaml")
    (tmp_path / "conf/up").symlink_to("..")
    (tmp_path / "broken").symlink_to("nowhere")
    [line] = warned(tmp_path)
    assert "broken in a pod: conf/data → ../data, l.csv → conf/data/x.csv; `!PATH` in .torchrunignore" in line
    (tmp_path / ".torchrunignore").write_text("!data/\n")
    assert warned(tmp_path) == []


def test_absolute_link_into_folder_does_not_leave_it(tmp_path: Path) -> None:
    """Contract: refused with the remedy for it; one that leads out is named first, safe to print."""
    (tmp_path / "a.py").write_text("")
    (tmp_path / "b.py").symlink_to(tmp_path / "a.py")
    (tmp_path / "c.py").symlink_to(f"../{tmp_path.name}/a.py")
    links = f"b.py → {tmp_path}/a.py, c.py → ../{tmp_path.name}/a.py"
    with pytest.raises(UsageError, match=f"expected relative links to files in .*: {links}") as refused:
        Walker(tmp_path).scan()
    assert "ln -sfnr" in refused.value.hint
    (tmp_path / "e\x1b[31m").symlink_to("/etc")
    with pytest.raises(UsageError, match=r", to files that pods do not have: 'e\\x1b\[31m' → /etc\n"):
        Walker(tmp_path).scan()


@pytest.mark.parametrize("marker", ["pyvenv.cfg", "conda-meta/history"])
def test_a_virtual_environment_of_any_name_is_not_sent(marker: str, tmp_path: Path) -> None:
    """Contract: its link to the Python of this machine is no reason to refuse the folder."""
    (tmp_path / "train.py").write_text("")
    (tmp_path / "my env" / marker).parent.mkdir(parents=True)
    (tmp_path / "my env" / marker).write_text("")
    (tmp_path / "my env/python").symlink_to("/usr/bin/python3")
    tree = Walker(tmp_path).scan()
    assert [entry["path"] for entry in tree.entries] == ["train.py"]
    assert tree.excluded == (("my env/", BUILT_IN),)
    (tmp_path / ".torchrunignore").write_text("!my env/\nmy env/python\n")
    assert f"my env/{marker}" in {entry["path"] for entry in Walker(tmp_path).scan().entries}


def test_rules_that_are_written_like_paths_are_named(tmp_path: Path) -> None:
    """Contract: they match nothing, so what the user meant to keep here is sent."""
    mistaken = ["./data", "!../x", "data\\raw", "data\\*.csv", "C:/data", f"{tmp_path}/data"]
    right = ["data2/", "/data3", "!a/**", "# ./data", "\\#x", "\\!x", "name\\ with space", "[a-c]\\[", "."]
    (tmp_path / ".torchrunignore").write_text("\n".join((*mistaken, *right)))
    [line] = warned(tmp_path)
    assert line.startswith(
        f"note: .torchrunignore has rules that match nothing: {', '.join(mistaken)}; a rule"
    )


FROM_GIT = {
    "pyproject.toml": '[build-system]\nrequires = ["setuptools-scm>=8"]\n[tool.setuptools_scm]\n',
    "setup.py": "from setuptools import setup\nsetup(use_scm_version=True)\n",
    "setup.cfg": "[options]\nsetup_requires = setuptools_scm\n",
}
INSTALLS = ("pip install -e .", "pip install -q '.[train]'", "pip install . && x", "python setup.py develop")
OTHER_SETUPS = (
    "",
    "pip install -r requirements.txt",
    "apt-get install -y git",
    "pip install torch==2.6.0",
    "ls .",
)


def version_warning(top: Path, setup: str = INSTALLS[0]) -> str:
    return warnings.version_from_git(top, Walker(top).scan().entries, setup)


@pytest.mark.parametrize("name", FROM_GIT)
def test_package_whose_version_comes_from_git_is_named(tmp_path: Path, name: str) -> None:
    """pypa/setuptools-scm#805 and #697, ofek/hatch-vcs#62: pip could not install code that came without .git.

    Contract: nothing is said if .git is sent, if the version is in the file or has a fallback, or if the
    setup command installs other packages only.
    """
    (tmp_path / name).write_text(FROM_GIT[name])
    (tmp_path / ".git").mkdir()
    for setup in INSTALLS:
        message = version_warning(tmp_path, setup)
        assert message.startswith(
            f"warning: {name} takes the version of the package from git, but .git is not"
        )
    assert [*map(version_warning, [tmp_path] * len(OTHER_SETUPS), OTHER_SETUPS)] == [""] * len(OTHER_SETUPS)
    (tmp_path / ".torchrunignore").write_text("!.git\n")
    assert version_warning(tmp_path) == ""
    (tmp_path / ".torchrunignore").unlink()
    for text in (f'{FROM_GIT[name]}fallback_version = "0.1"\n', '[project]\nversion = "1.0"\n'):
        (tmp_path / name).write_text(text)
        assert version_warning(tmp_path) == ""
