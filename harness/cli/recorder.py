"""`harness recorder`: record pods from other launchers through an admission policy in the cluster."""

from dataclasses import asdict
from typing import Annotated

import typer

from harness.cli import options
from harness.cli.options import dump

recorder_app = typer.Typer(
    help="Record what pods from other launchers log, without changing their jobs.", no_args_is_help=True
)
Namespaces = Annotated[
    list[str] | None,
    typer.Option(
        "--namespace",
        "-n",
        help="a namespace that gets the recorder's files (default: all labelled namespaces)",
    ),
]


@recorder_app.command()
def install(
    namespace: Namespaces = None,
    kubeconfig: options.Kubeconfig = None,
    context: options.Context = None,
) -> int:
    """Install the admission policy, and the recorder's files in namespaces.

    A pod is recorded if it has the label `pluto-e2e-harness/record: "true"`, or if
    its namespace has this label. A pod with the value "false" is not recorded.
    Pods that are already running are not changed. The command requires the
    permissions of a cluster administrator.
    """
    from harness.cli.torchrun.jobs import cluster
    from harness.launch import recorder_admission as admission
    from harness.launch.recorder_policy import RECORD

    kube = cluster(kubeconfig, context)
    namespaces = admission.install(kube, namespace or ())
    print("The policy is installed.")
    print(f"Namespaces with the recorder's files: {', '.join(namespaces) or 'none'}")
    if not namespaces:
        print(f"  → kubectl label namespace NAME {RECORD}=true && harness recorder install")
    for name in namespace or ():
        labels = (kube.get("v1", "Namespace", name) or {}).get("metadata", {}).get("labels") or {}
        if labels.get(RECORD) != "true":
            print(f"  → record all of its new pods: kubectl label namespace {name} {RECORD}=true")
    return 0


@recorder_app.command()
def status(
    kubeconfig: options.Kubeconfig = None,
    context: options.Context = None,
    as_json: options.Json = False,
) -> int:
    """List namespaces without the recorder's files, and pods that are not recorded, each with the reason.

    The exit code is 0 if every pod that requests the recorder has it, and 1 otherwise.
    """
    from harness.cli.torchrun.jobs import cluster
    from harness.launch import recorder_admission as admission

    recorder_status = admission.status(cluster(kubeconfig, context))
    if as_json:
        dump({**asdict(recorder_status), "complete": recorder_status.complete})
        return 0 if recorder_status.complete else 1
    print(
        "policy: installed"
        if recorder_status.installed
        else "policy: not installed → harness recorder install"
    )
    print(f"files in: {', '.join(recorder_status.with_files) or 'no namespace'}")
    for name in recorder_status.outdated:
        print(f"files of another version in {name} → harness recorder install --namespace {name}")
    for name in recorder_status.without_files:
        print(f"no files in {name}: its pods start unrecorded → harness recorder install --namespace {name}")
    print(f"containers with the recorder: {recorder_status.recorded}")
    for each in recorder_status.unrecorded:
        print(f"not recorded: {each.namespace}/{each.pod} container {each.container}: {each.why}")
    return 0 if recorder_status.complete else 1


@recorder_app.command()
def uninstall(kubeconfig: options.Kubeconfig = None, context: options.Context = None) -> int:
    """Delete the policy, its bindings and the recorder's files. Running pods are not changed."""
    from harness.cli.torchrun.jobs import cluster
    from harness.launch import recorder_admission as admission

    deleted_objects = admission.uninstall(cluster(kubeconfig, context))
    print("\n".join(f"deleted {each}" for each in deleted_objects) or "The recorder was not installed.")
    return 0


@recorder_app.command("print")
def print_(
    namespace: Namespaces = None,
    pod: Annotated[
        bool,
        typer.Option(
            "--pod", help="print the fields that a pod template needs on a cluster without the policy"
        ),
    ] = False,
) -> int:
    """Print the manifests that `install` applies, with the files for each --namespace."""
    import yaml

    from harness.launch import recorder_policy as policy

    files = [policy.config_map(name) for name in namespace or ()]
    manifests = [policy.snippet()] if pod else policy.documents()
    print(yaml.safe_dump_all([*files, *manifests], sort_keys=False), end="")
    return 0
