"""Find the run to which the ranks of an attached job logged, and read it from the tracker.

The tracker and the run are taken from the first of these sources that has them: the options, the PLUTO_*
variables in the pod specs, and the lines that the recorder and the Pluto client wrote to the logs. The key is
read from a Secret if the user names one. The key in the user's own environment is used only if the user also
named the tracker. Only GET requests are sent.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from urllib.parse import unquote, urlsplit

import httpx

from harness.attach.api_reader import Reader
from harness.attach.rank_pods import AttachedJob
from harness.attach.tracker_key import SecretKey, key_in
from harness.context import RecordedContext
from harness.core import http_client, service_proxy
from harness.core.clock import now
from harness.core.errors import HarnessError, UsageError
from harness.core.kubernetes import Object
from harness.evidence.io.reader import Bundle
from harness.evidence.io.writer import TrackerKind
from harness.evidence.kubernetes.objects import container_of, items, mapping
from harness.evidence.schema.bundle import Expected
from harness.evidence.schema.tracker import Attachment, DigestReport, RunWriter, TrackerRun, TrackerSummary
from harness.judge.points import digest_records
from harness.tracker.client.audit import AuditReader, EmbeddedAudit, collect
from harness.tracker.client.details import by_id, by_word, is_tracker_id
from harness.tracker.client.hosted import DEFAULT_URL, HostedAudit
from harness.tracker.client.retry import RejectedError, ask

SECONDS = 10.0
"""Timeout, in seconds, for a response from the tracker."""
URLS = ("PLUTO_URL_API", "PLUTO_URL_APP")
KEYS = ("PLUTO_API_KEY", "PLUTO_API_TOKEN")
MAX_RUNS = 64
"""Maximum number of runs that are read because their ids are in the recorders' lines."""
_PAGE = re.compile(r"(https?://[^/\s\x1b]+)/o/[^/\s]+/projects/([^/\s\x1b]+)/[^/\s\x1b]+")
"""Pattern for the URL of a run's page, which the Pluto client prints after it has attached to the run."""
_HOSTED_APP = "pluto.trainy.ai"


@dataclass(frozen=True)
class TrackerOptions:
    """The options that specify the tracker, its API key and the run."""

    url: str = ""
    project: str = ""
    run: str = ""
    """The run id (PLUTO_RUN_ID), the display id (E2E-17) or the tracker's own id."""
    secret: SecretKey | None = None

    def check(self) -> None:
        """Raise UsageError if the tracker's URL is not valid."""
        if not self.url:
            return
        try:
            parts = urlsplit(self.url)
            valid = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
        except ValueError:
            valid = False
        if not valid:
            raise UsageError(
                f"--tracker-url: expected a URL such as http://tracker.team-a.svc:8080, found {self.url}"
            )


@dataclass
class Logged:
    """Information about the run that the recorders and Pluto clients wrote to the logs."""

    ids: Counter[int] = field(default_factory=Counter)
    """Maps the tracker's id of each run to the number of processes that logged to it."""
    url: str = ""
    project: str = ""


