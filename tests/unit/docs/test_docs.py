"""README.md, docs/ and the examples are true: commands, options, files, links, code.

Commands that need no cluster really run, on a bundle of a real launch.
"""

from __future__ import annotations

import ast
import re
import shlex
import subprocess
import tomllib
from itertools import pairwise
from pathlib import Path

import pytest
import typer
import yaml
from documents import DOCUMENTS, ROOT, Command, Said, anchors, blocks, code, commands, links

from harness.cli.main import app, main
from harness.faults.recorded_bundles import extract
from harness.reference.settings import variables
from harness.settings import Settings
from harness.tracker.__main__ import parser
from tests import reader

COMMANDS = commands()
HARNESS = [command for command in COMMANDS if Path(command.program).name == "harness"]
OTHERS = {
    "make",
    "kubectl",
    "pytest",
    "bash",
    "pip",
    "pipx",
    "uvx",
    "python3",
    "git",
    "helm",
    "sed",
    "export",
    ".",
}
"""Programs that the documents may call."""
OUTPUTS = {
    "runs",
    "PATH",
    "",
    "objects",
    "logs",
    "truth",
    "tracker",
    "controllers",
    "kind",
    "launch",
    "k8s_distributed.py",
}
"""First parts of paths that a command creates, that are in a bundle, or that are the reader's own."""
SOURCES = {".py", ".yaml", ".yml", ".toml", ".md", ".sh", ".txt", ".Dockerfile"}
OFFLINE = {"judge": 1, "show": 1, "diff": 1, "logs": 0, "runs": 0, "report": 0, "summary": 0}
"""Commands that read only a folder, with their exit code on the folder of the tests below."""
NAMES = {name for field, of in Settings.model_fields.items() for name in variables(field, of)}


def usage(command: Command) -> str | None:
    """Return the usage error of typer, or of the tracker's own parser. Nothing is run."""
    inner, words = typer.main.get_command(app), list(command.arguments)
    while words and words[0] in getattr(inner, "commands", {}):
        inner = inner.commands[words.pop(0)]
    if hasattr(inner, "commands") and words and not words[0].startswith("-"):
        return f"no such command: {words[0]}"
    try:
        if inner.name == "serve":
            parser().parse_args(words)
        else:
            inner.make_context(inner.name, words)
    except SystemExit as error:
        return None if not error.code else f"exit code {error.code}"
    except Exception as error:
        return None if type(error).__name__ in {"Exit", "NoArgsIsHelpError"} else f"{error}"
    return None


@pytest.mark.parametrize("command", HARNESS, ids=str)
def test_a_harness_command_is_one(command: Command, capsys: pytest.CaptureFixture[str]) -> None:
    """Contract: typer takes every command, argument and option."""
    assert usage(command) is None


def test_a_wrong_command_would_be_found() -> None:
    """The test above can fail."""
    span = Said(ROOT / "README.md", "")
    for words in (["rnu"], ["run"], ["run", "x", "--no"], ["logs", "--rank", "one"], ["images", "make"]):
        assert usage(Command(span, "harness", tuple(words))) is not None, words


def test_no_other_program_is_called() -> None:
    """A new program must be reviewed and added to the list."""
    assert [str(c) for c in COMMANDS if c.program not in OTHERS and c not in HARNESS] == []


def test_make_targets_exist() -> None:
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    asked = [(c, word) for c in COMMANDS if c.program == "make" for word in c.arguments if "=" not in word]
    assert [str(c) for c, word in asked if word not in targets] == []
    spans = [span for span in code() if span.text.startswith("make ")]
    assert [str(span) for span in spans if span.text.split()[1] not in targets] == []


def test_pytest_options_and_markers_exist(pytestconfig: pytest.Config) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]
    markers = {line.partition(":")[0] for line in project["markers"]} | {"not", "and", "or"}
    for command in (c for c in COMMANDS if c.program == "pytest"):
        words = command.arguments
        for option in (word.partition("=")[0] for word in words if word.startswith("-")):
            pytestconfig.getoption(option)  # Raises ValueError if pytest does not have it.
        chosen = [after for word, after in pairwise(words) if word == "-m"]
        assert {name for text in chosen for name in text.split()} <= markers, command


def test_documented_variables_exist_in_the_code() -> None:
    """HARNESS_… in a document is a setting, or a name that the code reads or sets."""
    sources = [*(ROOT / "harness").rglob("*.py"), *(ROOT / "fixtures").rglob("*.py")]
    known = NAMES | {name for path in sources for name in re.findall(r'"(HARNESS_\w+)"', path.read_text())}
    names = [(d, re.findall(r"\bHARNESS_[A-Z_]*[A-Z]\b", d.read_text())) for d in DOCUMENTS]
    unknown = {(document.name, name) for document, found in names for name in found if name not in known}
    assert unknown == set()


