"""`harness tracker`: run the tracker, open a cluster's tracker in a browser, and print projects' API keys."""

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
tracker_app = typer.Typer(
    help="Use the harness's own Pluto-compatible tracker and its web pages.", no_args_is_help=True
)
Port = Annotated[int, typer.Option(help="local port; 0 picks a free port")]


@tracker_app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
)
def serve(context: typer.Context) -> int:
    """Run the tracker as a server without a cluster. `harness tracker serve --help` lists its options."""
    from harness.tracker.__main__ import main

    return main(context.args) or 0


@tracker_app.command("open")
def open_(
    link: Annotated[
        str, typer.Argument(help="the URL of a run that the client printed (default: the list of projects)")
    ] = "",
    cluster_name: options.ClusterName = None,
    kubeconfig: options.Kubeconfig = None,
    context: options.Context = None,
    port: Port = 0,
) -> int:
    """Forward a local port to the tracker in a cluster, and print a link to its web pages.

    Ctrl-C stops the port forwarding. The link can be used once, within ten minutes.
    The browser then stays logged in for twelve hours.
    """
    import httpx

    from harness.core import processes
    from harness.provision.controllers import tracker as embedded
    from harness.provision.lifecycle import cluster_of

    path = page_of(link)
    settings = load(cluster_name=cluster_name, kubeconfig=kubeconfig, context=context)
    cluster = cluster_of(settings)
    tracker = embedded.find(reached(cluster))
    with processes.signals_as_interrupt(), forwarded(settings, cluster, port) as (process, address):
        try:
            headers = {"Authorization": f"Bearer {tracker.key}"}
            response = httpx.post(f"{address}/api/pages/link", headers=headers, timeout=30, trust_env=False)
        except httpx.HTTPError as error:
            raise HarnessError(
                f"the tracker does not respond: {error}",
                hint="check with `harness status`",
                cause="tracker.unreachable",
            ) from None
        if response.status_code != 200:
            raise HarnessError(
                f"the tracker returned HTTP {response.status_code}: it has no web pages, or it rejects the "
                "API key",
                hint="run `harness up` to install the current tracker: the cluster may run an older version",
                cause="tracker.unreachable",
            )
        print(f"{address}/login?once={response.json()['once']}&next={quote(path, safe='')}", flush=True)
        try:
            code = process.wait()
        except KeyboardInterrupt:
            return 0
    raise HarnessError(
        f"kubectl port-forward ended with exit code {code}",
        hint="check with `harness status` that the cluster and the tracker are running, then try again",
        cause="tracker.unreachable",
    )


@tracker_app.command()
def key(
    project: Annotated[str, typer.Argument(help="the project that the key gives access to")],
    cluster_name: options.ClusterName = None,
    kubeconfig: options.Kubeconfig = None,
    context: options.Context = None,
) -> int:
    """Print a project's API key, for clients (PLUTO_API_KEY) and for the tracker's web pages.

    The key is valid only for this project.
    """
    from harness.provision.controllers import tracker as embedded
    from harness.provision.lifecycle import cluster_of
    from harness.tracker.shared.keys import MAX_PROJECT_BYTES, project_key

    if not project.strip() or len(project.encode()) > MAX_PROJECT_BYTES:
        raise UsageError(
            f"a project name must not be blank or longer than {MAX_PROJECT_BYTES} bytes",
            hint="harness tracker key PROJECT",
        )
    cluster = cluster_of(load(cluster_name=cluster_name, kubeconfig=kubeconfig, context=context))
    print(project_key(embedded.find(reached(cluster)).key, project))
    return 0


def page_of(link: str) -> str:
    """Return the path in a link to one of the tracker's web pages. Raises UsageError for any other link."""
    if not link:
        return HOME
    parts = urlsplit(link)
    if not parts.path.startswith(f"{HOME}/") or not parts.path.isprintable():
        raise UsageError(
            f"{link!r} is not a link to a run in the tracker: expected …{HOME}/PROJECT/rNUMBER",
            hint="use the run URL that the Pluto client printed, or omit the argument",
        )
    return parts.path + (f"?{parts.query}" if parts.query else "")


def reached(cluster: "Cluster") -> "Kube":
    """Return a client for the harness's cluster. Raises HarnessError if the cluster does not respond."""
    if cluster.owns_namespaces and not cluster.kubeconfig.is_file():
        raise HarnessError(
            f"cluster {cluster.name} does not exist",
            hint="run `harness up` to create a cluster, or set KEEP_CLUSTER=true to keep the cluster of a "
            "run",
            cause="tracker.unreachable",
        )
    kube = cluster.kube()
    reason = kube.silence()
    if reason is not None:
        raise HarnessError(
            f"the cluster {cluster.name} does not respond: {reason}",
            hint="run `harness resume` if the cluster is paused, and otherwise `harness up`",
        )
    return kube


@contextmanager
def forwarded(
    settings: "Settings", cluster: "Cluster", port: int
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Return a context manager that forwards a loopback port on this machine to the tracker.

    It yields the kubectl process and the tracker's local URL. Raises HarnessError (cause tracker.unreachable)
    if the port forwarding does not start.
    """
    from harness.core.processes import environment
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
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            # kubectl has its own session, so only this process receives Ctrl-C. It then ends kubectl.
            start_new_session=True,
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
            output = line.strip() or f"nothing within {FORWARD_SECONDS:g} s"
            raise HarnessError(
                f"kubectl port-forward to {ports} printed: {output}",
                hint="use another --port (0 picks a free port), and check the cluster with `harness status`",
                cause="tracker.unreachable",
            )
        # kubectl prints a line for each connection, and would block if nothing read these lines.
        threading.Thread(target=process.stdout.read, daemon=True).start()
        yield process, f"http://{line.split()[2]}"
    finally:
        over.cancel()
        process.terminate()
        try:
            process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:  # A browser's open connection must not delay Ctrl-C.
            process.kill()
            process.wait()
