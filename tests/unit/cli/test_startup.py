"""What the commands import before they have anything to do. No times: those are bench/startup.py's."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import typer

from harness.cli.main import app

BIN = Path(sys.executable).parent
TYPERS = {"pydantic"}
"""typer parses the words of a subcommand with it."""
HEAVY = {
    "httpx",
    "jinja2",
    "kopf",
    "kubernetes",
    "msgspec",
    "psutil",
    "pydantic",
    "pydantic_settings",
    "starlette",
    "tenacity",
    "urllib3",
    "uvicorn",
    "yaml",
}
OURS = {"harness.evidence", "harness.judge", "harness.provision", "harness.observe", "harness.settings"}
PROGRAM = """
import importlib.metadata, json, sys
name, *sys.argv[1:] = sys.argv[1:]
before = set(sys.modules)
(entry,) = importlib.metadata.entry_points(group="console_scripts", name=name)
try:
    entry.load()()
except SystemExit as end:
    print(json.dumps({"code": end.code, "modules": sorted(set(sys.modules) - before)}), file=sys.stderr)
"""


def imported(*words: str, folder: Path) -> tuple[int, set[str], str]:
    """Run an installed command as its script does. Return its exit code, what it imported, and its output."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *words],
        check=False,
        capture_output=True,
        text=True,
        cwd=folder,
        timeout=120,
    )
    report = json.loads(done.stderr.splitlines()[-1])
    return report["code"] or 0, set(report["modules"]), done.stdout


@pytest.mark.parametrize(
    "words",
    [
        ("harness",),
        ("harness", "--help"),
        ("harness", "run", "--help"),
        ("harness", "tracker", "--help"),
        ("harness", "torchrun", "submit", "--help"),
        ("kubectl-torchrun", "--help"),
    ],
    ids=" ".join,
)
def test_help_imports_nothing_that_only_work_needs(words: tuple[str, ...], tmp_path: Path) -> None:
    """Contract: the help of any command needs neither Kubernetes' client nor evidence. That of
    `harness` needs no pydantic either."""
    code, modules, text = imported(*words, folder=tmp_path)
    assert code == 0
    assert "Usage" in text
    parses = len(words) > 2 or words[0] == "kubectl-torchrun"
    assert modules & HEAVY <= (TYPERS if parses else set())
    assert modules & OURS == set()


def test_wrong_usage_imports_no_more_than_help(tmp_path: Path) -> None:
    """Contract: a misspelt option is answered as fast as --help."""
    code, modules, _ = imported("harness", "run", "--no-such-option", folder=tmp_path)
    assert code == 64
    assert modules & (HEAVY | OURS) <= TYPERS


def test_old_bundles_are_listed_without_a_cluster_client(tmp_path: Path) -> None:
    """Contract: `harness runs` reads folders. It imports no client of Kubernetes, none of HTTP, no judge."""
    code, modules, _ = imported("harness", "runs", folder=tmp_path)
    assert code == 0
    assert modules & {"kubernetes", "httpx", "starlette", "kopf", "jinja2", "harness.judge"} == set()


def test_status_without_a_cluster_imports_no_kubernetes_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Contract: `harness status` without a cluster asks Docker alone."""
    monkeypatch.setenv("HARNESS_CLUSTER_NAME", "nobody-has-this")
    code, modules, _ = imported("harness", "status", folder=tmp_path)
    assert code == 2
    unneeded = {
        "kubernetes",
        "httpx",
        "yaml",
        "harness.judge",
        "harness.evidence",
        "harness.provision.images",
    }
    assert modules & unneeded == set()


def test_the_scripts_that_users_type_are_these_entry_points() -> None:
    """Contract: what is measured above is what is installed."""
    for name in ("harness", "kubectl-torchrun"):
        assert (BIN / name).is_file()


def commands(of: typer.Typer) -> Iterator[Callable[..., object]]:
    for command in of.registered_commands:
        assert command.callback is not None
        yield command.callback
    for group in of.registered_groups:
        assert group.typer_instance is not None
        yield from commands(group.typer_instance)


def test_no_annotation_is_compiled_again() -> None:
    """`from __future__ import annotations` makes text of them, which typer compiles for every command."""
    texts = {
        f"{command.__module__}.{command.__name__}({name})"
        for command in commands(app)
        for name, kind in command.__annotations__.items()
        if isinstance(kind, str)
    }
    assert texts == set()
