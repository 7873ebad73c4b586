"""`harness torchrun`, also `kubectl torchrun`: run TorchrunJobs with the code of a local folder."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from harness.cli import options
from harness.cli.options import dump, progress
from harness.core.errors import HarnessError, UsageError
from harness.core.terminal_text import printable

if TYPE_CHECKING:
    from harness.cli.torchrun.jobs import Jobs
    from harness.torchrun_sync.tree import Walker

Name = Annotated[str, typer.Argument(metavar="NAME", help="name of the TorchrunJob")]
Namespace = Annotated[
    str | None, typer.Option("--namespace", "-n", help="the job's namespace (default: the context's)")
]
Folder = Annotated[Path, typer.Option("--dir", help="the folder that contains the job's code")]
Watch = Annotated[
    bool,
    typer.Option(
        "--watch", help="whenever a file changes, send the code and restart the ranks in the same pods"
    ),
]
Follow = Annotated[
    bool,
    typer.Option(
        "--follow", "-f", help="follow the logs until the job ends, and exit with the job's exit code"
    ),
]
torchrun_app = typer.Typer(
    help="Run the code in this folder as a distributed job on a cluster.", no_args_is_help=True
)


def _jobs(namespace: str | None, kubeconfig: Path | None, context: str | None) -> "Jobs":
    from harness.cli.torchrun.jobs import Jobs, cluster, namespace_of
    from harness.core.kubernetes import reached

    kube = cluster(kubeconfig, context)
    with reached():
        kube.fetch("/version", seconds=10).read()
    return Jobs(kube, namespace_of(kube, namespace))


@torchrun_app.command()
def submit(
    command: Annotated[
        str, typer.Argument(metavar="COMMAND", help="command that each rank runs, e.g. 'python train.py'")
    ],
    queue: Annotated[str, typer.Option("--queue", help="the TorchrunQueue")],
    name: Annotated[
        str | None, typer.Option(help="name of the job (default: the folder's name and a random suffix)")
    ] = None,
    gpus: Annotated[int | None, typer.Option(min=0, help="total number of GPUs on all nodes")] = None,
    nodes: Annotated[int | None, typer.Option(min=1, help="number of pods, each on its own node")] = None,
    min_nodes: Annotated[
        int | None,
        typer.Option(min=1, help="minimum number of pods of an elastic job; requires --max-nodes"),
    ] = None,
    max_nodes: Annotated[
        int | None, typer.Option(min=1, help="maximum number of pods of an elastic job; requires --min-nodes")
    ] = None,
    processes: Annotated[
        int | None, typer.Option(min=1, help="ranks per pod, for a job without GPUs")
    ] = None,
    image: Annotated[str | None, typer.Option("--image", help="image to use instead of the queue's")] = None,
    setup: Annotated[
        str | None, typer.Option(help="a command that each pod runs before its ranks start")
    ] = None,
    env: Annotated[
        list[str] | None,
        typer.Option(help="NAME=VALUE of an environment variable for every rank; may be repeated"),
    ] = None,
    priority: Annotated[str | None, typer.Option(help="PriorityClass to use instead of the queue's")] = None,
    rdzv_backend: Annotated[
        str | None,
        typer.Option(help="rendezvous backend: c10d, static or etcd-v2 (default: the queue's, or c10d)"),
    ] = None,
    max_restarts: Annotated[
        int | None, typer.Option(min=0, help="maximum number of restarts of a failed job (default: 3)")
    ] = None,
    deadline: Annotated[
        int | None, typer.Option(min=1, help="stop the job this many seconds after its admission")
    ] = None,
    ttl: Annotated[
        int | None,
        typer.Option(
            min=0, help="delete the job's pods this many seconds after the job has ended (default: 3600)"
        ),
    ] = None,
    folder: Folder = Path(),
    sync: Annotated[bool, typer.Option("--sync/--no-sync", help="send the code in this folder")] = True,
    watch: Watch = False,
    detach: Annotated[
        bool, typer.Option("--detach", help="exit as soon as the cluster has received the code")
    ] = False,
    suspended: Annotated[bool, typer.Option("--suspend", help="create the job suspended, and exit")] = False,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="validate and print the job, and list the files that would not be sent, without creating "
            "anything",
        ),
    ] = False,
    namespace: Namespace = None,
    kubeconfig: options.Kubeconfig = None,
    context: options.Context = None,
    quiet: options.Quiet = False,
) -> int:
    """Run the code in this folder in a TorchrunJob, and stay attached until it ends.

    Files that git ignores, or that match .torchrunignore, are not sent. The exit
    code is the job's. Ctrl-C detaches with exit code 130, and the job continues.
    """
    if watch and (detach or suspended or not sync):
        raise UsageError("--watch cannot be combined with --detach, --suspend or --no-sync")
    if (min_nodes is None) != (max_nodes is None):
        raise UsageError("an elastic job needs both --min-nodes and --max-nodes")
    from harness.cli.torchrun.attached import Attached
    from harness.cli.torchrun.jobs import PROGRAM, environment, name_of
    from harness.cli.torchrun.stored_code import CodeStore, pack_code
    from harness.torchrun_sync import warnings as notes

    spec = _set_fields(
        jobQueue=queue,
        command=command,
        numGPUs=gpus,
        numNodes=nodes,
        minNodes=min_nodes,
        maxNodes=max_nodes,
        processesPerNode=processes,
        image=image,
        setupCommand=setup,
        env=environment(env or []) or None,
        scheduling=_set_fields(priorityClassName=priority) or None,
        distributed=_set_fields(rdzvBackend=rdzv_backend) or None,
        reliability=_set_fields(
            maxRestarts=max_restarts, activeDeadlineSeconds=deadline, ttlSecondsAfterFinished=ttl
        )
        or None,
        suspend=suspended or None,
    )
    walker = _walker(folder) if sync else None
    name = name or name_of(folder)
    report = progress(quiet)
    if dry_run:
        tree = walker.scan() if walker else None
        for line in notes.listing(tree.excluded) if tree else ():
            report(line)
        if tree and (line := notes.version_from_git(folder, tree.entries, setup or "")):
            report(line)
        return _dry_run(name, spec, tree.digest if tree else None, namespace, kubeconfig, context)
    packed = pack_code(walker, 1) if walker else None
    digest = packed.tree.digest if packed else None
    if packed and (line := notes.summary(packed.tree.excluded)):
        report(line)
    if packed and (line := notes.version_from_git(folder, packed.tree.entries, setup or "")):
        report(line)
    jobs = _jobs(namespace, kubeconfig, context)
    job = jobs.create(jobs.document(name, spec, digest, jobs.namespace))
    job_name = job["metadata"]["name"]
    report(f"TorchrunJob {job_name} in queue {queue}, namespace {jobs.namespace}")
    stored = bool(walker and packed and CodeStore(jobs, report).store(job, packed, 1, walker))
    if suspended:
        report(f"{job_name} is suspended; to start it: {PROGRAM} resume {job_name}")
        print(job_name)
        return 0
    attached = Attached(jobs, job_name, walker, report, watch, uid=job["metadata"]["uid"])
    if not detach:
        return attached.follow()
    if walker and not stored:
        attached.sync_code(SUBMIT_SECONDS)
    print(job_name)
    return 0


def _walker(folder: Path) -> "Walker":
    """Return a Walker for a folder. It prints its warnings to stderr as soon as they arise."""
    from harness.torchrun_sync.tree import Walker

    return Walker(folder, lambda warning: print(warning, file=sys.stderr, flush=True))


def _set_fields(**fields: Any) -> dict[str, Any]:
    """Return the fields whose values are not None. The queue or the controller sets all other fields."""
    return {name: value for name, value in fields.items() if value is not None}


def _dry_run(
    name: str,
    spec: dict[str, Any],
    digest: str | None,
    namespace: str | None,
    kubeconfig: Path | None,
    context: str | None,
) -> int:
    """Print a job as YAML, after a server-side dry run. Raises UsageError if the job would be rejected.

    If no cluster responds, the job is printed unvalidated, with a note on stderr.
    """
    from harness.cli.torchrun.jobs import Jobs, cluster, namespace_of, refused_by_models, yaml_of
    from harness.core.kubernetes import reached

    if refusal := refused_by_models(spec):
        raise UsageError(f"the job is not valid: {refusal}")
    document = Jobs.document(name, spec, digest, namespace)
    try:
        kube = cluster(kubeconfig, context)
        with reached():
            kube.fetch("/version", seconds=10).read()
    except HarnessError as error:
        configured = kubeconfig or context or os.environ.get("KUBECONFIG")
        if error.cause != "cluster.unreachable" and configured:
            raise
        print(f"{error.message}: the job was not validated by a cluster", file=sys.stderr)
    else:
        jobs = Jobs(kube, namespace_of(kube, namespace))
        document["metadata"]["namespace"] = jobs.namespace
        jobs.create(document, dry_run=True)
        if refusal := jobs.refusal(document):
            print(printable(f"the job would not start: {refusal}"), file=sys.stderr)
    print(yaml_of(document), end="")
    return 0


SUBMIT_SECONDS = 3600.0
"""The maximum number of seconds for which `submit --detach` waits until the job's pods have received the
code. It is large, because the job may be queued."""
SYNC_SECONDS = 120.0


@torchrun_app.command(name="list")
def list_jobs(
    namespace: Namespace = None,
    kubeconfig: options.Kubeconfig = None,
    context: options.Context = None,
    as_json: options.Json = False,
) -> int:
    """List the jobs in a namespace with their phases."""
    from harness.cli.torchrun.jobs import table

    jobs = _jobs(namespace, kubeconfig, context).all()
    dump(jobs) if as_json else print(table(jobs) if jobs else "no TorchrunJobs")
    return 0


@torchrun_app.command()
def status(
    name: Name,
    namespace: Namespace = None,
    kubeconfig: options.Kubeconfig = None,
    context: options.Context = None,
    as_json: options.Json = False,
) -> int:
    """Show a job's phase, command, conditions and pods. If the job has ended, exit with its exit code."""
    from harness.cli.torchrun.jobs import finished, rank, table, unobserved

    jobs = _jobs(namespace, kubeconfig, context)
    job = jobs.get(name)
    pods = jobs.pods(name)
    code = jobs.exit_code(job) if finished(job) else 0
    if as_json:
        dump({"job": job, "pods": pods, "exitCode": code if finished(job) else None})
        return code
    print(table([job]))
    if text := unobserved(job):
        print(printable(text))
    job_status = job.get("status") or {}
    print(printable(f"\ncommand: {job_status.get('torchrunCommand') or 'not assembled yet'}"))
    for each in job_status.get("conditions") or []:
        text = f"{each['type']}={each['status']} {each.get('reason', '')}: {each.get('message', '')}"
        print(printable(text))
    for pod in pods:
        node = pod["spec"].get("nodeName") or "no node yet"
        print(f"node rank {rank(pod)}: {pod['metadata']['name']} on {node}, {pod['status'].get('phase')}")
    return code


