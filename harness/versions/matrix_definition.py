"""Read the definition of a matrix from a YAML file and from command-line options.

job: jobs/multinode.yaml
vary:
  konduktor: [latest, ">=0.1.0.dev20261001"]
  pluto-ml: [locked, 0.0.28, ./checkout]
newest: 4                      # at most this many versions per range
each: false                    # launch every combination; true replaces one package at a time
repeat: 3
parallel: 2
exclude:
  - where: {konduktor: "<0.1.0.dev20261010", pluto-ml: 0.0.28}
    reason: "the launcher needs the newer client"
expect:
  - where: {pluto-ml: ./checkout}
    result: FAIL               # FAIL, UNKNOWN or not installable
    cause: unification.client_rewrote
    reason: "drops a point, issue 12"
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Final

from packaging.utils import canonicalize_name
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, field_validator

from harness.core.errors import UsageError
from harness.core.input_limits import listed, shown
from harness.core.replacements import CONTROLLERS, pairs, python_package
from harness.core.user_yaml import yaml_document
from harness.versions.cell import Result

MAX_CELLS: Final = 1_000
HINT: Final = "see docs/how-to/versions.md for the matrix file; use --job to name a job file"
Text = Annotated[str, StringConstraints(strict=True, min_length=1, strip_whitespace=True)]
"""A non-empty string. Numbers are rejected, because YAML reads 1.10 as 1.1."""
_OPERATORS: Final = ("<", ">", "=", "!", "~")


class Rule(BaseModel):
    """A rule for the cells that have a matching version of every package in `where`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    where: dict[str, Text] = Field(min_length=1)
    """Maps each package to a SPEC, as in `vary`, or to version specifiers."""
    reason: str = ""

    @field_validator("where")
    @classmethod
    def _normalized(cls, where: dict[str, str]) -> dict[str, str]:
        return {package_name(name): spec for name, spec in where.items()}

    @property
    def text(self) -> str:
        return ", ".join(f"{name} {spec}" for name, spec in self.where.items())


class Expectation(Rule):
    """A rule for cells that are not expected to pass."""

    result: Result = "FAIL"
    cause: str | None = None
    """The cause that is expected. None means any cause."""

    @field_validator("result")
    @classmethod
    def _no_pass(cls, result: Result) -> Result:
        if result == "PASS":
            raise ValueError(
                "expected a result other than PASS: cells without a rule are already expected to pass"
            )
        return result

    @property
    def outcome(self) -> str:
        return " ".join(filter(None, [self.result, self.cause]))


class Definition(BaseModel):
    """The definition of a matrix: the job, the versions to combine, and the rules for its cells."""

    model_config = ConfigDict(extra="forbid")

    job: Path = Path("jobs/multinode.yaml")
    vary: dict[str, Annotated[list[Text], Field(min_length=1)]] = {}
    newest: int | None = Field(None, ge=1)
    each: bool = False
    repeat: int = Field(1, ge=1, le=100)
    parallel: int = Field(2, ge=1, le=8)
    exclude: list[Rule] = []
    expect: list[Expectation] = []

    @field_validator("vary")
    @classmethod
    def _normalize_names(cls, vary: dict[str, list[str]]) -> dict[str, list[str]]:
        return {package_name(name): specs for name, specs in vary.items()}


def package_name(name: str) -> str:
    """Return the normalized name of a package or controller. Raises ValueError if it cannot be replaced."""
    if (controller := str(canonicalize_name(name))) in CONTROLLERS:
        return controller
    try:
        return python_package(name)
    except UsageError as error:
        raise ValueError(f"{error.message}: {error.hint}" if error.hint else error.message) from None


def read(
    file: Path | None, vary: Iterable[str], lists: Mapping[str, Iterable[str]], **changes: object
) -> Definition:
    """Return the definition in a file, overridden by the options that are not None.

    `vary` contains strings of the form NAME=SPEC,SPEC. `lists` maps package names to lists of SPECs. Both
    replace the package's versions in the file. Raises UsageError if the definition is not valid.
    """
    document = {} if file is None else yaml_document(file, "matrix file", hint=HINT) or {}
    source = "matrix options" if file is None else f"matrix file {file}"
    if not isinstance(document, dict):
        raise UsageError(f"{source}: expected a mapping, found {shown(document)}", hint=HINT)
    try:
        definition = Definition.model_validate(document)
        all_specs = {**definition.vary, **_option_specs(vary, lists)}
        overrides = {name: value for name, value in changes.items() if value is not None}
        definition = Definition.model_validate(definition.model_dump() | overrides | {"vary": all_specs})
    except ValidationError as error:
        problems = [f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors()]
        raise UsageError(f"{source}: {listed(problems)}", hint=HINT) from None
    except ValueError as error:
        raise UsageError(f"{source}: {error}") from None
    if not definition.vary:
        raise UsageError(
            f"{source}: expected the versions of at least one package, found none",
            hint="add --konduktor SPEC,…, --pluto-ml SPEC,… or --vary NAME=SPEC,…, or add `vary` to the "
            "matrix file",
        )
    for rule in (*definition.exclude, *definition.expect):
        if unknown_packages := sorted(set(rule.where) - set(definition.vary)):
            raise UsageError(
                f"{source}: a rule names packages that the matrix does not vary: "
                f"{', '.join(unknown_packages)}"
            )
    return definition


def _option_specs(vary: Iterable[str], lists: Mapping[str, Iterable[str]]) -> dict[str, list[str]]:
    specs_by_package: dict[str, list[str]] = {}
    texts = [(name, specs) for name, all_ in lists.items() for specs in all_]
    for name, specs in [*texts, *(pair for text in vary for pair in pairs([text], "--vary").items())]:
        specs_by_package.setdefault(package_name(name), []).extend(split(specs))
    return specs_by_package


def split(specs: str) -> list[str]:
    """Return the SPECs in a comma-separated list.

    A comma between two comparisons is part of a range, as in PEP 440, so `latest,>=1,<2` contains two SPECs.
    """
    result: list[str] = []
    for part in (part.strip() for part in specs.split(",")):
        if result and part.startswith(_OPERATORS) and result[-1].startswith(_OPERATORS):
            result[-1] += f",{part}"
        elif part:
            result.append(part)
    return result
