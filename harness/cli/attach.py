"""`harness attach` and `harness why`: judge a job that the harness did not launch, without changing it."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harness.cli import options
from harness.cli.options import progress
from harness.cli.view import lazy

if TYPE_CHECKING:
    from harness.attach.tracker import TrackerOptions
    from harness.report.finalize import Outcome

Job = Annotated[
    str, typer.Argument(metavar="[KIND/NAME]", help="the job, e.g. jobset/train, or just its name")
]
Selector = Annotated[
    str, typer.Option("--selector", "-l", help="label selector for bare pods, instead of KIND/NAME")
]
Namespace = Annotated[
    str | None, typer.Option("--namespace", "-n", help="the job's namespace (default: the context's)")
]
Container = Annotated[
    str | None,
    typer.Option(
        "--container", "-c", help="the container that runs the ranks (default: the one that runs torchrun)"
    ),
]
Probe = Annotated[
    bool,
    typer.Option(
        "--probe", help="also run diagnostics in running containers, which requires permission to exec"
    ),
]
TrackerUrl = Annotated[
    str, typer.Option("--tracker-url", help="URL of the job's tracker (default: PLUTO_URL_API from its pods)")
]
Project = Annotated[
    str, typer.Option("--project", help="project of the job's run (default: PLUTO_PROJECT from its pods)")
]
Run = Annotated[str, typer.Option("--run", help="id of the job's run (default: PLUTO_RUN_ID from its pods)")]
Secret = Annotated[
    str,
    typer.Option(
        "--secret",
        metavar="NAME[/KEY]",
        help="read the tracker's API key from this Secret in the job's namespace (default: PLUTO_API_KEY "
        "from your "
        "environment, which is sent only to hosted Pluto or to the --tracker-url)",
    ),
]


def attach(
    job: Job = "",
    selector: Selector = "",
    namespace: Namespace = None,
    container: Container = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="follow the job until it ends, then judge it")
    ] = False,
    wait: Annotated[
        float | None,
        typer.Option(min=0, help="wait up to this many seconds for the job to exist, then follow it"),
    ] = None,
    probe: Probe = False,
    tracker_url: TrackerUrl = "",
    project: Project = "",
    run: Run = "",
    secret: Secret = "",
    print_rbac: Annotated[
        bool,
        typer.Option(
            "--print-rbac", help="print the minimal Role and ClusterRole, without attaching to a job"
        ),
    ] = False,
    runs_dir: options.RunsDir = None,
    kubeconfig: options.Kubeconfig = None,
    context: options.Context = None,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
) -> int:
    """Judge a job that the harness did not launch. This changes nothing in the cluster.

    The job is a JobSet (including one created by konduktor or a TrainJob), an
    Indexed Job, a StatefulSet, a DaemonSet, a TorchrunJob, a PyTorchJob, an MPIJob
    or a pod. Without --follow, the verdict describes the current state of the job,
    which may be waiting, running, hung or finished.

    A PASS needs a recorder in the ranks (`harness recorder install`) and the points
    in the tracker. Without them, a completed job is UNKNOWN
    (unification.not_recorded), but all other checks are still made. The exit codes, the
    bundle and the report are those of `harness run`.
    """
    tracker = (tracker_url, project, run, secret)
    if print_rbac:
        return _print_rbac(namespace or "default", probe, tracker)
    target = (job, selector, namespace, container)
    outcome = _attached(target, probe, follow, wait, runs_dir, kubeconfig, context, quiet, tracker)
    return lazy.show_verdict(outcome.verdict, outcome.bundle, as_json)


def why(
    job: Job = "",
    selector: Selector = "",
    namespace: Namespace = None,
    container: Container = None,
    probe: Probe = False,
    tracker_url: TrackerUrl = "",
    project: Project = "",
    run: Run = "",
    secret: Secret = "",
    runs_dir: options.RunsDir = None,
    kubeconfig: options.Kubeconfig = None,
    context: options.Context = None,
    as_json: options.Json = False,
) -> int:
    """Show on one screen why a job failed, hangs or waits, with the evidence.

    The command judges the job like `harness attach` without --follow. It reads the
    job once, and changes nothing in the cluster.
    """
    target = (job, selector, namespace, container)
    tracker = (tracker_url, project, run, secret)
    outcome = _attached(target, probe, False, None, runs_dir, kubeconfig, context, True, tracker)
    if as_json:
        return lazy.show_verdict(outcome.verdict, outcome.bundle, as_json)
    from harness.cli.view.verdict import EXIT
    from harness.report.terminal import why as short

    short.render(outcome.verdict, outcome.bundle, lazy.console())
    return EXIT[outcome.verdict.verdict]


def _attached(
    target: tuple[str, str, str | None, str | None],
    probe: bool,
    follow: bool,
    wait: float | None,
    runs_dir: Path | None,
    kubeconfig: Path | None,
    context: str | None,
    quiet: bool,
    tracker: tuple[str, str, str, str],
) -> "Outcome":
    from harness.attach import session
    from harness.attach.job_lookup import Target, check

    job, selector, namespace, container = target
    attach_target = Target(job, selector, container)
    check(attach_target)
    of_tracker = _tracker(tracker)
    settings = lazy.load(runs_dir=runs_dir, kubeconfig=kubeconfig or _default(context), context=context)
    session_options = session.Options(namespace, wait or 0.0, follow or wait is not None, probe, of_tracker)
    if not session_options.follow:
        return session.attach(attach_target, session_options, lazy.run_context(settings, progress(quiet)))
    with lazy.watching(quiet) as (lines, listener):
        return session.attach(attach_target, session_options, lazy.run_context(settings, lines), listener)


def _tracker(words: tuple[str, str, str, str]) -> "TrackerOptions":
    from harness.attach.tracker import TrackerOptions
    from harness.attach.tracker_key import SecretKey

    url, project, run, secret = words
    tracker_options = TrackerOptions(url, project, run, SecretKey.of(secret))
    tracker_options.check()
    return tracker_options


def _print_rbac(namespace: str, probe: bool, words: tuple[str, str, str, str]) -> int:
    from harness.attach.resources import roles
    from harness.core.service_proxy import service_of

    tracker = _tracker(words)
    service = service_of(tracker.url, namespace) if tracker.url else None
    print(roles(namespace, probe, tracker.secret.name if tracker.secret else "", service), end="")
    return 0


def _default(context: str | None) -> Path | None:
    """Return None without a context, and otherwise the kubeconfig that kubectl would use."""
    if context is None:
        return None
    from harness.attach.session import default_kubeconfig

    return default_kubeconfig()


COMMANDS = (attach, why)
