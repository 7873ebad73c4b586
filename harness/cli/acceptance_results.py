"""`harness accepted` and `harness mark-nodes`: show acceptance results, calibrate limits, and mark nodes."""

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
        Path | None,
        typer.Option(
            help="compute limits from the measurements of these nodes and write them to FILE", metavar="FILE"
        ),
    ] = None,
    share: Annotated[
        float | None,
        typer.Option(
            help="with --calibrate: each limit as a fraction of the nodes' typical value (default: 0.9)",
            metavar="SHARE",
        ),
    ] = None,
    as_json: options.Json = False,
) -> int:
    """Show which nodes in a recorded launch passed the acceptance tests, worst first.

    The exit code is 0 for PASS or WARN, 1 for FAIL, and 2 for UNKNOWN, which means
    that the evidence is inconclusive.

    With --calibrate, the measurements become limits for `harness accept --limits`.
    The nodes must be known to be good: if the verdict is FAIL or UNKNOWN, no limits
    are written.
    """
    evidence = opened(bundle)
    fleet = fleet_of(evidence)
    if calibrate is not None:
        write_limits(fleet, evidence, calibrate, share)
    if as_json:
        dump(fleet.as_dict())
    else:
        from harness.report.terminal.console import wide
        from harness.report.terminal.verdict import accepted_table

        (console() if console().is_terminal else wide()).print(accepted_table(fleet))
    return EXIT[fleet.verdict]


def mark_nodes(
    bundle: Annotated[Path, typer.Argument(help="a bundle folder")] = LATEST,
    taint: Annotated[
        bool, typer.Option("--taint", help="also taint nodes that are proven to have caused a failure")
    ] = False,
    undo: Annotated[
        bool, typer.Option("--undo", help="restore the labels and taints of every marked node")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="with --taint: taint even if most nodes fail in the same way")
    ] = False,
    cluster_name: options.ClusterName = None,
    kubeconfig: options.Kubeconfig = None,
    context: options.Context = None,
    as_json: options.Json = False,
) -> int:
    """Label the cluster's nodes with their acceptance verdicts, or remove these marks.

    Each node gets the label pluto-e2e-harness/accepted. An annotation stores the
    node's previous labels and taints, and --undo restores them. --taint skips a
    node whose failure could be caused by the image, and prints the reason. If more
    than half of the nodes fail in the same way, nodes are tainted only with
    --force. If the image has no CUDA, no node is judged or marked. The exit code is
    2 if a node in the bundle is not in the cluster, or if no node was judged.
    """
    from harness.core.kubernetes import reached
    from harness.judge.acceptance.node_fault_proof import doubtful, image_at_fault
    from harness.provision import node_marks
    from harness.provision.lifecycle import cluster_of

    if undo and taint:
        raise UsageError("--undo restores nodes and --taint marks them. Use only one of the two.")
    if force and not taint:
        raise UsageError("--force applies only to --taint. Labels do not need --force.")
    settings = load(cluster_name=cluster_name, kubeconfig=kubeconfig, context=context)
    fleet = None if undo else fleet_of(opened(bundle))
    if fleet and (reason := image_at_fault(fleet)) is not None:
        raise HarnessError(
            f"{reason}; no node is marked",
            hint="test again with `harness accept --image IMAGE`, where IMAGE contains PyTorch with CUDA",
        )
    verdicts = {node.node: node.verdict for node in fleet.nodes} if fleet else {}
    doubts = doubtful(fleet, force=force) if fleet and taint else {}
    with reached():
        kube = cluster_of(settings).kube()
        marks = (
            node_marks.undo(kube) if undo else node_marks.mark(kube, verdicts, taint=taint, doubtful=doubts)
        )
    if as_json:
        nodes = {"changed": marks.changed, "unchanged": marks.unchanged, "absent": marks.absent}
        dump({**nodes, "not_tainted": doubts})
    else:
        for name in marks.changed:
            print(f"{name}: {verdicts.get(name, 'restored')}")
        for name in marks.unchanged:
            print(f"{name}: {verdicts.get(name, '')}, unchanged")
        for name, reason in doubts.items():
            print(f"{name}: not tainted: {reason}")
        for name in marks.absent:
            print(f"{name}: no such node in this cluster")
    return 2 if marks.absent else 0


def fleet_of(bundle: "Bundle") -> "Fleet":
    """Return the acceptance results of all nodes. Raises UsageError if the launch ran no acceptance tests."""
    from harness.judge.acceptance.expected_nodes import FILE, of_bundle

    fleet = of_bundle(bundle)
    if fleet is None:
        raise UsageError(f"{bundle.path} has no {FILE}: no acceptance tests ran in that launch")
    return fleet


def write_limits(fleet: "Fleet", bundle: "Bundle", file: Path, share: float | None = None) -> None:
    """Write limits computed from a fleet's measurements.

    If the fleet's verdict is FAIL or UNKNOWN, raises HarnessError and writes nothing.
    """
    from harness.evidence.io.files import replace_file
    from harness.judge.acceptance.calibrate import SHARE, baselines, toml

    if fleet.verdict in ("FAIL", "UNKNOWN"):
        raise HarnessError(
            f"limits can be computed only if all nodes passed, but the verdict is {fleet.verdict}: "
            f"{fleet.text}",
            hint="repair or exclude the nodes that did not pass, then test again",
        )
    share = SHARE if share is None else share
    manifest = bundle.manifest
    date = manifest.started_at[:10] if manifest else "an unknown date"
    try:
        text = toml(baselines(fleet, share), bundle=bundle.path.name, date=date, share=share)
    except ValueError as error:
        raise HarnessError(f"no limits were written: {error}") from error
    replace_file(file, text)


COMMANDS = (accepted, mark_nodes)
