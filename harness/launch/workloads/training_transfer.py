"""Upload a run to S3 after a training (`--upload`), or restore a run before a training (`--resume-from`).

A helper pod with the ranks' volumes does the transfer (harness/workers/training/transfer.py). The S3 keys
come from the environment or from the user's Secret. They are copied into a Secret in the launch's namespace.
Only the helper pod reads this Secret, which is deleted after the transfer.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Literal
from urllib.parse import urlsplit

from kubernetes.client.exceptions import ApiException
from urllib3.exceptions import HTTPError

from harness.core.errors import HarnessError, UsageError
from harness.core.kubernetes import Kube
from harness.core.progress import Progress
from harness.evidence.schema.training import TRANSFER_SECRET
from harness.launch.apply import apply
from harness.launch.user_secrets import HF_TOKEN, UserSecret
from harness.launch.workloads import training_pod
from harness.launch.workloads.base import Surroundings
from harness.launch.workloads.training_pod import Program, Volumes
from harness.workers.training import transfer
from harness.workers.training.object_store import (
    KEY_ID,
    PLACE,
    SECRET_KEY,
    VARIABLES,
    Bucket,
    Failed,
    located,
)

START_SECONDS = 240.0
SECONDS = 6 * 3600.0
"""The timeout for a transfer, in seconds. A transfer whose connection stalls fails much earlier."""
Keys = Mapping[str, str]
"""Maps the names of environment variables that AWS tools read to their values. Some values are secret."""
Option = Literal["--upload", "--resume-from"]


def source_of(secrets: Iterable[UserSecret]) -> UserSecret | None:
    """Return the user's Secret with the S3 keys, or None. The ranks do not get this Secret."""
    needed = {KEY_ID, SECRET_KEY}
    return next((one for one in secrets if one.name != HF_TOKEN and needed <= one.data.keys()), None)


def keys_of(
    secrets: Iterable[UserSecret], option: Option, environment: Mapping[str, str] = os.environ
) -> Keys:
    """Return the S3 keys for a transfer, from the user's Secret or the environment. Raises UsageError."""
    secret = source_of(secrets)
    if secret is None:
        keys = {name: environment[name] for name in VARIABLES if environment.get(name)}
        if missing := [name for name in (KEY_ID, SECRET_KEY) if name not in keys]:
            raise UsageError(
                f"{option} needs S3 keys: expected {KEY_ID} and {SECRET_KEY} in the environment or in a "
                f"Secret, but {' and '.join(missing)} {'are' if missing[1:] else 'is'} not set",
                hint="export both variables, or use --secret NAME with a Secret that contains both",
            )
        return keys
    place = {name: environment[name] for name in PLACE if environment.get(name)}
    values = {
        name: base64.b64decode(value).decode(errors="replace").strip() for name, value in secret.data.items()
    }
    if any(values.get(name) for name in PLACE):
        place = {}  # The endpoint or region in the Secret takes precedence over the environment.
    return {**place, **{name: values[name] for name in VARIABLES if values.get(name)}}


def credentials(keys: Keys) -> list[str]:
    """Return the values that the redactor must remove, which are all values except the endpoint and the
    region (PLACE)."""
    return [value for name, value in keys.items() if name not in PLACE]


def check(option: Option, url: str, keys: Keys) -> None:
    """Raise UsageError if this machine cannot use the bucket. No object is written to the bucket.

    For --upload, a multipart upload is started and aborted, to check that the keys permit writing. For
    --resume-from, the prefix must contain a checkpoint whose objects have the sizes in its manifest.
    """
    name, prefix = located(url)
    bucket = Bucket(name, keys, tries=2)
    end = urlsplit(bucket.endpoint)
    if end.scheme not in ("http", "https") or not end.hostname:
        raise UsageError(f"AWS_ENDPOINT_URL: expected the URL of an S3 server, found {bucket.endpoint!r}")
    problems: list[str] = []
    try:
        list(bucket.items(f"{prefix}/", most=1))
        if option == "--upload":
            bucket.prove_writable(f"{prefix}/{transfer.OWNER}")
        elif not any(True for _ in transfer.stored(bucket, prefix, problems.append)):
            raise UsageError(
                f"--resume-from {url}: expected a prefix with a complete checkpoint, but it has none"
                + f" ({'; '.join(problems)})" * bool(problems),
                hint="use the same prefix as in `harness train --upload`, after that upload has finished",
            )
    except Failed as error:
        raise UsageError(f"{option} {url}: {_reason(error, bucket)}", hint=_hint(error)) from None


