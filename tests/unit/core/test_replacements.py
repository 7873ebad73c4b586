"""NAME=SPEC: what `--replace` accepts, and the sentence for everything else."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.core.errors import UsageError
from harness.core.replacements import KONDUKTOR, pairs, parse
from harness.provision.images import versions
from harness.provision.source import versions as source_versions
from harness.settings import load


@pytest.mark.parametrize(
    ("text", "name", "spec"),
    [
        ("pluto-ml=0.0.28", "pluto-ml", "0.0.28"),
        ("pluto-ml==0.0.28", "pluto-ml", "==0.0.28"),
        ("pluto-ml=>=0.0.27", "pluto-ml", ">=0.0.27"),
        ("pluto-ml>=0.0.27,<0.1", "pluto-ml", ">=0.0.27,<0.1"),
        ("konduktor = latest", "konduktor", "latest"),
        ("a.b_c=./with=equals", "a.b_c", "./with=equals"),
    ],
)
def test_a_pair_is_a_name_and_a_spec(text: str, name: str, spec: str) -> None:
    assert pairs([text]) == {name: spec}


@pytest.mark.parametrize("text", ["", "pluto-ml", "=1.0", "pluto-ml=", "-x=1", "a b=1"])
def test_a_text_without_name_or_spec_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="expected NAME=SPEC"):
        pairs([text])


def test_a_package_is_replaced_once() -> None:
    assert pairs(["a=1", "a=1"]) == {"a": "1"}
    with pytest.raises(UsageError, match="a is set twice, to 1 and to 2"):
        pairs(["a=1", "a=2"])


@pytest.mark.parametrize(
    ("spec", "versions"),
    [
        ("latest", ""),
        ("0.0.28", "==0.0.28"),
        ("==0.0.28", "==0.0.28"),
        (">=0.1.0.dev20261001", ">=0.1.0.dev20261001"),
    ],
)
def test_a_version_is_a_specifier(spec: str, versions: str) -> None:
    assert parse("Pluto_ML", spec).versions == versions
    assert parse("Pluto_ML", spec).name == "pluto-ml"


def test_name_of_product_is_that_of_its_package() -> None:
    assert parse("konduktor", "latest").name == KONDUKTOR
    assert parse("pluto", "latest").name == "pluto-ml"


@pytest.mark.parametrize(
    ("name", "option"),
    [
        ("torch", "torch_base"),
        ("Python", "torch_base"),
        ("kubernetes", "--kubernetes"),
    ],
)
def test_what_packages_cannot_replace_names_the_option_for_it(name: str, option: str) -> None:
    with pytest.raises(UsageError, match="cannot replace") as error:
        parse(name, "1.0")
    assert option in error.value.hint


@pytest.mark.parametrize("spec", ["0.11.1", "v0.11.1", "==0.11.1"])
def test_a_controller_is_replaced_by_a_release(spec: str) -> None:
    assert parse("JobSet", spec).versions == "v0.11.1"
    settings = load(replace={"jobset": spec})
    assert source_versions.load(settings).jobset == "v0.11.1"
    assert source_versions.load(settings).kueue == source_versions.load(load()).kueue
    published = versions.load(settings).registry.jobset
    assert published.image == "registry.k8s.io/jobset/jobset:v0.11.1"
    assert "/v0.11.1/" in published.manifest
    assert published.sha256 is None


@pytest.mark.parametrize("spec", ["latest", ">=0.11", "main", "0.11", "./checkout"])
def test_a_controller_is_replaced_by_nothing_else(spec: str) -> None:
    with pytest.raises(UsageError, match=r"--replace kueue: expected a version such as v0.11.1, found"):
        parse("kueue", spec)


def test_path_is_wheel_sdist_or_folder_of_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Contract: a relative path is meant from the current folder, so that the setting keeps its meaning."""
    (tmp_path / "checkout").mkdir()
    (tmp_path / "data").mkdir()
    (tmp_path / "checkout" / "pyproject.toml").touch()
    for name in ("a-1.0-py3-none-any.whl", "a-1.0.tar.gz", "a.txt"):
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)
    assert [parse("a", spec).kind for spec in ("./checkout", "a-1.0-py3-none-any.whl", "a-1.0.tar.gz")] == [
        *("source", "wheel", "source")
    ]
    assert load(replace={"a": "checkout"}).replace == {"a": str(tmp_path / "checkout")}
    for spec, message in {
        "data": "neither pyproject.toml nor setup.py",
        "a.txt": "expected a version",
        "nowhere": "no such file",
        "git+https://host/x": "git\\+file:///PATH@REF",
        f"git+file://{tmp_path}/none@main": "does not exist",
    }.items():
        with pytest.raises(UsageError, match=message):
            parse("a", spec)


def test_the_environment_and_an_option_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HARNESS_REPLACE", '{"a": "1.0", "b": "1.0"}')
    assert load(replace={"b": "2.0"}).replace == {"a": "1.0", "b": "2.0"}
