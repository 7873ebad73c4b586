"""The `harness` command. Each command parses its options, makes one call, and prints the result.

Exit codes: 0 for PASS, 1 for FAIL, 2 for UNKNOWN or an error of the harness, 64 for bad usage.
With `--json`, stdout contains only one JSON document. Progress goes to stderr.

A command imports its dependencies when it is called (harness/cli/view/lazy.py).
"""

import gc
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from harness.cli import acceptance_results, attach, bundles, cluster, experiments, konduktor, options, report
from harness.cli.accept import accept
from harness.cli.bisect import bisect
from harness.cli.launch_options import NOTHING, Launch, launching
from harness.cli.matrix import matrix
from harness.cli.netcheck import netcheck
from harness.cli.options import dump, progress
from harness.cli.recorder import recorder_app
from harness.cli.stdout import ignore_broken_pipes, in_utf8
from harness.cli.torchrun.commands import torchrun_app
from harness.cli.tracker import tracker_app
from harness.cli.train import train
from harness.cli.view.lazy import console, load, opened, run_context, show_verdict
from harness.core.errors import HarnessError, UsageError
from harness.core.terminal_text import printable

FOLDERS = (
    "make this path readable and writable, or choose other folders with HARNESS_RUNS_DIR, "
    "HARNESS_CACHE_DIR and HARNESS_STATE_DIR"
)
_WrongUsage: Any = typer.BadParameter.__mro__[2]
"""The ClickException class, from which all usage errors derive. It comes from the click package that typer
uses. Newer versions of typer contain their own copy of click."""
app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
images_app = typer.Typer(help="Build or download the images that the harness runs.", no_args_is_help=True)
app.add_typer(images_app, name="images")
app.add_typer(recorder_app, name="recorder")
app.add_typer(torchrun_app, name="torchrun")
app.add_typer(tracker_app, name="tracker")


def _print_version(value: bool) -> None:
    if value:
        from importlib.metadata import version

        print(f"harness {version('pluto-e2e-harness')}")
        raise typer.Exit


@app.callback()
def _of_all_commands(
    version: Annotated[
        bool,
        typer.Option("--version", is_eager=True, callback=_print_version, help="print the version and exit"),
    ] = False,
) -> None:
    """Launch real multinode jobs on a real Kubernetes cluster, and get a verdict backed by evidence."""


@app.command()
@launching
def run(
    job: Annotated[
        Path,
        typer.Argument(
            help="a konduktor job file, or the manifest of a StatefulSet, Indexed Job or DaemonSet"
        ),
    ],
    tracker: Annotated[
        str | None, typer.Option(help="the tracker: embedded or hosted (default: embedded)")
    ] = None,
    netcheck: Annotated[
        bool | None,
        typer.Option(
            "--netcheck", help="before the ranks start, check in every pod that they can reach each other"
        ),
    ] = None,
    expect_ranks: Annotated[
        str | None,
        typer.Option(
            help="the ranks that must log, e.g. 0,4; all other ranks must log nothing (default: all ranks "
            "must log)"
        ),
    ] = None,
    launch: Launch = NOTHING,
) -> int:
    """Launch a job and judge it. Create a cluster if there is none, and delete it afterwards.

    With --json, the paths in `bundle` and `report` are absolute.
    """
    settings = launch.settings(tracker=tracker, netcheck=netcheck, expect=options.expect(expect_ranks))
    from harness.launch.konduktor.launch_process import early

    with early(job, settings) as process:  # A second process imports konduktor in the meantime.
        from harness.launch.workload_file import load as load_workload

        outcome = launch.run(load_workload(job, process), settings)
    return launch.show(outcome)


@app.command()
def judge(
    bundle: Annotated[Path, typer.Argument(help="a bundle folder, e.g. runs/latest")],
    as_json: options.Json = False,
) -> int:
    """Judge a recorded bundle again. This does not use a cluster or write anything."""
    from harness.judge.users import judge as judge_bundle

    evidence = opened(bundle)
    return show_verdict(judge_bundle(evidence), evidence.path, as_json)