@pytest.mark.parametrize("link", [*dict.fromkeys(links())], ids=str)
def test_a_link_leads_somewhere(link: Said) -> None:
    """Contract: the file exists, and so does its heading."""
    path, _, anchor = link.text.partition("#")
    target = (link.document.parent / path).resolve() if path else link.document
    assert target.exists()
    assert not anchor or anchor in anchors(target)


def paths() -> list[Said]:
    """Return what looks like a file of the checkout, between backticks or in a command."""
    top = {path.name for path in ROOT.iterdir()}
    spans = [span for span in code() if re.fullmatch(r"\.?[\w-][\w.*-]*/[\w./*-]*", span.text)]
    words = [Said(c.said.document, word) for c in COMMANDS for word in _here(c)]
    words = [span for span in words if re.fullmatch(r"[\w./*-]*(/|\w\.\w)[\w./*-]*", span.text)]
    found = []
    for span in dict.fromkeys([*spans, *words]):
        first = span.text.removeprefix("./").partition("/")[0]
        if first in top - OUTPUTS or (Path(span.text).suffix in SOURCES and first not in OUTPUTS):
            found.append(span)
    return found


def _here(command: Command) -> list[str]:
    """Return its words. What follows `--` is a command inside a pod."""
    words = [command.program, *command.arguments]
    return words[: words.index("--")] if "--" in words else words


@pytest.mark.parametrize("span", paths(), ids=str)
def test_a_file_that_is_named_exists(span: Said) -> None:
    """Contract: the file exists, relative to the checkout or to the document."""
    assert any(list(folder.glob(span.text.rstrip("/"))) for folder in (ROOT, span.document.parent))


@pytest.mark.parametrize("language", ["python", "toml", "yaml"])
def test_code_is_code(language: str) -> None:
    read = {"python": ast.parse, "toml": tomllib.loads, "yaml": yaml.safe_load}[language]
    for block in blocks(language):
        read(block.text)


# -- run ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's folder with a bundle in which a point of rank 1 is lost."""
    home = tmp_path_factory.mktemp("user")
    extract(ROOT / "tests/recorded/client-drop-point.tar.xz", home / "runs/20261121T000000Z-98debbaf")
    (home / "runs/latest").symlink_to("20261121T000000Z-98debbaf")
    for name in ("drop-point", "wrong-value"):
        extract(ROOT / f"tests/recorded/client-{name}.tar.xz", home / "runs" / name)
    return home


def offline() -> list[Command]:
    """Return the commands of the documents that need no cluster, each once."""
    asked = {c.arguments: c for c in HARNESS if not {"--follow", "runs/A"} & {*c.arguments}}
    return [c for words, c in asked.items() if words[0] in OFFLINE or {"--help", "--list"} & {*words}]


@pytest.mark.parametrize("command", offline(), ids=lambda command: " ".join(command.arguments))
def test_what_needs_no_cluster_runs(
    command: Command, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Contract: it prints something, and ends with the verdict's exit code, or 0."""
    words = [
        str(path.relative_to(folder)) if "*" in word else word
        for word in command.arguments
        for path in (folder.glob(word) if "*" in word else [folder])
    ]
    monkeypatch.chdir(folder)
    with pytest.raises(SystemExit) as ended:
        main(words)
    printed = capsys.readouterr()
    assert (ended.value.code or 0) == OFFLINE.get(words[0], 0), printed.err
    assert printed.out


def test_every_command_is_typed_by_a_test() -> None:
    """Contract: a test types every command, here or on a cluster (tests/k8s/test_reader.py), or the reason
    why not is listed. Nothing else is listed.
    """
    tutorial = {c.arguments for c in HARNESS if c.said.document.name == "tutorial.md"}
    typed = {t.arguments for t in (*reader.WORKBENCH, *reader.THEIRS)}
    elsewhere = {tuple(shlex.split(words)[1:]) for words in reader.ELSEWHERE}
    documented = {c.arguments for c in HARNESS} - {c.arguments for c in offline()} - tutorial
    assert documented == typed | elsewhere


def test_the_tutorial_breaks_one_line(tmp_path: Path) -> None:
    """Contract: its `sed` changes one line of the worker, which is still valid Python. The text shows both
    lines.
    """
    (broken,) = [c for c in COMMANDS if c.program == "sed"]
    worker = tmp_path / "harness/workers/multinode.py"
    worker.parent.mkdir(parents=True)
    before = (ROOT / "harness/workers/multinode.py").read_text()
    worker.write_text(before)
    subprocess.run([broken.program, *broken.arguments], cwd=tmp_path, check=True)
    pairs = zip(before.splitlines(), worker.read_text().splitlines(), strict=True)
    ((old, new),) = [(old, new) for old, new in pairs if old != new]
    ast.parse(worker.read_text())
    shown = broken.said.document.read_text()
    assert f"\n{old}\n" in shown
    assert f"\n{new}\n" in shown