def read(
    job: AttachedJob,
    reader: Reader,
    pods: Sequence[Object],
    options: TrackerOptions,
    context: RecordedContext,
) -> None:
    """Record the tracker's data for the job's run, or the reason why it cannot be read. Never raises."""
    writer = context.writer
    expected = writer.current.expected or job.expected
    bundle = Bundle.open(writer.path)
    # If the job has been deleted in the meantime, its pods are only in the bundle.
    pods = pods or [state.object for state in bundle.last("pod").values()]
    container = job.launch.container
    logged = _logged(bundle, pods, container)
    tracker_run = _tracker_run(options, context, pods, container, logged)
    if isinstance(tracker_run, str):
        writer.update(unread={**reader.unread, "tracker": tracker_run})
        return
    url, runs = tracker_run.url, list[TrackerRun]()
    writer.update(
        expected=expected.model_copy(update={"run_id": tracker_run.run, "project": tracker_run.project})
    )
    context.progress(
        f"reading run {tracker_run.run or ', '.join(map(str, logged.ids))} from the tracker at {url}"
    )

    def write(kind: TrackerKind, record: TrackerRun | Attachment | RunWriter | DigestReport) -> None:
        runs.extend([record] if isinstance(record, TrackerRun) else [])
        writer.tracker(kind, record)

    try:
        key = _key(options, context, reader, pods, container, url)
        writer.redactor.add(key)
        audit, client = _audit(url, key, reader)
        updated, ids = _resolved(audit, client, expected, tracker_run, logged)
        writer.update(expected=updated)
        summary = collect(
            audit,
            external_id=updated.run_id,
            project=updated.project,
            job_name=job.launch.tracked_as,
            write=write,
            write_points=writer.point_rows,
            ids=ids,
        )
        summary = _unless_absent(summary, updated, runs) if tracker_run.given else summary
    except HarnessError as error:
        summary = _failed(str(error))
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        summary = _failed(f"the tracker at {url} could not be read: {type(error).__name__}: {error}")
    writer.tracker_summary(summary)


def _failed(reason: str) -> TrackerSummary:
    return TrackerSummary(
        source="embedded", fetched_at=now(), runs=0, attachments=None, points=0, error=reason
    )


# -- Identify the tracker and the run ------------------------------------------------------------------------
@dataclass(frozen=True)
class Named:
    """The tracker and the run. `run` is empty if the run is known only from the recorders' lines."""

    url: str
    project: str
    run: str
    given: bool
    """Whether the user named the tracker, the project or the run. Such a name may be wrong."""


def _tracker_run(
    options: TrackerOptions, context: RecordedContext, pods: Iterable[Object], container: str, logged: Logged
) -> Named | str:
    """Return the tracker and the run of the job, or a clause that explains why they are not known."""
    env = _environment(pods, container)
    of_pods = next((env[name] for name in URLS if name in env), logged.url)
    url = options.url or of_pods or context.settings.tracker_url
    project = options.project or env.get("PLUTO_PROJECT", "") or logged.project
    run = options.run or env.get("PLUTO_RUN_ID", "")
    missing = []
    if not url:
        missing.append("which tracker the ranks log to (PLUTO_URL_API; specify it with --tracker-url URL)")
    if not run and not logged.ids:
        missing.append("which run the ranks log to (PLUTO_RUN_ID; specify it with --run RUN_ID)")
    if run and not project and not logged.ids:
        missing.append("the run's project (PLUTO_PROJECT; specify it with --project P)")
    if missing:
        return f"neither the pods nor their logs show {', nor '.join(missing)}"
    is_given = bool(options.url or options.project or options.run) or url != of_pods
    return Named(url.rstrip("/"), project, run, is_given)


def _environment(pods: Iterable[Object], container: str) -> dict[str, str]:
    """Return the most common value of each PLUTO_* variable in the pods, excluding values from Secrets."""
    counts: dict[str, Counter[str]] = {}
    for pod in pods:
        for each in _variables(pod, container):
            name, value = str(each.get("name")), each.get("value")
            if name.startswith("PLUTO_") and isinstance(value, str) and value and "$(" not in value:
                counts.setdefault(name, Counter())[value] += 1
    return {name: values.most_common(1)[0][0] for name, values in counts.items()}


def _variables(pod: Object, container: str) -> list[Object]:
    own = container_of(mapping(pod, "spec"), container)
    return items(own, "env")


def _logged(bundle: Bundle, pods: Iterable[Object], container: str) -> Logged:
    """Return the tracker's URL, the project and the run ids that are in the pods' logs."""
    logged = Logged()
    for pod in pods:
        path = bundle.log(str(pod["metadata"]["name"]), container)
        nonce = digest_records.nonce_of(pod, container)
        if not nonce or not bundle.has(path):
            continue
        lines = (line.decode(errors="replace") for line in bundle.log_lines(path))
        record = digest_records.read(map(partial(_noting_page, logged), lines), nonce)
        for process in record.records:
            if process.summary is not None:
                logged.ids.update(
                    int(run.run) for run in process.summary.runs if run.count and run.run.isdecimal()
                )
    return logged