@app.command()
def show(
    bundle: Annotated[Path, typer.Argument(help="a bundle folder")] = Path("runs/latest"),
    as_json: options.Json = False,
) -> int:
    """Show a bundle's recorded verdict."""
    evidence = opened(bundle)
    if evidence.recorded_verdict is None:
        raise UsageError(f"{bundle} has no readable verdict.json", hint=f"harness judge {bundle}")
    return show_verdict(evidence.recorded_verdict, evidence.path, as_json)


@app.command()
def doctor(
    fix: Annotated[
        bool, typer.Option("--fix", help="install and start missing programs (only on Debian, as root)")
    ] = False,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
) -> int:
    """Check Docker, cgroups, disk, tools and registries, and show how to fix each problem."""
    from harness.provision.doctor import check_results, checks, repair

    settings = load()
    results = repair.fix(run_context(settings, progress(quiet))) if fix else checks.checks(settings)
    dump(check_results.as_json(results)) if as_json else console().print(check_results.render(results))
    return check_results.exit_code(results)


COMMANDS = (
    accept,
    train,
    netcheck,
    bisect,
    matrix,
    *attach.COMMANDS,
    bundles.runs,
    bundles.diff,
    *cluster.COMMANDS,
    *report.COMMANDS,
    *acceptance_results.COMMANDS,
    experiments.faults,
    experiments.programs,
    experiments.soak,
)
for command in COMMANDS:
    app.command()(command)
app.command(context_settings=konduktor.SETTINGS)(konduktor.konduktor)


@images_app.command("build")
def images_build(
    images: options.Images = None, quiet: options.Quiet = False, as_json: options.Json = False
) -> int:
    """Build or download all images in the stack, and create the template for new clusters.

    The images are stored in the cache. If the template cannot be created, the
    command prints the reason and still succeeds. New clusters are then created with
    kind.
    """
    from harness import run as running
    from harness.cli import cluster_status

    context = run_context(load(images=images), progress(quiet))
    image_refs = cluster_status.build_images(context)
    try:
        image_refs |= running.template(context)
    except HarnessError as error:
        context.progress(f"no template was created for new clusters: {error.message}")
    dump(image_refs) if as_json else print("\n".join(f"{name:8} {ref}" for name, ref in image_refs.items()))
    return 0


def main(arguments: list[str] | None = None, program: str | None = None) -> None:
    """Run one command and exit. A HarnessError becomes a message and an exit code, never a traceback.

    `program` is the program name in help texts. None means the name that the user typed.
    """
    in_utf8()
    ignore_broken_pipes()
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        code = app(arguments or ["--help"], prog_name=program, standalone_mode=False)
    except _WrongUsage as error:
        error.show()
        code = 64
    except HarnessError as error:
        print(printable(f"harness: {error}"), file=sys.stderr)
        code = error.exit_code
    # A launch handles its own errors, so this error means that a folder cannot be used.
    except OSError as error:
        filename = f": {error.filename}" if error.filename else ""
        print(f"harness: {error.strerror or error}{filename}\n  → {FOLDERS}", file=sys.stderr)
        code = 2
    except (KeyboardInterrupt, typer.Abort):
        print("harness: interrupted", file=sys.stderr)
        code = 2
    except Exception as error:
        problem = _request_error(error)
        if problem is None:
            raise
        print(printable(f"harness: {problem}"), file=sys.stderr)
        code = problem.exit_code
    gc.freeze()  # Without this call, the interpreter would scan every object again at exit.
    sys.exit(code)


def _request_error(error: Exception) -> HarnessError | None:
    """Return the HarnessError for an exception that a request to an API server raised, or None.

    The Kubernetes client is not imported if no request was sent.
    """
    module = sys.modules.get("harness.core.kubernetes")
    return module.request_error(error) if module else None


def kubectl_torchrun() -> None:
    """Run `kubectl torchrun`. kubectl finds this command on PATH as the program kubectl-torchrun."""
    main(["torchrun", *sys.argv[1:]], program="kubectl")
