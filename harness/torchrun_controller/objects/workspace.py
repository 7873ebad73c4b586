"""Build the init container that fetches a job's code, or waits for its upload, before the ranks start."""

from __future__ import annotations

from harness.core.kubernetes import Object
from harness.torchrun_controller.api import names
from harness.torchrun_controller.api.models import WorkspaceStorage
from harness.torchrun_controller.objects import command, job_volumes
from harness.torchrun_sync.pod_script import init_command, s3_fetch
from harness.torchrun_sync.pods import CONTROL, STORE, WAITING

READY = ".torchrun/ready"
"""A file in the workspace that contains the commit or digest of the code. It is written last, so its
existence shows that the code is complete."""
WORKSPACE_SECONDS = 600
PARTS_VOLUME = "workspace-kept"
PARTS_FOLDER = "/torchrun-kept"
"""The name of the volume with the Secrets that store a job's code (PARTS_VOLUME), and its mount path in the
init container (PARTS_FOLDER)."""

SHARED = f"""
if [ "$SHARED" = true ] && [ "$JOB_COMPLETION_INDEX" != 0 ]; then
  waited=0
  until [ -f {READY} ]; do
    if [ $waited -ge {WORKSPACE_SECONDS} ]; then
      echo "workspace: expected the pod of node 0 to bring it within {WORKSPACE_SECONDS} s" >&2; exit 1
    fi
    sleep 1; waited=$((waited + 1))
  done
fi
"""
"""Shell lines for pods that share one volume: only node 0 fetches the code, and the other nodes wait for
it."""
PROXIES = ("http_proxy", "https_proxy", "no_proxy", "all_proxy")
"""The variables, in lower case, with which git finds a proxy."""
CODE_RESOURCES = ("cpu", "memory", "ephemeral-storage")
"""The resources that the init container requests. Other resources, such as GPUs, are only for the ranks."""
GIT = f"""set -e
if ! command -v git >/dev/null; then
  echo "workspace: this image has no git; name one that has in workspaceStorage.image" >&2; exit 1
fi
mkdir -p .torchrun
{SHARED}
if [ ! -f {READY} ]; then
  # The password is only for the server in URL, and not for the target of a redirect or a server that the
  # repository's .lfsconfig names.
  server=${{URL#*://}}; server=${{server%%/*}}; server=${{URL%%://*}}://${{server##*@}}
  helper='!f() {{ echo "username=$GIT_USERNAME"; echo "password=$GIT_PASSWORD"; }}; f'
  fetch() {{
    timeout {WORKSPACE_SECONDS} git -c safe.directory='*' -c credential.helper= \\
      -c "credential.$server.helper=$helper" "$@"
  }}
  export GIT_TERMINAL_PROMPT=0
  fetch init -q .
  if fetch fetch -q --depth 1 -- "$URL" "$REF" 2>/tmp/git; then
    fetch checkout -q --force --detach FETCH_HEAD
  else
    # REF is an abbreviated commit, or the server serves only branches and tags.
    fetch fetch -q -- "$URL" '+refs/heads/*:refs/remotes/origin/*' '+refs/tags/*:refs/tags/*' &&
      fetch checkout -q --force --detach "$REF" 2>/dev/null || {{ cat /tmp/git >&2; exit 1; }}
  fi
  fetch rev-parse HEAD >{READY}.new && mv {READY}.new {READY}
fi
cat {READY} | tee /dev/termination-log
"""
S3 = f"""set -e
{SHARED}
"$@" >/tmp/s3
tee /dev/termination-log </tmp/s3
"""


def parts_of(annotations: Object) -> int | None:
    """Return the number of Secrets that store a job's code, or None if the user's upload has not finished."""
    count = str(annotations.get(names.PARTS_ANNOTATION, "0"))
    return min(int(count), names.MAX_PARTS) if count.isdecimal() else None


def parts_volume(job: str, parts: int) -> Object:
    """Return the volume with the Secrets that store a job's code.

    Pods start even if some Secrets do not exist yet.
    """
    mount_count = min(parts + names.SPARE_PARTS, names.MAX_PARTS)
    secrets = [
        {
            "name": names.workspace_part(job, index),
            "optional": True,
            "items": [{"key": names.PART_KEY, "path": str(index)}],
        }
        for index in range(mount_count)
    ]
    return {"name": PARTS_VOLUME, "projected": {"sources": [{"secret": each} for each in secrets]}}


