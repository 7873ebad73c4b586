"""The `harness` command. Thin: options in, one call, one rendering, one exit code.

Exit codes: 0 PASS, 1 FAIL, 2 UNKNOWN or the harness could not do its work, 64 bad usage.
`--json` prints one JSON document on stdout and nothing else there; progress goes to stderr.

A command imports what it works with when it is called (harness/cli/view/lazy.py).
"""

import gc
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from harness.cli import acceptance, bundles, cluster, experiments, konduktor, options, report
from harness.cli.accept import accept
from harness.cli.launch_options import NOTHING, Launch, launching
from harness.cli.netcheck import netcheck
from harness.cli.options import dump, progress
from harness.cli.stdout import in_utf8, may_be_left
from harness.cli.torchrun.commands import torchrun_app
from harness.cli.tracker import tracker_app
from harness.cli.train import train
from harness.cli.view.lazy import console, load, opened, run_context, show_verdict
from harness.core.errors import HarnessError, UsageError

FOLDERS = (
    "can it be read and written? HARNESS_RUNS_DIR, HARNESS_CACHE_DIR and HARNESS_STATE_DIR name other folders"
)
_WrongUsage: Any = typer.BadParameter.__mro__[2]
"""ClickException, of whichever click typer uses: newer ones bring their own."""
app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
images_app = typer.Typer(help="The images of the stack.", no_args_is_help=True)
app.add_typer(images_app, name="images")
app.add_typer(torchrun_app, name="torchrun")
app.add_typer(tracker_app, name="tracker")


def _print_version(asked: bool) -> None:
    if asked:
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
    """Launch real multinode jobs on a real Kubernetes cluster, and get a verdict that can be believed."""


@app.command()
@launching
def run(
    job: Annotated[
        Path,
        typer.Argument(help="a konduktor job file, or a manifest of a StatefulSet, Indexed Job or DaemonSet"),
    ],
    tracker: Annotated[str | None, typer.Option(help="embedded or hosted (embedded)")] = None,
    netcheck: Annotated[
        bool | None, typer.Option("--netcheck", help="check first in every pod that the ranks can meet")
    ] = None,
    expect_ranks: Annotated[
        str | None,
        typer.Option(help="the ranks that log, e.g. 0,4; the others log nothing (all)"),
    ] = None,
    launch: Launch = NOTHING,
) -> int:
    """Launch a job and judge it. Creates a cluster if there is none, and deletes it afterwards.

    With --json, `bundle` and `report` beside the verdict are absolute paths.
    """
    settings = launch.settings(tracker=tracker, netcheck=netcheck, expect=options.expect(expect_ranks))
    from harness.launch.konduktor.program import early

    with early(job, settings) as process:  # its imports run beside these
        from harness.launch.workload_file import load as load_workload

        outcome = launch.run(load_workload(job, process), settings)
    return launch.show(outcome)


@app.command()
def judge(
    bundle: Annotated[Path, typer.Argument(help="a bundle folder, e.g. runs/latest")],
    as_json: options.Json = False,
) -> int:
    """Judge a recorded bundle again. Touches no cluster and writes nothing."""
    from harness.judge.users import judge as judge_bundle

    found = opened(bundle)
    return show_verdict(judge_bundle(found), found.path, as_json)


@app.command()
def show(
    bundle: Annotated[Path, typer.Argument(help="a bundle folder")] = Path("runs/latest"),
    as_json: options.Json = False,
) -> int:
    """Show the recorded verdict of a bundle."""
    found = opened(bundle)
    if found.recorded_verdict is None:
        raise UsageError(f"{bundle} has no readable verdict.json", hint=f"harness judge {bundle}")
    return show_verdict(found.recorded_verdict, found.path, as_json)


@app.command()
def doctor(
    fix: Annotated[
        bool, typer.Option("--fix", help="install and start what is missing (Debian, as root)")
    ] = False,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
) -> int:
    """Check Docker, cgroups, disk, tools and registries, and say how to fix what is missing."""
    from harness.provision.doctor import check, checks, repair

    settings = load()
    found = repair.fix(run_context(settings, progress(quiet))) if fix else checks.checks(settings)
    dump(check.as_json(found)) if as_json else console().print(check.render(found))
    return check.exit_code(found)


COMMANDS = (
    accept,
    train,
    netcheck,
    bundles.runs,
    bundles.diff,
    *cluster.COMMANDS,
    *report.COMMANDS,
    *acceptance.COMMANDS,
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
    """Build or fetch every image of the stack into the cache, and make the template of new clusters.

    A template that cannot be made is a line, and no failure: kind creates the clusters then.
    """
    from harness import run as running
    from harness.cli import status

    context = run_context(load(images=images), progress(quiet))
    built = status.build_images(context)
    try:
        built |= running.template(context)
    except HarnessError as error:
        context.progress(f"no template of new clusters: {error.message}")
    dump(built) if as_json else print("\n".join(f"{name:8} {ref}" for name, ref in built.items()))
    return 0


def main(arguments: list[str] | None = None, program: str | None = None) -> None:
    """Run one command and exit. A HarnessError is one message and an exit code, never a traceback.

    `program` is the name that help texts begin with (the one that was typed).
    """
    in_utf8()
    may_be_left()
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        code = app(arguments or ["--help"], prog_name=program, standalone_mode=False)
    except _WrongUsage as error:
        error.show()
        code = 64
    except HarnessError as error:
        print(f"harness: {error}", file=sys.stderr)
        code = error.exit_code
    except OSError as error:  # A launch records its errors. These come from a folder that cannot be used.
        where = f": {error.filename}" if error.filename else ""
        print(f"harness: {error.strerror or error}{where}\n  → {FOLDERS}", file=sys.stderr)
        code = 2
    except (KeyboardInterrupt, typer.Abort):
        print("harness: interrupted", file=sys.stderr)
        code = 2
    gc.freeze()  # the interpreter's end would look through every object once more
    sys.exit(code)


def kubectl_torchrun() -> None:
    """Run as `kubectl torchrun`: kubectl finds the program kubectl-torchrun on PATH."""
    main(["torchrun", *sys.argv[1:]], program="kubectl")
