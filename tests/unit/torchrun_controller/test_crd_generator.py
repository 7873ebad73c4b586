"""The CRDs are what the models say, in the form that the API server accepts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel

from harness.torchrun_controller.api import crd_generator
from harness.torchrun_controller.api.models import JobSpec, QueueSpec

ROOT = Path(__file__).parents[3]
QUEUE, JOB = crd_generator.definitions()


def schema(definition: dict[str, Any]) -> dict[str, Any]:
    return dict(definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"])


def walk(found: Any) -> Iterator[dict[str, Any]]:
    if isinstance(found, dict):
        yield found
        for value in found.values():
            yield from walk(value)
    elif isinstance(found, list):
        for value in found:
            yield from walk(value)


def test_manifest_is_of_these_models() -> None:
    """Contract: the file that users apply is the models' schema, not an older one."""
    assert (ROOT / "manifests/torchrun-controller/crds.yaml").read_text() == crd_generator.text()


@pytest.mark.parametrize("definition", [QUEUE, JOB], ids=["queue", "job"])
def test_crd_schemas_are_structural(definition: dict[str, Any]) -> None:
    """Contract: nothing that the API server refuses: references, null, additionalProperties."""
    for part in walk(schema(definition)):
        assert "$ref" not in part
        assert part.get("type") != "null"
        assert not {"properties", "additionalProperties"} <= part.keys()
        assert "title" not in part or isinstance(part["title"], dict)


def defaults(found: dict[str, Any]) -> Any:
    """Return what the API server makes of an empty object: it fills defaults from the outside in."""
    return {
        name: defaults(part) if part.get("default") == {} else part["default"]
        for name, part in found.get("properties", {}).items()
        if "default" in part
    }


def test_defaults_where_the_parent_is_left_out() -> None:
    """Contract: reliability that is not there has its defaults (in the original it had none)."""
    filled = defaults(schema(JOB)["properties"]["spec"])
    assert filled["reliability"] == {
        "maxRestarts": 3,
        "restartPolicy": "OnFailure",
        "ttlSecondsAfterFinished": 3600,
    }
    written = {"jobQueue": "q", "command": "python train.py"}
    assert JobSpec.model_validate({**filled, **written}) == JobSpec.model_validate(written)


def test_defaults_of_a_queue_are_the_models() -> None:
    """Contract: what the API server fills in and what the model fills in are the same queue."""
    filled = defaults(schema(QUEUE)["properties"]["spec"])
    assert QueueSpec.model_validate(filled) == QueueSpec()


def test_optional_parts_stay_absent() -> None:
    """Contract: a job that names no workspace gets none by default."""
    assert "workspaceStorage" not in defaults(schema(JOB)["properties"]["spec"])


def test_every_phase_that_is_written_is_in_the_enum() -> None:
    """Contract: `Queued` is a phase of the CRD (in the original its status update was rejected)."""
    phases = schema(JOB)["properties"]["status"]["properties"]["phase"]["enum"]
    assert {"Queued", "Pending", "Running", "Preempted", "TimedOut"} <= set(phases)


def test_names_and_columns() -> None:
    """Contract: trq, trj and tj; columns show what the controller found, not what was asked."""
    assert QUEUE["spec"]["names"]["shortNames"] == ["trq"]
    assert JOB["spec"]["names"]["shortNames"] == ["trj", "tj"]
    columns = {c["name"]: c["jsonPath"] for c in JOB["spec"]["versions"][0]["additionalPrinterColumns"]}
    assert columns["Phase"] == ".status.phase"
    assert columns["Nodes"] == ".status.numNodes"
    assert columns["Queue"] == ".status.queue"  # jobQueue or queue, whichever the job says


def test_status_is_a_subresource_with_generation_and_conditions() -> None:
    """Contract: a change of status is no change of the spec; both kinds say which generation they saw."""
    for definition in (QUEUE, JOB):
        assert definition["spec"]["versions"][0]["subresources"]["status"] == {}
        status = schema(definition)["properties"]["status"]["properties"]
        assert {"observedGeneration", "conditions"} <= status.keys()


def test_readme_examples_are_valid() -> None:
    """Contract: the YAML of the original's README is accepted by the models as it is written."""
    examples = Path(__file__).parent / "readme.yaml"
    kinds: dict[str, type[BaseModel]] = {"TorchrunQueue": QueueSpec, "TorchrunJob": JobSpec}
    found = list(yaml.safe_load_all(examples.read_text()))
    assert len(found) == 6
    for document in found:
        kinds[document["kind"]].model_validate(document["spec"])
