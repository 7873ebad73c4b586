"""`harness tracker`: serve the tracker, open its pages on a cluster, make keys of projects."""

import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated
from urllib.parse import quote, urlsplit

import typer

from harness.cli import options
from harness.cli.view.lazy import load
from harness.core.errors import HarnessError, UsageError

if TYPE_CHECKING:
    from harness.core.kubernetes import Kube
    from harness.provision.cluster import Cluster
    from harness.settings import Settings

HOME = "/o/harness/projects"
FORWARD_SECONDS, END_SECONDS = 30.0, 5.0
tracker_app = typer.Typer(help="The Pluto-compatible tracker, and its pages.", no_args_is_help=True)
Port = Annotated[int, typer.Option(help="local port; 0 takes a free one")]


@tracker_app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
)
def serve(context: typer.Context) -> int:
    """Serve the tracker on its own (harness tracker serve --help)."""
    from harness.tracker.__main__ import main

    return main(context.args) or 0


@tracker_app.command("open")
def open_(
    link: Annotated[
        str, typer.Argument(help="the URL of a run as the client printed it (all projects)")
    ] = "",
    cluster_name: options.ClusterName = None,
    kubeconfig: options.Kubeconfig = None,
    context: options.Context = None,
    port: Port = 0,
) -> int:
    """Forward a port to the tracker of a cluster, and print a link that opens its pages. Ctrl-C ends it.

    The link works once and for ten minutes. The browser then stays logged in for twelve hours.
    """
    import httpx

    from harness.core import processes
    from harness.provision.controllers import tracker as embedded
    from harness.provision.lifecycle import cluster_of

    path = page_of(link)
    settings = load(cluster_name=cluster_name, kubeconfig=kubeconfig, context=context)
    cluster = cluster_of(settings)
    found = embedded.find(reached(cluster))
    with processes.signals_as_interrupt(), forwarded(settings, cluster, port) as (process, address):
        try:
            headers = {"Authorization": f"Bearer {found.key}"}
            answer = httpx.post(f"{address}/api/pages/link", headers=headers, timeout=30, trust_env=False)
        except httpx.HTTPError as error:
            raise HarnessError(
                f"the tracker does not answer: {error}", hint="harness status", cause="tracker.unreachable"
            ) from None
        if answer.status_code != 200:
            raise HarnessError(
                f"the tracker answered {answer.status_code} and has no pages, or it refused the key",
                hint="an older tracker is on the cluster: `harness up` brings the present one",
                cause="tracker.unreachable",
            )
        print(f"{address}/login?once={answer.json()['once']}&next={quote(path, safe='')}", flush=True)
        try:
            code = process.wait()
        except KeyboardInterrupt:
            return 0
    raise HarnessError(
        f"kubectl port-forward ended with exit code {code}",
        hint="did the tracker or the cluster go? `harness status`; then open it again",
        cause="tracker.unreachable",
    )


@tracker_app.command()
def key(
    project: Annotated[str, typer.Argument(help="the project that the key opens")],
    cluster_name: options.ClusterName = None,
    kubeconfig: options.Kubeconfig = None,
    context: options.Context = None,
) -> int:
    """Print the key of a project. It opens that project alone, for clients (PLUTO_API_KEY) and the pages."""
    from harness.provision.controllers import tracker as embedded
    from harness.provision.lifecycle import cluster_of
    from harness.tracker.shared.keys import PROJECT_MOST, project_key

    if not project.strip() or len(project.encode()) > PROJECT_MOST:
        raise UsageError(f"a project has 1 to {PROJECT_MOST} bytes, and is not blank", hint="name one")
    cluster = cluster_of(load(cluster_name=cluster_name, kubeconfig=kubeconfig, context=context))
    print(project_key(embedded.find(reached(cluster)).key, project))
    return 0


def page_of(link: str) -> str:
    """Return the path of a link to one of the tracker's pages. Raises UsageError for another link."""
    if not link:
        return HOME
    parts = urlsplit(link)
    if not parts.path.startswith(f"{HOME}/") or not parts.path.isprintable():
        raise UsageError(
            f"{link!r} is no page of the tracker: …{HOME}/PROJECT/rNUMBER is expected",
            hint="take the URL that the client printed, or none",
        )
    return parts.path + (f"?{parts.query}" if parts.query else "")


def reached(cluster: "Cluster") -> "Kube":
    """Return the client of a cluster that answers. Raises HarnessError."""
    if cluster.owns_namespaces and not cluster.kubeconfig.is_file():
        raise HarnessError(
            f"there is no cluster {cluster.name}",
            hint="`harness up` makes one and keeps it; KEEP_CLUSTER=true keeps that of a run",
            cause="tracker.unreachable",
        )
    kube = cluster.kube()
    why = kube.silence()
    if why is not None:
        raise HarnessError(
            f"the cluster {cluster.name} does not answer: {why}",
            hint="`harness up`, or `harness resume` where it is paused",
        )
    return kube


@contextmanager
def forwarded(
    settings: "Settings", cluster: "Cluster", port: int
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Forward a port of this machine's loopback to the tracker, for as long as the block runs.

    Raises HarnessError (cause tracker.unreachable) when that does not begin.
    """
    from harness.provision.controllers import tracker as embedded

    target = ["--kubeconfig", str(cluster.kubeconfig), "--context", cluster.context]
    words = [
        settings.kubectl_bin,
        *target,
        "-n",
        embedded.NAMESPACE,
        "port-forward",
        "--address",
        "127.0.0.1",
    ]
    ports = f"{port or ''}:{embedded.PORT}"
    try:
        process = subprocess.Popen(
            [*words, f"service/{embedded.NAME}", ports],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            start_new_session=True,  # Ctrl-C is ours: it ends this one below
        )
    except FileNotFoundError:
        raise HarnessError(f"there is no {settings.kubectl_bin}", hint="`harness doctor --fix`") from None
    over = threading.Timer(FORWARD_SECONDS, process.kill)
    over.start()
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        over.cancel()
        if not line.startswith("Forwarding from 127.0.0.1:"):
            said = line.strip() or f"nothing within {FORWARD_SECONDS:g} s"
            raise HarnessError(
                f"kubectl port-forward to {ports} said: {said}",
                hint="another --port, or 0 for a free one; `harness status`",
                cause="tracker.unreachable",
            )
        # It says a line for each connection, and would stop when nobody reads them.
        threading.Thread(target=process.stdout.read, daemon=True).start()
        yield process, f"http://{line.split()[2]}"
    finally:
        over.cancel()
        process.terminate()
        try:
            process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:  # a connection that a browser keeps open must not hold Ctrl-C up
            process.kill()
            process.wait()