def _noting_page(logged: Logged, line: str) -> str:
    if not logged.url and (page := _PAGE.search(line)):
        hosted = urlsplit(page[1]).hostname == _HOSTED_APP
        logged.url, logged.project = DEFAULT_URL if hosted else page[1], unquote(page[2])
    return line


def _resolved(
    audit: AuditReader, client: httpx.Client, expected: Expected, tracker_run: Named, logged: Logged
) -> tuple[Expected, list[int]]:
    """Return `expected` with the job's run filled in, and the tracker's ids of all runs to read.

    If no run id is known, the run to which most processes logged is used.
    """
    run, project = tracker_run.run, tracker_run.project
    ids = [run_id for run_id, _ in logged.ids.most_common(MAX_RUNS)]
    updated = expected.model_copy(update={"run_id": run, "project": project})
    of_recorders = by_id(client, ids, project, SECONDS)
    matching = next((one for one in of_recorders if not run or run in _names(one)), None)
    if matching is not None and tracker_run.given and project not in ("", matching.project):
        matching = None  # The run is not in the project that the user named.
    if matching is None and run and is_tracker_id(run):
        external = not run.isdecimal() and audit.runs(external_id=run, project=project, job_name=None)
        matching = None if external else by_word(client, run, project, SECONDS)
    if matching is None:
        return updated.model_copy(update={"run_id": run or ", ".join(map(str, ids[:1]))}), ids
    name = matching.external_id or matching.display_id or str(matching.run_id)
    fields = {"run_id": name, "project": matching.project, "tracker_run": matching.run_id}
    return updated.model_copy(update=fields), [*dict.fromkeys([matching.run_id, *ids])]


def _names(run: TrackerRun) -> tuple[str | None, ...]:
    return run.external_id, run.display_id, str(run.run_id)


def _unless_absent(summary: TrackerSummary, expected: Expected, runs: Sequence[TrackerRun]) -> TrackerSummary:
    """Return the tracker's summary, with an error if the user named a run that does not exist in the
    tracker."""
    exists = any(
        run.run_id == expected.tracker_run
        or (run.external_id, run.project) == (expected.run_id, expected.project)
        for run in runs
    )
    if exists or summary.error is not None:
        return summary
    run_names = ", ".join(f"{run.external_id or run.display_id} in project {run.project}" for run in runs[:3])
    text = f"the tracker has no run {expected.run_id} in project {expected.project}"
    text += f"; the job's recorders report {run_names}" if run_names else ""
    return summary.model_copy(update={"error": f"{text}\n  → check --run, --project and --tracker-url"})


# -- Connect to the tracker ----------------------------------------------------------------------------------
def _key(
    options: TrackerOptions,
    context: RecordedContext,
    reader: Reader,
    pods: Sequence[Object],
    container: str,
    url: str,
) -> str:
    """Return the tracker's API key. Raises HarnessError if there is none, or if it must not be sent to `url`.

    A key is not sent to a URL that is known only from the pods or their logs, because the job's author chose
    the URL and may not be allowed to read the key. A key from a Secret that the pods use is an exception.
    """
    confirmed = (options.url, context.settings.tracker_url, DEFAULT_URL)
    trusted_urls = {each.rstrip("/") for each in confirmed if each}
    if (secret := options.secret) is not None:
        key = key_in(reader, secret, _referred(pods, container, secret.name))
        if url in trusted_urls or any(_has_secret(pod, secret.name) for pod in pods):
            return key
        raise HarnessError(
            f"the key in Secret {secret.name} is not sent to the tracker {url}, because only the pods name "
            "this "
            "tracker and they do not use the Secret",
            hint=f"if you trust this tracker, add --tracker-url {url}",
            cause="tracker.unreachable",
        )
    if context.settings.pluto_api_key is not None:
        if url in trusted_urls:
            return context.settings.pluto_api_key.get_secret_value()
        raise HarnessError(
            f"your PLUTO_API_KEY is not sent to the tracker {url}, because only the pods name this tracker",
            hint=f"if you trust this tracker, add --tracker-url {url}; or use the job's own key with "
            "--secret NAME",
            cause="tracker.unreachable",
        )
    names = dict.fromkeys(
        str(each["valueFrom"]["secretKeyRef"].get("name"))
        for pod in pods
        for each in _variables(pod, container)
        if each.get("name") in KEYS and "secretKeyRef" in (each.get("valueFrom") or {})
    )
    origin = f"; the pods read the key from Secret {next(iter(names))}" if names else ""
    raise HarnessError(
        f"the tracker needs an API key, but none was found{origin}",
        hint=f"read the key from a Secret with --secret {next(iter(names), 'NAME')}, or set PLUTO_API_KEY",
        cause="tracker.unreachable",
    )