@torchrun_app.command()
def logs(
    name: Name,
    rank: Annotated[
        int | None,
        typer.Option("--node-rank", min=0, help="print only the log of the pod with this node rank"),
    ] = None,
    follow: Follow = False,
    namespace: Namespace = None,
    kubeconfig: options.Kubeconfig = None,
    context: options.Context = None,
) -> int:
    """Print the logs of a job's pods, each line with its node rank."""
    from harness.cli.torchrun.attached import Attached, show
    from harness.cli.torchrun.jobs import PROGRAM
    from harness.cli.torchrun.jobs import rank as rank_of

    jobs = _jobs(namespace, kubeconfig, context)
    job = jobs.get(name)
    if follow and rank is None:
        return Attached(jobs, name, None, progress(False), uid=job["metadata"]["uid"]).follow()
    pods = [pod for pod in jobs.pods(name) if rank is None or rank_of(pod) == rank]
    if not pods:
        raise UsageError(f"{name} has no pod with this node rank", hint=f"{PROGRAM} status {name}")
    for pod in pods:
        show(jobs, pod, follow)
    return 0


@torchrun_app.command()
def suspend(
    name: Name,
    namespace: Namespace = None,
    kubeconfig: options.Kubeconfig = None,
    context: options.Context = None,
) -> int:
    """Stop a job's pods and release its GPUs. The data on its volume claims is kept."""
    from harness.cli.torchrun.jobs import PROGRAM

    _jobs(namespace, kubeconfig, context).change(name, suspend=True)
    print(f"{name} will be suspended; to resume it: {PROGRAM} resume {name}")
    return 0


