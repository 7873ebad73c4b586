"""Prepare a launch: create its namespace, LocalQueue, Secrets and API key, and define its environment."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from typing import Any

from harness.context import RecordedContext
from harness.core.concurrency import AT_ONCE
from harness.core.deadlines import Budget
from harness.core.errors import HarnessError
from harness.core.kubernetes import Kube, Object
from harness.evidence.kubernetes.kinds import QUEUED
from harness.evidence.schema.bundle import Expected
from harness.launch import namespaces, pod_standard, sent_code
from harness.launch.apply import limit
from harness.launch.labels import NONCE_LABEL, RANKS_PER_POD
from harness.launch.mounts import netcheck, recorder
from harness.launch.submission import Launching
from harness.launch.workloads.base import Surroundings, Workload
from harness.provision import preflight
from harness.provision.cluster import Ready
from harness.provision.controllers import queues
from harness.provision.controllers import tracker as embedded
from harness.provision.images import scripts
from harness.settings import Settings
from harness.tracker.client.audit import AuditReader, EmbeddedAudit, HostedAudit
from harness.tracker.client.claim import claim, release
from harness.tracker.shared.keys import launch_key

SECRET = "pluto"  # noqa: S105 - the Secret's name


def prepare(
    workload: Workload,
    ready: Ready,
    context: RecordedContext,
    *,
    expected: Expected,
    budget: Budget,
    undo: ExitStack,
    background_work: object,
    on_namespace: Callable[[], None],
) -> Launching:
    """Create the launch's namespace, its LocalQueue, Secrets and ConfigMaps. Return the prepared launch.

    Running jobs of killed harnesses are deleted first. `on_namespace` is called once the namespace exists.
    Cleanup callbacks are added to `undo`.
    """
    kube, settings, nonce = ready.kube, context.settings, context.nonce
    own_key, url, reader = _tracker(kube, settings)
    key = own_key if settings.tracker == "hosted" else _claimed(kube, context, expected, own_key, undo)
    for value in (own_key, key, *workload.secrets):
        context.writer.redactor.add(value)
    namespace_object = _namespace(ready, context, undo, workload)
    namespace = str(namespace_object["metadata"]["name"])
    on_namespace()
    image = preflight.image(workload, ready.worker.tag)
    dry_run = not ready.cluster.owns_namespaces
    rejects_root = pod_standard.rejects_root(kube, workload, namespace_object, image, dry_run=dry_run)
    # Workers may read the key from either of these variables.
    secret_values = {**workload.secret_envs, "PLUTO_API_KEY": key, "PLUTO_API_TOKEN": key}
    worker_image = ready.worker if workload.uses_worker_image else None
    files = {**(worker_image.changed if worker_image else {}), **scripts.users(settings)}
    documents = [
        _secret(namespace, secret_values),
        *([scripts.config_map(namespace, files)] if files else []),
        *([recorder.MOUNTED.config_map(namespace)] if settings.recorder else []),
        netcheck.MOUNTED.config_map(namespace),
    ]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        steps: list[Future[Any]] = [
            pool.submit(limit, kube, ready.cluster, settings, namespace),
            pool.submit(_queue, kube, workload, settings, namespace),
            *(pool.submit(kube.apply, each) for each in documents),
        ]
        code = pool.submit(sent_code.code, image, worker_image, files)
        pull_secret = pool.submit(_pull_secret, kube, settings, namespace)
        cpu_request = pool.submit(_cpu_request, kube, workload, expected.num_nodes, context)
    for step in steps:
        step.result()
    context.writer.update(code=code.result())
    surroundings = Surroundings(
        context=context,
        kube=kube,
        namespace=namespace,
        nonce=nonce,
        image=image,
        envs={
            **environment(expected, nonce, budget, url),
            **({"HARNESS_NETCHECK": "before"} if netcheck_first(workload, settings) else {}),
            # With this variable, pluto.init works on machines that report no CPU frequency. It is not set on
            # existing clusters, where a PASS would hide that the job fails without the harness.
            **({"HARNESS_CPU_FREQUENCY": "0"} if ready.cluster.owns_namespaces else {}),
        },
        secret_env={name: (SECRET, name) for name in secret_values},
        max_seconds=budget.job,
        begun=background_work,
        nodes=expected.num_nodes,
        cpu_request=cpu_request.result(),
        rejects_root=rejects_root,
        scripts=scripts.mounts(files),
        pull_secret=pull_secret.result(),
        recorder=settings.recorder,
        shared_folder=ready.cluster.shared_folder,
        netcheck=True,
    )
    return Launching(
        kube=kube,
        namespace=namespace,
        expected=expected,
        writer=context.writer,
        workload=workload,
        surroundings=surroundings,
        tracker=settings.tracker,
        reader=reader,
    )


def netcheck_first(workload: Workload, settings: Settings) -> bool:
    """Return whether netcheck runs in each pod before the workload's command."""
    return settings.netcheck and workload.purpose not in ("netcheck", "nodes")


