"""The tests in pods run with Python 3.9 and PyTorch 2.0, and say what these lack."""

from __future__ import annotations

import ast
import builtins
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness.workers import acceptance
from harness.workers.acceptance import compat, runner
from harness.workers.acceptance.limits import FILE, Limits

FOLDER = Path(acceptance.__file__).parent
MODULES = sorted(FOLDER.glob("*.py"))
NEWER = {
    "typing": {
        "Unpack",
        "Self",
        "NotRequired",
        "Required",
        "override",
        "TypeAlias",
        "ParamSpec",
        "assert_never",
    },
    "datetime": {"UTC"},
    "enum": {"StrEnum"},
    "itertools": {"pairwise", "batched"},
    "contextlib": {"chdir", "aclosing"},
}
"""Names of the standard library that Python has only from 3.10 on."""


def imported(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield module and name of each import that runs. What is below TYPE_CHECKING does not."""
    skipped = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if id(node) not in skipped and isinstance(node, ast.ImportFrom) and not node.level:
            yield from ((str(node.module), alias.name) for alias in node.names)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_each_module_is_python_3_9(path: Path) -> None:
    """Contract: its syntax, its imports, its dataclasses, and types that are evaluated at its import."""
    tree = ast.parse(path.read_text(), feature_version=(3, 9))
    assert [(where, name) for where, name in imported(tree) if name in NEWER.get(where, ())] == []
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    words = {(ast.unparse(call.func), word.arg) for call in calls for word in call.keywords}
    assert not words & {("dataclass", "kw_only"), ("dataclass", "slots"), ("zip", "strict")}
    unions = [
        ast.unparse(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign)
        and isinstance(node.value, ast.BinOp)
        and isinstance(node.value.op, ast.BitOr)
        and not isinstance(node.value.left, ast.Dict | ast.Call)
    ]
    assert unions == []


@pytest.fixture
def python_3_10(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Python without tomllib."""
    whole = builtins.__import__

    def without(name: str, *rest: Any, **more: Any) -> Any:
        if name == "tomllib":
            raise ModuleNotFoundError("No module named 'tomllib'")
        return whole(name, *rest, **more)

    monkeypatch.delitem(sys.modules, "tomllib", raising=False)
    monkeypatch.setattr(builtins, "__import__", without)


def test_the_limits_are_the_same_without_tomllib(python_3_10: None) -> None:
    """Contract: each row, with its source, to the last figure."""
    assert compat.toml(FILE.read_text()) == tomllib.loads(FILE.read_text())
    assert len(Limits.load().rows) > 50


@pytest.mark.parametrize(
    "text",
    [
        "a = 1",
        "[[row]]\na = [1]",
        "[[row]]\na = 1\na = 2",
        "[[row]]\na = 'x'",
        "[[row]]\na = 1 2",
        "[row]\na = 1",
    ],
)
def test_what_needs_the_parser_is_refused(python_3_10: None, text: str) -> None:
    """Contract: nothing is guessed; the message has the line and the version."""
    with pytest.raises(ValueError, match=r"line \d cannot be parsed with Python before 3.11"):
        compat.toml(text)


def test_what_pytorch_lacks_is_named_with_the_version(monkeypatch: pytest.MonkeyPatch) -> None:
    """Contract: the check is UNKNOWN by the runner, and its text is this sentence."""
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(__version__="2.0.1"))  # type: ignore[arg-type]
    error = compat.lacks("float8_e4m3fn", "2.1")
    message = "PyTorch 2.0.1 has no float8_e4m3fn, which requires PyTorch 2.1 or later"
    assert runner._words(error) == message


def test_sequences_of_different_lengths_are_no_pairs() -> None:
    assert list(compat.paired([1, 2], "ab")) == [(1, "a"), (2, "b")]
    with pytest.raises(ValueError, match="2 and 1"):
        compat.paired([1, 2], "a")
    assert list(compat.neighbours([1, 2, 3])) == [(1, 2), (2, 3)]