@torchrun_app.command()
def resume(
    name: Name,
    namespace: Namespace = None,
    kubeconfig: options.Kubeconfig = None,
    context: options.Context = None,
) -> int:
    """Queue a suspended job again. Its pods start with the code that is stored in the cluster."""
    from harness.cli.torchrun.jobs import PROGRAM
    from harness.cli.torchrun.stored_code import is_stored
    from harness.torchrun_controller.api import names

    job = _jobs(namespace, kubeconfig, context).change(name, suspend=False)
    print(f"{name} is queued again")
    if names.WORKSPACE_ANNOTATION in (job["metadata"].get("annotations") or {}) and not is_stored(job):
        print(f"new pods may wait for the code; to send it: {PROGRAM} sync {name}")
    return 0


@torchrun_app.command()
def delete(
    name: Name,
    namespace: Namespace = None,
    kubeconfig: options.Kubeconfig = None,
    context: options.Context = None,
) -> int:
    """Delete a job, its pods and its workspace. Its checkpoints are kept."""
    _jobs(namespace, kubeconfig, context).delete(name)
    print(f"{name} is deleted")
    return 0


@torchrun_app.command()
def sync(
    name: Name,
    folder: Folder = Path(),
    watch: Watch = False,
    namespace: Namespace = None,
    kubeconfig: options.Kubeconfig = None,
    context: options.Context = None,
    quiet: options.Quiet = False,
) -> int:
    """Send the code in this folder to a job's pods, and run it there.

    Only changes are sent. Either all pods receive them, or none. With --watch, the
    command stays attached until the job ends, and exits with the job's exit code.
    """
    from harness.cli.torchrun.attached import Attached
    from harness.cli.torchrun.jobs import PROGRAM
    from harness.torchrun_controller.api import names
    from harness.torchrun_sync import warnings as notes

    walker = _walker(folder)
    jobs = _jobs(namespace, kubeconfig, context)
    job = jobs.get(name)
    if names.WORKSPACE_ANNOTATION not in (job["metadata"].get("annotations") or {}):
        raise UsageError(
            f"{name} was created without code, so its pods do not accept any code",
            hint=f"use `{PROGRAM} submit` to create a job with code",
        )
    report = progress(quiet)
    if line := notes.summary(walker.scan().excluded):
        report(line)
    attached = Attached(jobs, name, walker, report, watch, uid=job["metadata"]["uid"])
    if watch:
        return attached.follow()
    attached.sync_code(SYNC_SECONDS)
    return 0
