"""Parse the user's replacements for components of the stack, given as NAME=SPEC."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from harness.core.errors import UsageError
from harness.core.input_limits import shown

KONDUKTOR: Final = "konduktor-nightly"
_ALIASES: Final = {"konduktor": KONDUKTOR, "pluto": "pluto-ml"}
FORMS: Final = (
    "a version (0.0.28), a range (>=0.0.27), latest, a wheel, an sdist, a folder with a checkout, or "
    "git+file:///PATH@REF"
)
_ELSEWHERE: Final = {
    "torch": "PyTorch is part of the base image: set torch_base in a copy of harness/versions.toml, and set "
    "HARNESS_VERSIONS_FILE to the path of this copy",
    "python": "Python is part of the base image: set python and torch_base in a copy of "
    "harness/versions.toml, and set HARNESS_VERSIONS_FILE to the path of this copy",
    "kubernetes": "choose the version of Kubernetes with --kubernetes",
}
CONTROLLERS: Final = ("jobset", "kueue")
"""The controllers whose versions the user can replace."""
_RELEASE: Final = re.compile(r"(?:==)?\s*v?(?P<version>\d+\.\d+\.\d+(?:-[0-9A-Za-z.-]+)?)")
_GIT: Final = re.compile(
    r"git\+file://(?P<path>/[^@]*)@(?P<ref>[^@#]+)(?:#subdirectory=(?P<subdirectory>[^#]+))?"
)
_NAME: Final = r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?"
_PAIR: Final = re.compile(rf"(?P<name>{_NAME})\s*(?:=(?!=)|(?=[<>~!=]))(?P<spec>.*[^\s<>~!=,].*)")
"""Matches NAME=SPEC, and requirements such as NAME==1.0 or NAME>=1.0."""

_DAY: Final = re.compile(r"(?P<base>.*\.dev)(?P<day>20\d{6})")
_OF_DAY: Final = {
    "==": ">={0}000000,<={0}235959",
    ">=": ">={0}000000",
    "<=": "<={0}235959",
    "<": "<{0}000000",
    ">": ">{0}235959",
}
"""Maps an operator that precedes a date, as in >=dev20261001, to version specifiers that cover all builds of
that day. A nightly version ends with its build time, as in dev20261001031956. By PEP 440, dev20261001 would
precede all nightly versions, because it is a smaller number.
"""

Kind = Literal["versions", "wheel", "source", "git"]


@dataclass(frozen=True)
class Replacement:
    """The user's replacement for a Python package in a lock file, or for the version of JobSet or Kueue."""

    name: str
    """The normalized name of the package or controller."""
    spec: str
    """The spec as written by the user, except that paths are absolute."""
    kind: Kind
    versions: str = ""
    """The version specifiers of a package, such as `==0.0.28`, or the release tag of a controller, if `kind`
    is "versions". Empty means the latest version."""
    path: Path = Path()
    """The path of the wheel, sdist, directory or Git repository, for all other kinds. For a package in a
    subdirectory of a repository, the path includes the subdirectory."""
    ref: str = ""
    """The branch, tag or commit, if `kind` is "git"."""


def pairs(texts: Iterable[str], option: str = "--replace") -> dict[str, str]:
    """Parse an option's NAME=SPEC values into a mapping from name to spec. Raises UsageError."""
    specs: dict[str, str] = {}
    for text in texts:
        match = _PAIR.fullmatch(text.strip())
        if match is None:
            raise UsageError(f"{option}: expected NAME=SPEC, found {shown(text)}", hint=f"SPEC is {FORMS}")
        name, spec = match["name"], match["spec"].strip()
        if specs.setdefault(name, spec) != spec:
            raise UsageError(f"{option}: {name} is set twice, to {specs[name]} and to {spec}")
    return specs


def normalized(specs: Mapping[str, str]) -> dict[str, str]:
    """Return the specs, keyed by normalized name, with absolute paths.

    Raises UsageError if a spec is not valid.
    """
    return {(one := parse(name, spec)).name: one.spec for name, spec in specs.items()}


