"""Create a fault's job, by changing jobs/multinode.yaml, a manifest or the training options."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import yaml

from harness.core.errors import UsageError
from harness.faults import step_variables
from harness.faults.fault_file import Job, Train
from harness.launch.konduktor.job_file import JobFile
from harness.launch.workloads import acceptance

SCRIPT_OF_A_MANIFEST = ("spec", "template", "spec", "containers", "0", "args", "0")
ACCEPT_REPLICAS = 4
TRAINER = (
    "--width 32 --layers 1 --context 64 --batch 64 --micro-batch 16 --epochs 2 --save-every 12 --keep 20 "
    "--log-every 1"
)
"""The options for a training job with 64 steps, which are two epochs over the generated texts.

Checkpoints are written after steps 12, 24, 32, 36, 48, 60 and 64."""


def variant(job: JobFile, change: Job) -> str:
    """Return a fault's job file. Raises UsageError if a string that the fault replaces is not in the job."""
    if change.text is not None:
        return change.text
    if change.manifest is None:
        document = copy.deepcopy(job.document)
        _change(document, ["run"], change, job.source)
        return yaml.safe_dump(document, sort_keys=False)
    source, text = _manifest(change.manifest)
    documents = list(yaml.load_all(text, yaml.CSafeLoader))
    # The acceptance tests have several ConfigMaps, so these are identified by name instead of kind.
    objects = {_name(each) if each["kind"] == "ConfigMap" else each["kind"]: each for each in documents}
    if len(objects) != len(documents):
        raise UsageError(f"{source} has two objects of the same kind, so a path could refer to either")
    kind = next((kind for kind, each in objects.items() if "template" in each.get("spec", {})), None)
    _change(objects, [kind, *SCRIPT_OF_A_MANIFEST] if kind else None, change, source)
    return yaml.dump_all(objects.values(), Dumper=yaml.CSafeDumper, sort_keys=False)


def training(change: Train) -> list[str]:
    """Return the `harness train` arguments for training a small model on four pods for a few seconds."""
    words = ["train", "--kind", change.kind, f"--restarts={change.restarts}"]
    if change.defect is not None:
        words += ["--trainer", f"training.faulty {change.defect}"]
    return [*words, "--", *TRAINER.split(), *change.options]


def _manifest(name: str) -> tuple[str, str]:
    """Return the source and text of a manifest, which is a file or is generated for acceptance tests on CPUs.

    manifests/NAME is relative to the current folder, like jobs/multinode.yaml.

    The pods of acceptance tests also get files/wrong_torch.py, in a folder that Python uses only if a fault
    adds this folder to the path.
    """
    on_cpus = acceptance.AcceptanceSpec(device="cpu")
    if name not in ("accept-nodes", "accept-ddp"):
        source = Path(name) if name.startswith("manifests/") else step_variables.FILES / name
        return str(source), source.read_text()
    spec = acceptance.nodes(on_cpus) if name == "accept-nodes" else acceptance.ddp(on_cpus, ACCEPT_REPLICAS)
    documents = list(yaml.load_all(acceptance.manifests(spec), yaml.CSafeLoader))
    documents[0]["data"]["fault"] = (step_variables.FILES / "wrong_torch.py").read_text()
    volumes = documents[-1]["spec"]["template"]["spec"]["volumes"]
    parts = next(each["projected"]["sources"] for each in volumes if "projected" in each)
    files = next(part["configMap"] for part in parts if part["configMap"]["name"] == _name(documents[0]))
    files["items"].append({"key": "fault", "path": "fault/sitecustomize.py"})
    return name, yaml.dump_all(documents, Dumper=yaml.CSafeDumper)


def _name(document: Any) -> str:
    return str(document["metadata"]["name"])


def _change(document: Any, script_at: list[str] | None, change: Job, source: str) -> None:
    """Apply a fault's changes to a document in place.

    `script_at` is the path, in the document, of the shell script that the ranks run. None means that there is
    no script, as in a TorchrunJob, which has a command instead.
    """
    replace = dict(change.replace)
    if change.worker is not None:
        replace["/workspace/multinode.py"] = f"/workspace/{change.worker}"
    if script_at is not None:
        place, last = _place(document, script_at)
        script = place[last]
        for old, new in replace.items():
            if old not in script:
                raise UsageError(f"the run script of {source} does not contain the text to replace: {old!r}")
            script = script.replace(old, new)
        place[last] = change.before + script
    elif replace or change.before:
        raise UsageError(f"{source} has no run script; change its command with `set`")
    for path, value in change.set.items():
        place, last = _place(document, path.split("/"))
        if isinstance(place, list) and last == len(place):
            place.append(value)
        else:
            place[last] = value


def _place(document: Any, path: list[str]) -> tuple[Any, Any]:
    """Return the mapping or list that contains the value at a path, and the value's key or index in it."""
    place = document
    for parent in path[:-1]:
        place = place[int(parent)] if isinstance(place, list) else place.setdefault(parent, {})
    return place, int(path[-1]) if isinstance(place, list) else path[-1]
