"""The kept cluster as a workbench: make, stop, start, remove it, look and go inside."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from harness.cli.options import (
    ClusterName,
    Context,
    Images,
    Json,
    Kubeconfig,
    Kubernetes,
    Progress,
    RunsDir,
    Workers,
    dump,
)
from harness.cli.stdout import left
from harness.evidence.lookup import opened
from harness.settings import Settings, load


def up(
    cluster_name: ClusterName = None,
    workers: Workers = None,
    kubernetes: Kubernetes = None,
    images: Images = None,
    runs_dir: RunsDir = None,
    as_json: Json = False,
) -> int:
    """Make the cluster ready and keep it: the next run installs and builds nothing."""
    from harness import run as running
    from harness.cli import status as looking

    settings = load(
        cluster_name=cluster_name, workers=workers, kubernetes=kubernetes, images=images, runs_dir=runs_dir
    )
    ready = running.up(settings, Progress())
    ready.kind.keep()
    if as_json:
        dump(looking.status(settings))
    else:
        print(f"cluster {ready.kind.name} is ready")
        print(f"  export KUBECONFIG={ready.kind.kubeconfig}\n  harness run JOB")
    return 0


def down(cluster_name: ClusterName = None, as_json: Json = False) -> int:
    """Remove the cluster that the harness made, and nothing else."""
    from harness.provision import lifecycle

    return _done(cluster_name, as_json, lifecycle.down, ("removed", "none that the harness made"))


def pause(cluster_name: ClusterName = None, as_json: Json = False) -> int:
    """Stop the cluster's nodes; everything in it stays. `harness resume`, or the next run, starts them."""
    from harness.provision import lifecycle

    return _done(cluster_name, as_json, lifecycle.pause, ("paused", "was paused already"))


def resume(cluster_name: ClusterName = None, as_json: Json = False) -> int:
    """Start a paused cluster and wait until everything in it serves again."""
    from harness.provision import lifecycle

    return _done(cluster_name, as_json, lifecycle.resume, ("resumed, and serves again", "was not paused"))


def _done(
    name: str | None, as_json: bool, what: Callable[[Settings, Progress], bool], words: tuple[str, str]
) -> int:
    """Do it, and say whether there was anything to do; in JSON by the first of the words."""
    settings = load(cluster_name=name)
    done = what(settings, Progress())
    if as_json:
        dump({"cluster": settings.cluster_name, words[0].partition(",")[0]: done})
    else:
        print(f"cluster {settings.cluster_name}: {words[0] if done else words[1]}")
    return 0


def status(cluster_name: ClusterName = None, as_json: Json = False) -> int:
    """Cluster, nodes, controllers, queues, launches with what they wait for, and disk, on one screen.

    Exit code 0: it can be used, 2: there is none, it is paused, or not healthy.
    """
    from harness.cli import status as looking

    found = looking.status(load(cluster_name=cluster_name))
    dump(found) if as_json else print(looking.render(found))
    return 0 if found["healthy"] else 2


def logs(
    bundle: Annotated[Path, typer.Argument(help="a bundle, by its folder or a part of its name")] = Path(
        "runs/latest"
    ),
    rank: Annotated[int | None, typer.Option(help="of one rank only")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="as they are written, to their end")] = False,
    runs_dir: RunsDir = None,
) -> int:
    """The ranks' logs, as they are in the bundle; ground-truth frames are left out."""
    from harness.cli import logs as reading

    found = opened(bundle, load(runs_dir=runs_dir).runs_dir)
    if follow:
        print(f"following {found.path}", file=sys.stderr)
    for line in reading.follow(found.path, rank) if follow else reading.lines(found, rank):
        print(line, flush=follow)
        if left():
            break
    return 0


def shell(
    bundle: Annotated[Path, typer.Argument(help="a bundle, by its folder or a part of its name")] = Path(
        "runs/latest"
    ),
    command: Annotated[list[str] | None, typer.Argument(help="what to run there, after -- (bash)")] = None,
    rank: Annotated[int, typer.Option(help="whose pod")] = 0,
    runs_dir: RunsDir = None,
) -> int:
    """A shell where a rank runs; when it has ended, in a copy of its pod, which goes when you leave.

    The copy has the rank's image, environment, scripts and node, and waits instead of training.
    RANK and WORLD_SIZE of a worker are torchrun's to set, so they are not there.
    """
    from harness.cli import shell as going

    settings = load(runs_dir=runs_dir)
    found = opened(bundle, settings.runs_dir)
    sys.stdout.flush()
    return going.shell(found, rank, command or [], settings, Progress())


def preflight(
    job: Annotated[Path | None, typer.Argument(help="a job file, for what it asks for")] = None,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    install: Annotated[
        bool, typer.Option("--install", help="install JobSet, Kueue, queue and tracker where they lack")
    ] = False,
    tracker: Annotated[str | None, typer.Option(help="embedded or hosted (embedded)")] = None,
    as_json: Json = False,
) -> int:
    """What a cluster of yours lacks for a launch. Changes nothing without --install.

    Exit code 0: nothing lacks, 2: something does.
    """
    from harness.launch.konduktor.job_file import JobFile
    from harness.provision import attach

    settings = load(kubeconfig=kubeconfig, context=context, tracker=tracker)
    if install:
        attach.install(settings, Progress())
    version, found = attach.look(settings, JobFile.load(job) if job else None)
    if as_json:
        rows = [{"what": n.what, "ok": n.problem is None, "seen": n.seen, "fix": n.fix} for n in found]
        dump({"kubernetes": version, "needs": rows})
    else:
        print(f"Kubernetes {version}")
        for requirement in found:
            print(f"{'✗' if requirement.problem else '✓'} {requirement.what:12} {requirement.seen}")
            if requirement.fix:
                print(f"  {'→':>12} {requirement.fix}")
    return 2 if any(requirement.problem for requirement in found) else 0


COMMANDS = (up, down, pause, resume, status, logs, shell, preflight)