def _namespace(ready: Ready, context: RecordedContext, undo: ExitStack, workload: Workload) -> Object:
    """Delete leftover jobs, then lease and create the launch's namespace. Return the namespace."""
    kube, cluster, nonce = ready.kube, ready.cluster, context.nonce
    namespace = namespaces.namespace_of(nonce)
    leases = namespaces.NamespaceLeases(cluster.dir / "launches", mine_only=not cluster.owns_namespaces)
    namespaces.sweep(kube, leases, context.progress)
    # Namespaces are deleted only at the end of the launch. Each deletion takes a second of the controllers'
    # CPU time, which would delay the ranks' startup.
    undo.callback(namespaces.prune, kube, leases)
    leases.acquire(nonce)
    undo.callback(leases.release, nonce)
    if not cluster.retains_namespaces:
        undo.callback(kube.delete, "v1", "Namespace", namespace)
    labels = {**queues.MANAGED, NONCE_LABEL: nonce, **pod_standard.labels(workload, context.settings)}
    annotations = {RANKS_PER_POD: str(workload.per_node)}
    metadata = {"name": namespace, "labels": labels, "annotations": annotations}
    return kube.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})


def _secret(namespace: str, values: dict[str, str]) -> Object:
    """Return a Secret with the variables whose values must not appear in a pod spec."""
    metadata = {"name": SECRET, "namespace": namespace}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": values}


def _queue(kube: Kube, workload: Workload, settings: Settings, namespace: str) -> None:
    """Create the LocalQueue, if Kueue admits workloads of this kind."""
    if set(QUEUED) <= set(workload.watched):
        queues.manages(kube, workload.kind)
        queues.local_queue(kube, namespace, settings.queue, settings.cluster_queue)


def _cpu_request(kube: Kube, workload: Workload, nodes: int, context: RecordedContext) -> str | None:
    """Return the CPU request for each pod that replaces the request in the file, or None if nothing replaces
    it.

    The replacement is reported to the user and recorded in the bundle.
    """
    request = context.settings.cpu_request
    if request is None and workload.cpus is not None:
        request = queues.single_node_request(kube, workload.cpus, nodes)
    if request is not None:
        context.progress(
            f"each pod requests {request} CPU instead of {workload.cpus or 'the request in the file'}"
        )
        writer = context.writer
        writer.update(cluster={**writer.current.cluster, "cpu_request": request})
    return request


def _pull_secret(kube: Kube, settings: Settings, namespace: str) -> str | None:
    """Copy the user's pull secret, if any, into the launch's namespace. Return its name."""
    secret = preflight.pull_secret(kube, settings)
    if secret is None:
        return None
    name = str(secret["metadata"]["name"])
    metadata = {"name": name, "namespace": namespace}
    copy = {"metadata": metadata, "type": secret["type"], "data": secret["data"]}
    kube.apply({"apiVersion": "v1", "kind": "Secret", **copy})
    return name


def _tracker(kube: Kube, settings: Settings) -> tuple[str, str, Callable[[], AuditReader]]:
    """Return the tracker's API key, the tracker's URL for the ranks, and a function that returns an audit
    reader."""
    if settings.tracker == "hosted":
        assert settings.pluto_api_key is not None
        key = settings.pluto_api_key.get_secret_value()
        return key, settings.tracker_url, lambda: HostedAudit(settings.tracker_url, key)
    tracker = embedded.find(kube)
    fault = partial(embedded.permanent_fault, kube)
    return tracker.key, tracker.url, lambda: EmbeddedAudit(tracker.client(kube), gone_reason=fault)


def _claimed(kube: Kube, context: RecordedContext, expected: Expected, key: str, undo: ExitStack) -> str:
    """Claim the run id for this launch. Return an API key that is valid only for the launch's runs.

    A callback in `undo` releases an unused claim. Raises HarnessError with the cause launch.run_id_taken, or
    with tracker.not_ready if the tracker is too old. If the tracker does not respond, the launch continues,
    and a check reports the problem later.
    """
    client = undo.enter_context(embedded.EmbeddedTracker(embedded.URL, key).client(kube))
    undo.callback(release, client, context.nonce)
    try:
        claim(
            client,
            project=expected.project,
            external_id=expected.run_id,
            launch=context.nonce,
            shared=context.settings.share_run_id,
            gone_reason=partial(embedded.permanent_fault, kube),
        )
    except HarnessError as error:
        if error.cause in {"launch.run_id_taken", "tracker.not_ready"}:
            raise
        context.progress(f"the run id could not be reserved in the tracker: {error.message}")
    return launch_key(key, context.nonce, project=expected.project, run=expected.run_id)


def environment(expected: Expected, nonce: str, budget: Budget, url: str) -> dict[str, str]:
    """Return the environment variables for every rank. If `url` is empty, Pluto's default URLs are used."""
    urls = {f"PLUTO_URL_{part}": url for part in ("APP", "API", "INGEST", "PY")} if url else {}
    return {
        "HARNESS_NETCHECK_SECONDS": f"{budget.netcheck:.0f}",
        "HARNESS_NODES": str(expected.num_nodes),
        "HARNESS_NONCE": nonce,
        "HARNESS_RANK_SECONDS": f"{budget.rank:.0f}",
        "HARNESS_RENDEZVOUS_SECONDS": f"{budget.rendezvous:.0f}",
        "HARNESS_STALL_SECONDS": f"{budget.stall:.0f}",
        "PLUTO_RUN_ID": expected.run_id,
        "PLUTO_PROJECT": expected.project,
        "PLUTO_DISABLE_TELEMETRY": "1",
        "NO_PROXY": "localhost,127.0.0.1,.svc,.cluster.local",
        **urls,
    }
