"""Commands for a cluster: create, pause, resume, delete and inspect it."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harness.cli import options
from harness.cli.options import dump, progress
from harness.cli.stdout import reader_closed
from harness.cli.view.lazy import load, opened, run_context

if TYPE_CHECKING:
    from harness.provision.kind.cluster import KindCluster


def up(
    cluster_name: options.ClusterName = None,
    workers: options.Workers = None,
    kubernetes: options.Kubernetes = None,
    images: options.Images = None,
    logs: Annotated[
        bool | None,
        typer.Option(
            "--logs", help="also start VictoriaLogs, which `konduktor logs` needs (env: HARNESS_LOGS)"
        ),
    ] = None,
    fresh: options.Fresh = None,
    runs_dir: options.RunsDir = None,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
) -> int:
    """Create a cluster or reuse an existing one, wait until it is ready, and keep it.

    The next run then does not need to install or build anything.
    """
    from harness import run as running
    from harness.cli import cluster_status

    settings = load(
        cluster_name=cluster_name,
        workers=workers,
        kubernetes=kubernetes,
        images=images,
        logs=logs,
        fresh=fresh,
        runs_dir=runs_dir,
    )
    with running.cluster(run_context(settings, progress(quiet))) as ready:
        ready.kind.keep()
        if as_json:
            dump(cluster_status.status(settings).document())
        else:
            print(f"cluster {ready.kind.name} is ready")
            print(f"  export KUBECONFIG={ready.kind.kubeconfig}\n  harness run JOB")
    return 0


def down(
    cluster_name: options.ClusterName = None, quiet: options.Quiet = False, as_json: options.Json = False
) -> int:
    """Delete the cluster that the harness created. Other clusters are not deleted."""
    kind = _kind(cluster_name)
    return _report(
        kind.name,
        kind.down(progress(quiet)),
        as_json,
        ("removed", "not removed, because the harness did not create it or it does not exist"),
    )


def pause(
    cluster_name: options.ClusterName = None, quiet: options.Quiet = False, as_json: options.Json = False
) -> int:
    """Stop the cluster's nodes and keep their contents. `harness resume` or the next run restarts them."""
    kind = _kind(cluster_name)
    return _report(kind.name, kind.pause(progress(quiet)), as_json, ("paused", "was paused already"))


def resume(
    cluster_name: options.ClusterName = None, quiet: options.Quiet = False, as_json: options.Json = False
) -> int:
    """Start a paused cluster and wait until all of its components are ready again."""
    kind = _kind(cluster_name)
    changed = kind.resume(progress(quiet))
    return _report(kind.name, changed, as_json, ("resumed, and ready again", "was not paused"))


def _kind(name: str | None) -> "KindCluster":
    from harness.provision.kind.cluster import KindCluster

    return KindCluster(load(cluster_name=name))


def _report(cluster: str, changed: bool, as_json: bool, texts: tuple[str, str]) -> int:
    """Print whether a command changed the cluster.

    `texts` contains the message to print after a change, and the message to print if nothing changed. The
    JSON field is named after the first message, or after the part of it that precedes a comma.
    """
    if as_json:
        dump({"cluster": cluster, texts[0].partition(",")[0]: changed})
    else:
        print(f"cluster {cluster}: {texts[0] if changed else texts[1]}")
    return 0


def status(cluster_name: options.ClusterName = None, as_json: options.Json = False) -> int:
    """Show a cluster with its nodes, controllers, queues and launches, and the disk space in use.

    For a waiting launch, the reason is shown. The exit code is 0 if the cluster
    can be used, and 2 if it does not exist, is paused or is not healthy.
    """
    from harness.cli import cluster_status

    report = cluster_status.status(load(cluster_name=cluster_name))
    dump(report.document()) if as_json else print(report.text())
    return 0 if report.healthy else 2


def logs(
    bundle: Annotated[Path, typer.Argument(help="a bundle folder, or a part of its name")] = Path(
        "runs/latest"
    ),
    rank: Annotated[int | None, typer.Option(help="print only the log of this rank")] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="keep printing new lines until the launch ends")
    ] = False,
    runs_dir: options.RunsDir = None,
) -> int:
    """Print the ranks' logs from a bundle, without the ground-truth frames."""
    from harness.cli import logs as reading

    evidence = opened(bundle, load(runs_dir=runs_dir).runs_dir)
    if follow:
        print(f"following {evidence.path}", file=sys.stderr)
    for line in reading.follow(evidence.path, rank) if follow else reading.lines(evidence, rank):
        print(line, flush=follow)
        if reader_closed():
            break
    return 0


def shell(
    bundle: Annotated[Path, typer.Argument(help="a bundle folder, or a part of its name")] = Path(
        "runs/latest"
    ),
    command: Annotated[
        list[str] | None, typer.Argument(help="command to run in the pod, after -- (default: bash)")
    ] = None,
    rank: Annotated[int, typer.Option(help="the rank whose pod to use")] = 0,
    runs_dir: options.RunsDir = None,
    quiet: options.Quiet = False,
) -> int:
    """Open a shell in a rank's pod. If the rank has ended, open it in a copy of the pod.

    The copy has the same image, environment and scripts, runs on the same node, and
    sleeps instead of training. It is deleted when the shell ends. RANK and
    WORLD_SIZE are not set in the shell, because torchrun sets them only in the
    processes that it starts.
    """
    from harness.cli import shell as pod_shell

    settings = load(runs_dir=runs_dir)
    context = run_context(settings, progress(quiet))
    evidence = opened(bundle, settings.runs_dir)
    sys.stdout.flush()
    return pod_shell.shell(evidence, rank, command or [], context)


def preflight(
    job: Annotated[
        Path | None, typer.Argument(help="a job file; its resource requests are checked, too")
    ] = None,
    kubeconfig: options.Kubeconfig = None,
    context: options.Context = None,
    install: Annotated[
        bool,
        typer.Option(
            "--install", help="install JobSet, Kueue, the queue and the tracker if they are missing"
        ),
    ] = False,
    tracker: Annotated[
        str | None, typer.Option(help="the tracker: embedded or hosted (default: embedded)")
    ] = None,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
) -> int:
    """Check whether your own cluster has everything that a launch needs, and show what is missing.

    Without --install, the command changes nothing in the cluster, except that it
    creates a temporary namespace. A dry run in this namespace shows whether a policy,
    a limit or a webhook would reject a pod. The exit code is 0 if nothing is missing,
    and otherwise 2.
    """
    from harness.launch.workload_file import load as load_workload
    from harness.provision.existing import ExistingCluster

    settings = load(kubeconfig=kubeconfig, context=context, tracker=tracker)
    cluster = ExistingCluster(settings)
    if install:
        cluster.install(run_context(settings, progress(quiet)))
    version, requirements = cluster.inspect(load_workload(job) if job else None)
    if as_json:
        rows = [
            {"what": n.what, "ok": n.problem is None, "seen": n.state, "fix": n.fix} for n in requirements
        ]
        dump({"kubernetes": version, "needs": rows})
    else:
        print(f"Kubernetes {version}")
        for requirement in requirements:
            print(f"{'✗' if requirement.problem else '✓'} {requirement.what:12} {requirement.state}")
            if requirement.fix:
                print(f"  {'→':>12} {requirement.fix}")
    return 2 if any(requirement.problem for requirement in requirements) else 0


COMMANDS = (up, down, pause, resume, status, logs, shell, preflight)
