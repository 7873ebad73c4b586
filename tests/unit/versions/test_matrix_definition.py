"""What a matrix contains: the YAML file and the options."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.core.errors import UsageError
from harness.versions.matrix_definition import Definition, read, split


def of(tmp_path: Path, text: str, *vary: str, **changes: object) -> Definition:
    file = tmp_path / "matrix.yaml"
    file.write_text(text)
    return read(file, vary, {}, **changes)


@pytest.mark.parametrize(
    ("text", "specs"),
    [
        ("latest,0.0.28, ./checkout", ["latest", "0.0.28", "./checkout"]),
        (">=1,<2", [">=1,<2"]),
        ("latest,>=1,<2,!=1.5,1.7,<1", ["latest", ">=1,<2,!=1.5", "1.7", "<1"]),
        ("git+file:///a/b@v1,", ["git+file:///a/b@v1"]),
    ],
)
def test_a_comma_between_comparisons_belongs_to_a_range(text: str, specs: list[str]) -> None:
    assert split(text) == specs


def test_options_replace_the_versions_of_the_file(tmp_path: Path) -> None:
    """Contract: other packages of the file stay, and names are normalized."""
    found = of(
        tmp_path,
        "vary: {konduktor: [latest], pluto: [0.0.28]}\nrepeat: 3\n",
        "pluto_ml==0.0.27,locked",
        each=True,
    )
    assert found.vary == {"konduktor-nightly": ["latest"], "pluto-ml": ["==0.0.27", "locked"]}
    assert (found.repeat, found.each, found.parallel) == (3, True, 2)


def test_lists_and_repeated_options_add_up() -> None:
    found = read(None, ["a=1", "a=2,3"], {"konduktor": [">=0.1.dev0", "latest"]})
    assert found.vary == {"konduktor-nightly": [">=0.1.dev0", "latest"], "a": ["1", "2", "3"]}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected the versions of at least one package"),
        ("vary: {}", "expected the versions of at least one package"),
        ("[1]", "expected a mapping"),
        ("vary: {pluto-ml: [1.10]}", "valid string"),
        ("vary: {pluto-ml: []}", "at least 1 item"),
        ("vary: {torch: ['2.0']}", "cannot replace torch"),
        ("vary: {'a b': ['2.0']}", "name of a package"),
        ("vary: {pluto-ml: [latest]}\nrepeat: 0", "repeat"),
        ("vary: {pluto-ml: [latest]}\nrows: 1", "rows: Extra inputs"),
        (
            "vary: {pluto-ml: [latest]}\nexpect: [{where: {konduktor: latest}}]",
            "does not vary: konduktor-nightly",
        ),
        ("vary: {pluto-ml: [latest]}\nexpect: [{where: {}}]", "expect.0.where"),
        ("vary: {pluto-ml: [latest]}\nexpect: [{where: {pluto-ml: latest}, result: PASS}]", "result"),
        ("name: job\nrun: python train.py\n", "Extra inputs"),
        ("vary: [", "line"),
    ],
)
def test_a_file_that_is_not_valid_is_one_sentence(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        of(tmp_path, text)