def container(
    requested: WorkspaceStorage | None,
    job: str,
    digest: str | None,
    parts: int,
    code: job_volumes.Volume | None,
    trainer: Object,
    *,
    fs_group: bool,
) -> Object | None:
    """Return the init container that fetches the code or waits for the sync, or None if none is needed.

    `parts` is the number of Secrets that store the uploaded code. `fs_group` is true if the pod's volumes
    belong to a group of its own. The container's termination message is the
    code's commit or digest, which must be the same in all pods.
    """
    if code is None:
        return None
    shared = {"name": "SHARED", "value": "true" if "persistentVolumeClaim" in code.source else "false"}
    source = requested.source if requested else "zip"
    if requested and source == "git":
        words = ["bash", "-c", GIT]
        values = [
            shared,
            {"name": "URL", "value": requested.url},
            {"name": "REF", "value": requested.ref or "HEAD"},
        ]
    elif requested and source == "s3":
        fetch_arguments = s3_fetch(str(requested.url), code.path, READY, WORKSPACE_SECONDS)
        words, values = ["bash", "-c", S3, "s3", *fetch_arguments], [shared]
    elif digest:
        store = f"{code.path.rstrip('/')}/{STORE}"
        server = (
            f"{names.archive_server(job)}-0.{names.archive_server(job)}:{names.ARCHIVE_PORT}"
            if code.used_by_archive_pod
            else ""
        )
        words, values = init_command(PARTS_FOLDER, server, store, CONTROL, digest, WORKSPACE_SECONDS), []
    else:
        return None
    secret = requested.secret_name if requested else None
    mounts: list[Object] = [{"name": code.name, "mountPath": code.path}]
    if digest and parts:
        mounts.append({"name": PARTS_VOLUME, "mountPath": PARTS_FOLDER, "readOnly": True})
    return {
        "name": WAITING,
        "image": (requested and requested.image) or trainer["image"],
        "imagePullPolicy": requested.image_pull_policy if requested else trainer["imagePullPolicy"],
        "command": command.verbatim(words),
        "workingDir": code.path,
        "env": [*values, *_proxies(trainer)] if source == "git" else values,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        **({"envFrom": [{"secretRef": {"name": secret}}]} if secret else {}),
        "volumeMounts": mounts,
        **_resources(trainer),
        **_security_context(
            trainer,
            has_own_image=bool(requested and requested.image),
            may_belong_to_root="persistentVolumeClaim" in code.source and not fs_group,
        ),
    }


def _proxies(trainer: Object) -> list[Object]:
    """Return the trainer's variables that name proxies. Without them, git would wait for a connection that a
    firewall drops."""
    return [each for each in trainer.get("env") or [] if each["name"].lower() in PROXIES]


def _resources(trainer: Object) -> Object:
    """Return the trainer's CPU, memory and disk space as the resources of the init container.

    A ResourceQuota rejects a pod with a container that has no requests or limits, and such a container also
    costs the pod its QoS class Guaranteed. The pod needs no more than before, because the init container ends
    before the trainer starts.
    """
    amounts = {
        kind: {name: amount for name, amount in (values or {}).items() if name in CODE_RESOURCES}
        for kind, values in (trainer.get("resources") or {}).items()
        if kind in ("requests", "limits")
    }
    given = {kind: values for kind, values in amounts.items() if values}
    return {"resources": given} if given else {}


def _security_context(trainer: Object, *, has_own_image: bool, may_belong_to_root: bool) -> Object:
    """Return the trainer's security context for the init container, without additional privileges.

    The trainer could not read the code, nor receive new code, if another user had written it. The Pod
    Security Standard "restricted" also applies to init containers. There are three exceptions:
    - The root filesystem is writable, because git and S3 downloads use /tmp.
    - `runAsNonRoot` without a user is a statement about the trainer's image, not about another image.
    - If the volume may belong to root, the image's user stays, because another user could not write to it.
    """
    context = dict(trainer.get("securityContext") or {})
    if has_own_image and "runAsUser" not in context:
        context.pop("runAsNonRoot", None)
    if may_belong_to_root:
        context = {name: value for name, value in context.items() if not name.startswith("runAs")}
    for field in ("privileged", "procMount", "readOnlyRootFilesystem"):
        context.pop(field, None)
    if "capabilities" in context:
        dropped = (context["capabilities"] or {}).get("drop")
        context["capabilities"] = {"drop": dropped} if dropped else {}
    return {"securityContext": context} if context else {}