def _reason(error: Failed, bucket: Bucket) -> str:
    if error.code == "NoSuchBucket" or error.status == 404:
        return f"there is no bucket {bucket.name} at {bucket.endpoint}"
    if error.status in (401, 403):
        return f"{bucket.endpoint} rejects these keys with HTTP {error.status} {error.code}"
    if error.status:
        return f"{bucket.endpoint} responds with HTTP {error.status} {error.code}"
    return f"{bucket.endpoint} cannot be reached from this machine: {error}"


def _hint(error: Failed) -> str:
    if error.status in (401, 403):
        return "use keys that are allowed to list the bucket, and to read and write below the prefix"
    return "check AWS_ENDPOINT_URL and AWS_REGION, which determine where the bucket is"


def upload(
    run: str, url: str, keys: Keys, volumes: Volumes, surroundings: Surroundings, progress: Progress
) -> str:
    """Upload the run of a finished training job. Return the pod's JSON document, with `error` after a
    failure."""
    progress(f"uploading the run to {url}")
    document = _transferred("up", run, url, keys, volumes, surroundings, progress)
    result = json.loads(document)
    if error := result.get("error"):
        progress(f"the run was not uploaded: {error}")
    else:
        names = [one["name"] for one in result["checkpoints"]]
        progress(f"uploaded and verified at {url}: {', '.join(names)}; best is {result['best']}")
    return document


def restore(
    run: str, url: str, keys: Keys, volumes: Volumes, surroundings: Surroundings, progress: Progress
) -> str:
    """Restore a run before its training. Return the pod's JSON document.

    Raises HarnessError (cause training.resume_from_failed).
    """
    progress(f"restoring the run from {url}")
    document = _transferred("down", run, url, keys, volumes, surroundings, progress)
    result = json.loads(document)
    if error := result.get("error"):
        raise HarnessError(f"--resume-from {url}: {error}", cause="training.resume_from_failed")
    for text in result["torn"]:
        progress(f"{url}: {text}; this checkpoint is not used")
    return document


def _transferred(
    direction: Literal["up", "down"],
    run: str,
    url: str,
    keys: Keys,
    volumes: Volumes,
    surroundings: Surroundings,
    progress: Progress,
) -> str:
    name = "training-upload" if direction == "up" else "training-resume"
    words = ("python3", "-m", "training.transfer", direction, "--run-dir", f"/out/{run}", "--url", url)
    awaited = "the upload of the run" if direction == "up" else "the restored run"
    program = Program(name, words, awaited, START_SECONDS, SECONDS, direction == "down", TRANSFER_SECRET)
    try:
        apply(surroundings.kube, UserSecret(TRANSFER_SECRET, _encoded(keys)).copy(surroundings.namespace))
        return training_pod.printed(program, volumes, surroundings, progress)
    except HarnessError as error:
        return json.dumps({"error": error.message}) + "\n"
    finally:
        _forget(surroundings.kube, name, surroundings.namespace)


def _encoded(keys: Keys) -> dict[str, str]:
    return {name: base64.b64encode(value.encode()).decode() for name, value in keys.items()}


def _forget(kube: Kube, pod: str, namespace: str) -> None:
    """Delete the Secret with the S3 keys, and the pod. Errors are ignored, because both are deleted with the
    namespace anyway."""
    for kind, name in (("Secret", TRANSFER_SECRET), ("Pod", pod)):
        with suppress(ApiException, HTTPError, HarnessError):
            kube.delete("v1", kind, name, namespace)
