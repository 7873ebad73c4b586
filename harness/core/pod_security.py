"""The security contexts for the harness's own pods, and the namespace labels for Pod Security admission.

The pods comply with the "restricted" Pod Security Standard: they run as a non-root user, with the container
runtime's seccomp profile, without capabilities, and with a read-only root filesystem where their image
permits it. `harden` sets these values only as defaults. It never changes a field that the user's `--pod` file
sets.
"""

from __future__ import annotations

from typing import Any, Final, Literal

Object = dict[str, Any]
Standard = Literal["privileged", "baseline", "restricted"]
"""The levels of the Pod Security Standards."""
ENFORCE: Final = "pod-security.kubernetes.io/enforce"
"""The namespace label that selects the Pod Security Standard to enforce."""
RESTRICTED: Final = {ENFORCE: "restricted"}
USER: Final = 65532
"""The user ID and group ID with which the harness's own pods run."""
TMP: Final = "/tmp"  # noqa: S108 - in a container
_FILES_OF_OTHERS: Final = ["CHOWN", "DAC_OVERRIDE", "FOWNER"]
"""The capabilities that allow root to read and write other users' files. The "baseline" Pod Security Standard
permits them."""
_SECCOMP: Final = {"type": "RuntimeDefault"}


def pod_context(*, fs_group: bool = False) -> Object:
    """Return the securityContext for a pod that runs one of the harness's own images."""
    group = {"fsGroup": USER} if fs_group else {}
    return {"runAsNonRoot": True, "runAsUser": USER, **group, "seccompProfile": dict(_SECCOMP)}


def container_context() -> Object:
    """Return the securityContext for a container that writes only to its volumes."""
    return {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def harden(spec: Object, *, root: bool = False, read_only: bool = True, fs_group: bool = False) -> None:
    """Set security defaults in a pod spec and its first container.

    Other containers are the user's and are not changed. With `root`, the container runs as the image's user
    and keeps the capabilities that allow root to use other users' files. With `read_only`, its root
    filesystem is read-only, and /tmp is a writable volume. With `fs_group`, the volumes belong to the pod's
    group. Use `fs_group` only if all volumes were created for this launch, because Kubernetes changes the
    group of all files on them.
    """
    container = spec["containers"][0]
    own = dict(container.get("securityContext") or {})
    effective = {**(spec.get("securityContext") or {}), **own}
    # Kubernetes grants added capabilities only to root.
    root = root or bool(own.get("privileged")) or bool((own.get("capabilities") or {}).get("add"))
    has_user = "runAsUser" in effective or "runAsNonRoot" in effective
    if not has_user and not root:
        own |= {"runAsNonRoot": True, "runAsUser": USER, "runAsGroup": effective.get("runAsGroup", USER)}
        if fs_group and "fsGroup" not in effective:
            policy = {"fsGroup": USER, "fsGroupChangePolicy": "OnRootMismatch"}
            spec["securityContext"] = {**(spec.get("securityContext") or {}), **policy}
    elif effective.get("runAsUser"):
        own.setdefault("runAsNonRoot", effective.get("runAsNonRoot", True))
    if not own.get("privileged"):
        _confine(own, effective)
    if read_only:
        own.setdefault("readOnlyRootFilesystem", True)
    container["securityContext"] = own
    _make_writable(spec, container)
    if not spec.get("serviceAccountName"):  # If the user chose a service account, its token must be mounted.
        spec.setdefault("automountServiceAccountToken", False)


def _confine(own: Object, effective: Object) -> None:
    """Set the security defaults of an unprivileged container: seccomp profile, capabilities and privilege
    escalation."""
    if "seccompProfile" not in effective:
        own["seccompProfile"] = dict(_SECCOMP)
    non_root = own.get("runAsNonRoot") or effective.get("runAsNonRoot")
    own.setdefault("capabilities", {"drop": ["ALL"], **({} if non_root else {"add": [*_FILES_OF_OTHERS]})})
    # With SYS_ADMIN, the API server rejects allowPrivilegeEscalation: false.
    added = {str(name).removeprefix("CAP_") for name in own["capabilities"].get("add") or []}
    if "SYS_ADMIN" not in added:
        own.setdefault("allowPrivilegeEscalation", False)


def _make_writable(spec: Object, container: Object) -> None:
    """Give a container a writable /tmp and home directory, and a user name.

    The user ID is not in the image's /etc/passwd, and torch needs a user name for its cache directory.
    """
    context = {**(spec.get("securityContext") or {}), **container["securityContext"]}
    mounts = container.get("volumeMounts") or []
    if context.get("readOnlyRootFilesystem") and TMP not in {m["mountPath"].rstrip("/") for m in mounts}:
        volume_names = {volume["name"] for volume in spec.get("volumes") or []}
        name = next(name for name in ("tmp", "harness-tmp", "harness-tmp-2") if name not in volume_names)
        container["volumeMounts"] = [*mounts, {"name": name, "mountPath": TMP}]
        spec["volumes"] = [*(spec.get("volumes") or []), {"name": name, "emptyDir": {}}]
    defaults = {
        **({"HOME": TMP} if context.get("readOnlyRootFilesystem") or context.get("runAsUser") else {}),
        **({"USER": "harness"} if context.get("runAsUser") else {}),
    }
    env = container.get("env") or []
    names = {each["name"] for each in env}
    added = [{"name": name, "value": value} for name, value in defaults.items() if name not in names]
    if added:
        container["env"] = [*env, *added]
