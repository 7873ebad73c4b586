"""What is said before a folder is sent: secrets by their names, large files, what stays here."""

from __future__ import annotations

from pathlib import Path

import pytest

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
    *("server.key.bak", ".netrc~", ".env.bak", "id_rsa.old"),
)
HARMLESS = (
    *("train.py", "credentials.py", "secrets.py", "env.py", "environment.yaml", ".env.example", "id_rsa.pub"),
    *(
        "tokens.json",
        "tokenizer.json",
        "keys.txt",
        "pem.md",
        "config.json",
        "monkey.txt",
        "known_hosts",
        "roots.pem",
    ),
)


def test_names_of_secrets_are_warned_about_and_names_of_code_are_not(tmp_path: Path) -> None:
    """Contract: each name alone gives the warning; a bundle of certificates has no secret."""
    for name in (*SECRETS, *HARMLESS):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    (tmp_path / "roots.pem").write_text("# Root\n-----BEGIN CERTIFICATE-----\nAAAA\n")
    files = [entry for entry in Walker(tmp_path).scan().entries if entry["kind"] == "file"]
    warned = {entry["path"] for entry in files if any(warnings.warnings(tmp_path, [entry]))}
    assert warned == set(SECRETS)


def test_a_private_key_beside_a_certificate_is_a_secret(tmp_path: Path) -> None:
    """Contract: a file with both is not taken for a bundle of certificates."""
    (tmp_path / "both.pem").write_text("-----BEGIN CERTIFICATE-----\n-----BEGIN PRIVATE KEY-----\n")
    said: list[str] = []
    Walker(tmp_path, said.append).scan()
    assert "secrets are sent to the cluster: both.pem;" in said[0]


def test_large_files_are_named_with_their_size(tmp_path: Path) -> None:
    """Contract: the largest first, and no more than can be read."""
    for index in range(7):
        with (tmp_path / f"{index}.bin").open("wb") as file:
            file.truncate(warnings.LARGE_BYTES + index * 1_000_000 - (index == 0))
    said: list[str] = []
    Walker(tmp_path, said.append).scan()
    [line] = said
    assert "6.bin (16.0 MB), 5.bin (15.0 MB)" in line
    assert "and 1 more; " in line


def test_a_pointer_of_git_lfs_is_not_the_file(tmp_path: Path) -> None:
    """Contract: a training would read the pointer in place of the weights, in the cluster alone."""
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 4000000000\n"
    (tmp_path / "weights.bin").write_text(pointer)
    (tmp_path / "train.py").write_text("")
    said: list[str] = []
    Walker(tmp_path, said.append).scan()
    assert said == ["warning: Git LFS pointers are sent instead of files: weights.bin; run `git lfs pull`"]


def test_a_warning_comes_once_and_before_the_file_is_sent(tmp_path: Path) -> None:
    """Contract: each scan warns only about what is new, as `--watch` scans again and again."""
    (tmp_path / "train.py").write_text("")
    said: list[str] = []
    walker = Walker(tmp_path, said.append)
    walker.scan()
    assert said == []
    (tmp_path / ".env").write_text("KEY=1")
    walker.scan()
    walker.scan()
    assert len(said) == 1


def test_what_stays_here_is_one_line_or_a_list() -> None:
    """Contract: caches are no news; a name cannot write into the terminal."""
    excluded = [(".git/", BUILT_IN), ("data/", "git ignores it"), ("a\x1b[2J\n.bin", "git ignores it")]
    assert warnings.summary(excluded[:1]) == ""
    said = "not sent: data/, 'a\\x1b[2J\\n.bin' (git ignores it); `--dry-run` lists all"
    assert warnings.summary(excluded) == said
    assert next(iter(warnings.listing(excluded))) == "not sent: .git/ (a built-in rule excludes it)"
    assert len([*warnings.listing(excluded)]) == 3


@pytest.mark.parametrize("count", [5, 6])
def test_the_line_has_an_end(count: int) -> None:
    """Contract: a thousand ignored files are a number."""
    line = warnings.summary([(f"{index}.bin", "git ignores it") for index in range(count)])
    assert ("and 1 more" in line) == (count == 6)
