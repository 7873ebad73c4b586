"""Parse users' YAML files, with limits on nesting and on the number of values.

YAML is parsed as in Kubernetes: it can contain only JSON values, and dates are strings. Duplicate keys are
rejected, because PyYAML would silently use the last one.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import yaml

from harness.core.errors import UsageError
from harness.core.user_files import MAX_BYTES, MAX_DEPTH, read_text

MAX_VALUES: Final = 50_000
"""Maximum number of keys, strings, numbers and collections in a file.

The values to which an alias refers are counted again for each alias.
"""
MAX_ALIASES: Final = 1_000
MAX_KEY: Final = 1_024
"""Maximum length of a key in characters."""
MAX_NUMBER: Final = 64
"""Maximum length of a number in characters. As in Kubernetes, the value is at most 2^63 - 1."""

_TAG = "tag:yaml.org,2002:"
_PLAIN = {_TAG + kind for kind in ("str", "int", "float", "bool", "null", "map", "seq", "merge")}
_NUMBERS = {f"{_TAG}int", f"{_TAG}float"}


class _Wrong(Exception):
    """An error in YAML text. Its message contains the line number."""


class _Loader(yaml.CSafeLoader):
    """A YAML loader that constructs only JSON values.

    Dates and a lone `=` become strings, and integers that do not fit in 64 bits are rejected.
    """

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep=deep)
        except (ValueError, LookupError, TypeError, AttributeError):  # The value does not match its YAML tag.
            raise _Wrong(f"{_line(node)}: {_tag(node)} is expected") from None

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        number: int = super().construct_yaml_int(node)
        if abs(number) > 2**63 - 1:
            raise _Wrong(f"{_line(node)}: expected a whole number between -(2^63 - 1) and 2^63 - 1")
        return number


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith((":timestamp", ":value"))]
    for first, resolvers in yaml.CSafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_constructor(f"{_TAG}int", _Loader.construct_yaml_int)


def yaml_documents(path: Path, kind: str, *, hint: str = "", max_bytes: int = MAX_BYTES) -> list[Any]:
    """Return the documents in a YAML file, with None for empty documents. Raises UsageError."""
    return yaml_texts(read_text(path, kind, hint=hint, max_bytes=max_bytes), f"{kind} {path}", hint=hint)


def yaml_document(path: Path, kind: str, *, hint: str = "", max_bytes: int = MAX_BYTES) -> Any:
    """Return the only document in a YAML file, or None if the file is empty.

    Raises UsageError if the file is invalid or contains several documents.
    """
    documents = yaml_documents(path, kind, hint=hint, max_bytes=max_bytes)
    if len(documents) > 1:
        raise UsageError(f"{kind} {path}: expected one YAML document, found {len(documents)}", hint=hint)
    return documents[0] if documents else None


def yaml_texts(text: str, source: str, *, hint: str = "") -> list[Any]:
    """Return the documents in a YAML string. Error messages start with `source`. Raises UsageError."""
    try:
        _events(text)
        return list(_documents(text))
    except _Wrong as error:
        raise UsageError(f"{source}, {error}", hint=hint) from None
    except yaml.MarkedYAMLError as error:
        location = _place(text, error.problem_mark) if error.problem_mark else ""
        raise UsageError(f"{source} is not valid YAML{location}: {error.problem}", hint=hint) from None
    except (yaml.YAMLError, ValueError) as error:
        raise UsageError(f"{source} is not valid YAML: {error}", hint=hint) from None


def _events(text: str) -> None:
    """Check the limits on depth, values and aliases before constructing any values. Raises _Wrong."""
    values = aliases = 0
    sizes: dict[str, int] = {}
    """The number of values to which each anchor refers."""
    open_: list[tuple[str | None, int]] = []
    """The anchor of each collection that is still open, and the number of values that precede the
    collection."""
    for event in yaml.parse(text, Loader=_Loader):
        if isinstance(event, yaml.AliasEvent):
            aliases += 1
            if any(anchor == event.anchor for anchor, _ in open_):
                raise _Wrong(f"{_line(event)}: alias *{event.anchor} refers to a collection that contains it")
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
            raise _Wrong(f"{_line(event)}: lists and mappings can be nested at most {MAX_DEPTH} deep")
        if values > MAX_VALUES:
            raise _Wrong(
                f"{_line(event)}: a file can have at most {MAX_VALUES} values (an aliased value counts "
                "each time)"
            )
        if aliases > MAX_ALIASES:
            raise _Wrong(f"{_line(event)}: a file can have at most {MAX_ALIASES} aliases")


def _documents(text: str) -> Iterator[Any]:
    loader = _Loader(text)
    try:
        while loader.check_node() and (node := loader.get_node()) is not None:
            _check(loader, node, set())
            yield loader.construct_document(node)
    finally:
        loader.dispose()


def _check(loader: _Loader, node: yaml.Node, checked: set[int]) -> None:
    """Check a YAML node and its children.

    A node to which several aliases refer is checked only once. Raises _Wrong.
    """
    if id(node) in checked:
        return
    checked.add(id(node))
    if node.tag not in _PLAIN:
        raise _Wrong(f"{_line(node)}: the tag {_tag(node)} is not supported")
    if node.tag in _NUMBERS and len(node.value) > MAX_NUMBER:
        raise _Wrong(
            f"{_line(node)}: expected a number of at most {MAX_NUMBER} characters, found {len(node.value)}"
        )
    if isinstance(node, yaml.SequenceNode):
        for item in node.value:
            _check(loader, item, checked)
    elif isinstance(node, yaml.MappingNode):
        keys: dict[Any, yaml.Node] = {}
        for key, value in node.value:
            _check(loader, key, checked)
            _check(loader, value, checked)
            if not isinstance(key, yaml.ScalarNode):
                raise _Wrong(f"{_line(key)}: a key must be a string, not a list or a mapping")
            if len(key.value) > MAX_KEY:
                raise _Wrong(
                    f"{_line(key)}: expected a key of at most {MAX_KEY} characters, found {len(key.value)}"
                )
            # In JSON, a string and a number that look alike, such as `"1"` and `1`, are the same key.
            first = keys.setdefault(
                "<<" if key.tag.endswith(":merge") else str(loader.construct_object(key)), key
            )
            if first is not key:
                raise _Wrong(
                    f"{_line(key)}: duplicate key {key.value[:60]!r}; its first occurrence is in "
                    f"{_line(first)}"
                )


def _place(text: str, mark: Any) -> str:
    """Format a position in a file's text. A position after the last line is reported as the end of the last
    line."""
    lines = text.splitlines() or [""]
    if mark.line < len(lines):
        return f", line {mark.line + 1}, column {mark.column + 1}"
    return f", line {len(lines)}, column {len(lines[-1]) + 1}"


def _tag(node: yaml.Node) -> str:
    return str(node.tag).replace(_TAG, "!!")[:60]


def _line(place: yaml.Node | yaml.Event) -> str:
    mark = place.start_mark
    return f"line {mark.line + 1 if mark else 1}"