def python_package(name: str) -> str:
    """Return the normalized name of a Python package that can be replaced.

    Raises UsageError for an invalid name, and for JobSet and Kueue, whose versions the package index does not
    list.
    """
    if str(canonicalize_name(name)) in CONTROLLERS:
        raise UsageError(
            f"{name} is not a Python package, so its versions cannot be listed",
            hint=f"use `harness run --replace {name}=VERSION` for each version; each version needs a new "
            "cluster",
        )
    return parse(name, "latest").name


def parse(name: str, spec: str) -> Replacement:
    """Parse a package's replacement. Raises UsageError if the name or the spec is not valid."""
    if not re.fullmatch(_NAME, name):
        raise UsageError(f"--replace: expected the name of a package, found {shown(name)}")
    package = str(canonicalize_name(name))
    if package in _ELSEWHERE:
        raise UsageError(f"--replace cannot replace {package}", hint=_ELSEWHERE[package])
    package = _ALIASES.get(package, package)
    if package in CONTROLLERS or spec == "latest":
        tag = _release(package, spec) if package in CONTROLLERS else ""
        return Replacement(package, spec, "versions", tag)
    if (versions := _versions(spec)) is not None:
        if package == KONDUKTOR:
            versions = ",".join(map(_of_day, versions.split(",")))
        return Replacement(package, spec, "versions", versions=versions)
    if spec.startswith("git+"):
        return _git(package, spec)
    path = Path(spec).expanduser().absolute()
    if path.is_dir() and any((path / file).is_file() for file in ("pyproject.toml", "setup.py")):
        return Replacement(package, str(path), "source", path=path)
    if path.is_file() and path.suffix == ".whl":
        return Replacement(package, str(path), "wheel", path=path)
    if path.is_file() and path.name.endswith((".tar.gz", ".zip")):
        return Replacement(package, str(path), "source", path=path)
    if path.is_dir():
        raise UsageError(
            f"--replace {package}: {path} contains neither pyproject.toml nor setup.py",
            hint="use the folder that contains the package's pyproject.toml or setup.py",
        )
    raise UsageError(f"--replace {package}: expected {FORMS}; found {shown(spec)}, and no such file exists")


def _release(name: str, spec: str) -> str:
    """Return the tag of a JobSet or Kueue release, such as `v0.11.1`.

    Raises UsageError if the spec is not a version.
    """
    if (match := _RELEASE.fullmatch(spec.strip())) is None:
        raise UsageError(f"--replace {name}: expected a version such as v0.11.1, found {shown(spec)}")
    return f"v{match['version']}"


def controller_version(name: str, specs: Mapping[str, str]) -> str | None:
    """Return the release tag of the version that replaces JobSet or Kueue, or None if the user does not
    replace it."""
    return parse(name, specs[name]).versions if name in specs else None


def _versions(spec: str) -> str | None:
    try:
        return f"=={Version(spec)}"
    except InvalidVersion:
        pass
    try:
        return str(SpecifierSet(spec)) or None
    except InvalidSpecifier:
        return None


def _of_day(specifier: str) -> str:
    """Return a version specifier.

    A date at its end, such as dev20261001, is replaced by a range that covers all builds of that day.
    """
    operator = next(iter(re.findall(r"^(?:[=<>]=|[<>])", specifier)), "")
    day = _DAY.fullmatch(specifier.removeprefix(operator))
    return specifier if day is None or not operator else _OF_DAY[operator].format(day[0])


def _git(package: str, spec: str) -> Replacement:
    match = _GIT.fullmatch(spec)
    if match is None:
        raise UsageError(
            f"--replace {package}: expected git+file:///PATH@REF, found {shown(spec)}",
            hint="REF is a branch, tag or commit, and can be followed by #subdirectory=FOLDER. To use a "
            "remote "
            "repository, clone it first",
        )
    path = Path(match["path"])
    if not path.is_dir():
        raise UsageError(f"--replace {package}: the repository {path} does not exist")
    path /= (match["subdirectory"] or "").lstrip("/")
    return Replacement(package, spec, "git", path=path, ref=match["ref"])
