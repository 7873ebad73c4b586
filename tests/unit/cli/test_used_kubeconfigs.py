"""A bundle cannot choose the kubeconfig: it could run a program, or send a file of the reader to a server.

Reports in public of the same kind: kubernetes/kubectl#697, kubestellar/console#7260.
"""

from __future__ import annotations

import stat
from pathlib import Path

import bundles
import pytest

from harness.cli.shell import cluster_of
from harness.core.errors import HarnessError, UsageError
from harness.core.used_kubeconfigs import remember
from harness.evidence import Bundle
from harness.settings import Settings

KUBECONFIG = """apiVersion: v1
kind: Config
current-context: c
contexts: [{{name: c, context: {{cluster: c, user: u}}}}]
clusters: [{{name: c, cluster: {{server: "http://127.0.0.1:9"}}}}]
users:
- name: u
  user:
    exec: {{apiVersion: client.authentication.k8s.io/v1, command: {program}, interactiveMode: Never}}
"""


@pytest.fixture
def sent(tmp_path: Path) -> Bundle:
    """A bundle from someone else, with a kubeconfig that runs a program."""
    program = tmp_path / "sent" / "program"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    kubeconfig = tmp_path / "sent" / "kubeconfig"
    kubeconfig.write_text(KUBECONFIG.format(program=program))
    job = bundles.healthy()
    job.manifest = job.manifest.model_copy(
        update={"cluster": {"kubeconfig": str(kubeconfig), "context": "c"}}
    )
    return job.write(tmp_path / "sent" / "bundle")


def settings(tmp_path: Path, **more: object) -> Settings:
    return Settings.model_validate({"state_dir": tmp_path / "state", **more})


def test_the_kubeconfig_of_a_bundle_from_elsewhere_is_refused(sent: Bundle, tmp_path: Path) -> None:
    """Contract: the message names the file and how to use it all the same, and nothing in it has run."""
    with pytest.raises(UsageError) as refused:
        cluster_of(sent, settings(tmp_path))
    assert str(tmp_path / "sent" / "kubeconfig") in refused.value.message
    assert "HARNESS_KUBECONFIG" in (refused.value.hint or "")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("way", ["used", "set"])
def test_kubeconfig_that_user_used_or_names_is_used(sent: Bundle, tmp_path: Path, way: str) -> None:
    """Contract: the user's own choice counts. Nothing listens at the server's address, which is named."""
    kubeconfig = tmp_path / "sent" / "kubeconfig"
    if way == "used":
        remember(tmp_path / "state", kubeconfig)
    named = settings(tmp_path) if way == "used" else settings(tmp_path, kubeconfig=kubeconfig)
    with pytest.raises(HarnessError) as error:
        cluster_of(sent, named)
    assert not isinstance(error.value, UsageError)


def test_a_link_to_the_file_is_the_same_file(sent: Bundle, tmp_path: Path) -> None:
    """Contract: a link in the state folder to a file elsewhere does not make that file known."""
    (tmp_path / "state").mkdir()
    link = tmp_path / "state" / "kubeconfig"
    link.symlink_to(tmp_path / "sent" / "kubeconfig")
    manifest = (sent.path / "manifest.json").read_text()
    (sent.path / "manifest.json").write_text(
        manifest.replace(str(tmp_path / "sent" / "kubeconfig"), str(link))
    )
    with pytest.raises(UsageError):
        cluster_of(Bundle.open(sent.path), settings(tmp_path))
