"""Read YAML that users write, with bounds on its depth and on the number of its values.

YAML is read as Kubernetes reads it: values are those of JSON, and a date is a text. A key that is there twice
is refused, because PyYAML would silently take the last one.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import yaml

from harness.core.errors import UsageError
from harness.core.user_files import MAX_BYTES, MAX_DEPTH, read_text

MAX_VALUES: Final = 50_000
"""Keys, texts, numbers and collections of one file, those behind each alias counted again."""
MAX_ALIASES: Final = 1_000
MAX_KEY: Final = 1_024
"""Characters of a key."""
MAX_NUMBER: Final = 64
"""Characters of a number. Its value is at most 2^63 - 1, the largest whole number of Kubernetes."""

_TAG = "tag:yaml.org,2002:"
_PLAIN = {_TAG + kind for kind in ("str", "int", "float", "bool", "null", "map", "seq", "merge")}
_NUMBERS = {f"{_TAG}int", f"{_TAG}float"}


class _Wrong(Exception):
    """What is wrong with a text, with the line."""


class _Loader(yaml.CSafeLoader):
    """Construct JSON's values alone: a date or a lone `=` is text, and whole numbers have a bound."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep=deep)
        except (ValueError, LookupError, TypeError, AttributeError):  # an explicit tag that does not fit
            raise _Wrong(f"{_line(node)}: {_tag(node)} is expected") from None

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        number: int = super().construct_yaml_int(node)
        if abs(number) > 2**63 - 1:
            raise _Wrong(f"{_line(node)}: a whole number is at most 2^63 - 1")
        return number


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith((":timestamp", ":value"))]
    for first, resolvers in yaml.CSafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_constructor(f"{_TAG}int", _Loader.construct_yaml_int)


def yaml_documents(path: Path, what: str, *, hint: str = "", most: int = MAX_BYTES) -> list[Any]:
    """Return the documents of a YAML file. An empty document is None. Raises UsageError."""
    return yaml_texts(read_text(path, what, hint=hint, most=most), f"{what} {path}", hint=hint)


def yaml_document(path: Path, what: str, *, hint: str = "", most: int = MAX_BYTES) -> Any:
    """Return the one document of a YAML file, None for an empty file.

    Raises UsageError, also for a file of more than one document.
    """
    documents = yaml_documents(path, what, hint=hint, most=most)
    if len(documents) > 1:
        raise UsageError(f"{what} {path} has {len(documents)} documents; one is expected", hint=hint)
    return documents[0] if documents else None


def yaml_texts(text: str, source: str, *, hint: str = "") -> list[Any]:
    """Return the documents of a YAML text. `source` begins each message. Raises UsageError."""
    try:
        _events(text)
        return list(_documents(text))
    except _Wrong as error:
        raise UsageError(f"{source}, {error}", hint=hint) from None
    except yaml.MarkedYAMLError as error:
        where = _place(text, error.problem_mark) if error.problem_mark else ""
        raise UsageError(f"{source} is no YAML{where}: {error.problem}", hint=hint) from None
    except (yaml.YAMLError, ValueError) as error:
        raise UsageError(f"{source} is no YAML: {error}", hint=hint) from None


def _events(text: str) -> None:
    """Count collections, values and aliases before anything is composed of them. Raises _Wrong."""
    values = aliases = 0
    sizes: dict[str, int] = {}
    """Anchor → how many values are behind it."""
    open_: list[tuple[str | None, int]] = []
    """Of each collection that is open: its anchor, and how many values came before it."""
    for event in yaml.parse(text, Loader=_Loader):
        if isinstance(event, yaml.AliasEvent):
            aliases += 1
            if any(anchor == event.anchor for anchor, _ in open_):
                raise _Wrong(f"{_line(event)}: alias *{event.anchor} is inside of what it stands for")
            values += sizes.get(str(event.anchor), 1)
        elif isinstance(event, yaml.NodeEvent):
            values += 1
            if isinstance(event, yaml.CollectionStartEvent):
                open_.append((event.anchor, values - 1))
            elif event.anchor is not None:
                sizes[event.anchor] = 1
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, before = open_.pop()
            if anchor is not None:
                sizes[anchor] = values - before
        if len(open_) > MAX_DEPTH:
            raise _Wrong(f"{_line(event)}: at most {MAX_DEPTH} lists and mappings may be inside each other")
        if values > MAX_VALUES:
            raise _Wrong(
                f"{_line(event)}: at most {MAX_VALUES} values are read, those behind each alias counted again"
            )
        if aliases > MAX_ALIASES:
            raise _Wrong(f"{_line(event)}: a file has at most {MAX_ALIASES} aliases")


def _documents(text: str) -> Iterator[Any]:
    loader = _Loader(text)
    try:
        while loader.check_node() and (node := loader.get_node()) is not None:
            _check(loader, node, set())
            yield loader.construct_document(node)
    finally:
        loader.dispose()


def _check(loader: _Loader, node: yaml.Node, done: set[int]) -> None:
    """Check a node and those in it, each once, however often an alias stands for it. Raises _Wrong."""
    if id(node) in done:
        return
    done.add(id(node))
    if node.tag not in _PLAIN:
        raise _Wrong(f"{_line(node)}: the tag {_tag(node)} is not for files that the harness reads")
    if node.tag in _NUMBERS and len(node.value) > MAX_NUMBER:
        raise _Wrong(f"{_line(node)}: a number has at most {MAX_NUMBER} characters; found {len(node.value)}")
    if isinstance(node, yaml.SequenceNode):
        for item in node.value:
            _check(loader, item, done)
    elif isinstance(node, yaml.MappingNode):
        keys: dict[Any, yaml.Node] = {}
        for key, value in node.value:
            _check(loader, key, done)
            _check(loader, value, done)
            if not isinstance(key, yaml.ScalarNode):
                raise _Wrong(f"{_line(key)}: a key is a text; found a list or a mapping")
            if len(key.value) > MAX_KEY:
                raise _Wrong(f"{_line(key)}: a key has at most {MAX_KEY} characters; found {len(key.value)}")
            # Of a text and a number that look alike, `"1"` and `1`, JSON makes one key.
            first = keys.setdefault(
                "<<" if key.tag.endswith(":merge") else str(loader.construct_object(key)), key
            )
            if first is not key:
                raise _Wrong(f"{_line(key)}: the key {key.value[:60]!r} is there already, in {_line(first)}")


def _place(text: str, mark: Any) -> str:
    """Return a mark as text. One behind the last line is the end of that line."""
    lines = text.splitlines() or [""]
    if mark.line < len(lines):
        return f", line {mark.line + 1}, column {mark.column + 1}"
    return f", line {len(lines)}, column {len(lines[-1]) + 1}"


def _tag(node: yaml.Node) -> str:
    return str(node.tag).replace(_TAG, "!!")[:60]


def _line(place: yaml.Node | yaml.Event) -> str:
    mark = place.start_mark
    return f"line {mark.line + 1 if mark else 1}"
