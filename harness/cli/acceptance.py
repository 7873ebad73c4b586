"""`harness accepted` and `harness mark-nodes`: the nodes that passed, limits made from them, their marks."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harness.cli import options
from harness.cli.options import dump
from harness.cli.view.lazy import console, load, opened
from harness.core.errors import HarnessError, UsageError

if TYPE_CHECKING:
    from harness.evidence.io.reader import Bundle
    from harness.judge.acceptance.fleet import Fleet

LATEST = Path("runs/latest")
EXIT = {"PASS": 0, "WARN": 0, "FAIL": 1, "UNKNOWN": 2}


def accepted(
    bundle: Annotated[Path, typer.Argument(help="a bundle folder")] = LATEST,
    calibrate: Annotated[
        Path | None, typer.Option(help="write limits made from this good fleet to FILE", metavar="FILE")
    ] = None,
    share: Annotated[
        float | None, typer.Option(help="of a figure's baseline still passes (0.9)", metavar="SHARE")
    ] = None,
    as_json: options.Json = False,
) -> int:
    """Show which nodes of a recorded launch passed the acceptance tests, the worst first.

    Exit code 0: PASS or WARN. 1: FAIL. 2: something was not proved.

    With --calibrate the figures become limits for --limits of the tests. The
    fleet must be known to be good: one that is FAIL or UNKNOWN is refused.
    """
    evidence = opened(bundle)
    found = fleet_of(evidence)
    if calibrate is not None:
        write_limits(found, evidence, calibrate, share)
    if as_json:
        dump(found.as_dict())
    else:
        from harness.report.terminal.console import wide
        from harness.report.terminal.verdict import accepted_table

        (console() if console().is_terminal else wide()).print(accepted_table(found))
    return EXIT[found.verdict]


def mark_nodes(
    bundle: Annotated[Path, typer.Argument(help="a bundle folder")] = LATEST,
    taint: Annotated[
        bool, typer.Option("--taint", help="keep new pods off nodes whose own fault is proved")
    ] = False,
    undo: Annotated[bool, typer.Option("--undo", help="restore every node that was marked")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="with --taint: also where most nodes fail in the same way")
    ] = False,
    cluster_name: options.ClusterName = None,
    kubeconfig: options.Kubeconfig = None,
    context: options.Context = None,
    as_json: options.Json = False,
) -> int:
    """Label the cluster's nodes with the verdicts of their acceptance, or take the marks back.

    Each node gets the label pluto-e2e-harness/accepted. What it was like before
    is kept in an annotation, and --undo restores it. --taint leaves out a node
    whose failure may be the image's, and gives the reason. Where more than half
    of the nodes fail in the same way, no node is tainted without --force. An image
    without CUDA judges no node, and marks none. Exit code 2: a node of the bundle
    is not in the cluster, or the image judged none.
    """
    from harness.core.kubernetes import reached
    from harness.judge.acceptance.own_faults import doubtful, image_at_fault
    from harness.provision import node_marks
    from harness.provision.lifecycle import cluster_of

    if undo and taint:
        raise UsageError("--undo restores nodes, and --taint marks them: give one of them")
    if force and not taint:
        raise UsageError("--force is for --taint: labels say the verdict of each node anyway")
    settings = load(cluster_name=cluster_name, kubeconfig=kubeconfig, context=context)
    found = None if undo else fleet_of(opened(bundle))
    if found and (why := image_at_fault(found)) is not None:
        raise HarnessError(f"{why}; no node is marked", hint="harness accept --image IMAGE, with CUDA")
    verdicts = {node.node: node.verdict for node in found.nodes} if found else {}
    doubts = doubtful(found, force=force) if found and taint else {}
    with reached():
        kube = cluster_of(settings).kube()
        done = (
            node_marks.undo(kube) if undo else node_marks.mark(kube, verdicts, taint=taint, doubtful=doubts)
        )
    if as_json:
        nodes = {"changed": done.changed, "unchanged": done.unchanged, "absent": done.absent}
        dump({**nodes, "not_tainted": doubts})
    else:
        for name in done.changed:
            print(f"{name}: {verdicts.get(name, 'restored')}")
        for name in done.unchanged:
            print(f"{name}: {verdicts.get(name, '')}, as before")
        for name, why in doubts.items():
            print(f"{name}: not tainted: {why}")
        for name in done.absent:
            print(f"{name}: not a node of this cluster")
    return 2 if done.absent else 0


def fleet_of(bundle: "Bundle") -> "Fleet":
    """Return the fleet of a bundle. Raises UsageError where no acceptance tests were recorded."""
    from harness.judge.acceptance.bundle import FILE, of_bundle

    found = of_bundle(bundle)
    if found is None:
        raise UsageError(f"{bundle.path} has no {FILE}: no acceptance tests ran in that launch")
    return found


def write_limits(found: "Fleet", bundle: "Bundle", file: Path, share: float | None = None) -> None:
    """Write the limits. Raises HarnessError for a fleet that is not known to be good, and writes nothing."""
    from harness.evidence.io.files import replace_file
    from harness.judge.acceptance.calibrate import SHARE, baselines, toml

    if found.verdict in ("FAIL", "UNKNOWN"):
        raise HarnessError(
            f"limits are made from a good fleet, and this one is {found.verdict}: {found.text}",
            hint="repair or leave out the nodes that did not pass, and test again",
        )
    share = SHARE if share is None else share
    manifest = bundle.manifest
    date = manifest.started_at[:10] if manifest else "an unknown date"
    try:
        text = toml(baselines(found, share), bundle=bundle.path.name, date=date, share=share)
    except ValueError as error:
        raise HarnessError(f"no limits were made: {error}") from error
    replace_file(file, text)


COMMANDS = (accepted, mark_nodes)