def _referred(pods: Iterable[Object], container: str, secret: str) -> str:
    """Return the entry of the Secret to which a pod's PLUTO_API_KEY refers, or ""."""
    for pod in pods:
        for each in _variables(pod, container):
            reference = (each.get("valueFrom") or {}).get("secretKeyRef") or {}
            if each.get("name") in KEYS and reference.get("name") == secret:
                return str(reference.get("key") or "")
    return ""


def _has_secret(pod: Object, secret: str) -> bool:
    """Return whether a pod uses a Secret in its environment or as a volume."""
    containers = [*items(pod, "spec", "initContainers"), *items(pod, "spec", "containers")]
    variables = [mapping(each, "valueFrom", "secretKeyRef") for c in containers for each in items(c, "env")]
    env_sources = [mapping(each, "secretRef") for c in containers for each in items(c, "envFrom")]
    volumes = [mapping(each, "secret").get("secretName") for each in items(pod, "spec", "volumes")]
    return secret in (*(each.get("name") for each in (*variables, *env_sources)), *volumes)


def _audit(url: str, key: str, reader: Reader) -> tuple[AuditReader, httpx.Client]:
    """Return a reader for the tracker at this URL, and its HTTP client.

    If the tracker has no audit view, or the key has no access to it, the reader uses Pluto's own API.
    """
    service = service_proxy.service_of(url, reader.namespace)
    if service is None:
        client = http_client.client(
            base_url=url, headers={"Authorization": f"Bearer {key}", "X-Api-Key": key}, timeout=30
        )
    else:
        client = service_proxy.client(reader.kube, service, {"X-Api-Key": key})
    try:
        ask(client, "api/audit/runs", {}, SECONDS)
    except RejectedError as error:
        status = error.response.status_code
        if service is not None and _of_api_server(error.response):
            raise _not_proxied(service, reader, error.response) from None
        if status not in (403, 404):
            raise
        return HostedAudit(url, key, seconds=SECONDS, http=client), client
    return EmbeddedAudit(client, SECONDS), client


def _of_api_server(response: httpx.Response) -> bool:
    """Return whether the response comes from the API server rather than from the tracker behind its proxy."""
    try:
        document = response.json()
    except ValueError:
        return False
    return isinstance(document, dict) and document.get("kind") == "Status" and "apiVersion" in document


def _not_proxied(service: service_proxy.Service, reader: Reader, response: httpx.Response) -> HarnessError:
    subject = f"Service {service.name} in namespace {service.namespace}"
    message = str(response.json().get("message"))[:300]
    if response.status_code in (401, 403):
        role = (
            f"ask for the Role that `harness attach --print-rbac -n {reader.namespace} --tracker-url …` "
            "prints"
        )
        return HarnessError(
            f"you are not permitted to reach {subject} through the API server: {message}",
            hint=role,
            cause="tracker.unreachable",
        )
    return HarnessError(
        f"the API server cannot reach the tracker at {subject}: {message}",
        hint="check the tracker's URL, or set another one with --tracker-url",
        cause="tracker.unreachable",
    )
