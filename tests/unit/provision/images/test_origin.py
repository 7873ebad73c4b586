"""Where images come from: a slow host is asked again, and nothing is built where building cannot work."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from harness.context import RunContext
from harness.core.errors import HarnessError
from harness.provision.images import origin as module
from harness.provision.images import registry_access, versions
from harness.provision.images.origin import Origin, origin, require_usable
from harness.provision.images.stack import resolve
from harness.settings import Settings

PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy")


class Host:
    """A server on loopback. `answers` has a status for each request.

    With "late", a request gets no answer before the end, unless the server is answering by now.
    """

    def __init__(self, *answers: int | str) -> None:
        host, self.asked, self.end, self.answering = self, 0, threading.Event(), False

        class Handler(BaseHTTPRequestHandler):
            def do_HEAD(self) -> None:
                answer = answers[min(host.asked, len(answers) - 1)]
                host.asked += 1
                if answer == "late" and not host.answering:
                    host.end.wait()
                    return
                self.send_response(200 if isinstance(answer, str) else answer)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.http.server_port}/v2/"
        self.thread = threading.Thread(target=self.http.serve_forever, args=(0.05,))
        self.thread.start()

    def close(self) -> None:
        self.end.set()
        self.http.shutdown()
        self.thread.join()
        self.http.server_close()


@pytest.fixture
def hosts(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Host]]:
    for name in PROXIES:
        monkeypatch.delenv(name, raising=False)
    made: list[Host] = []
    yield made
    for host in made:
        host.close()


def asked(host: Host) -> str:
    with registry_access.client() as client:
        return registry_access._answer(client, host.url, {200, 401})


def test_one_late_answer_does_not_decide(hosts: list[Host], monkeypatch: pytest.MonkeyPatch) -> None:
    """The second attempt has more time. The server answers from then on."""
    hosts.append(Host("late"))

    def limits() -> Iterator[float]:
        yield 0.2
        hosts[0].answering = True
        yield 60.0

    monkeypatch.setattr(registry_access, "TRY_SECONDS", limits())
    assert asked(hosts[0]) == ""
    assert hosts[0].answering


@pytest.mark.parametrize(("first", "tries"), [(503, 2), (429, 2), (403, 1), (404, 1), (200, 1)])
def test_only_a_passing_failure_is_tried_again(
    hosts: list[Host], monkeypatch: pytest.MonkeyPatch, first: int, tries: int
) -> None:
    monkeypatch.setattr(registry_access, "TRY_SECONDS", (60.0, 60.0))
    hosts.append(Host(first, 200))
    assert bool(asked(hosts[0])) == (tries == 1 and first != 200)
    assert hosts[0].asked == tries


def test_host_that_stays_silent_is_named_with_its_limit(
    hosts: list[Host], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry_access, "TRY_SECONDS", (0.1, 0.2))
    hosts.append(Host("late"))
    assert asked(hosts[0]).startswith(f"{hosts[0].url}: ")
    assert asked(hosts[0]).endswith("(after 0.2 s)")


@pytest.fixture
def context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunContext:
    """A machine that reaches no registry, whose Docker has no image."""
    monkeypatch.setattr(
        registry_access, "unreached", lambda _registry: ["https://one.example: HTTP 403", "two"]
    )
    monkeypatch.setattr(module.bases, "complete", lambda _suite: False)
    settings = Settings(images="auto", cache_dir=tmp_path / "cache", state_dir=tmp_path / "state")
    return RunContext(settings=settings, progress=lambda _: None)


@pytest.mark.parametrize(("user", "debian", "why"), [(1000, True, "only root"), (0, False, "not run Debian")])
def test_source_is_not_chosen_where_it_cannot_work(
    context: RunContext, monkeypatch: pytest.MonkeyPatch, user: int, debian: bool, why: str
) -> None:
    """A launch ends at once, with the hosts that it did not reach and the reason."""

    def mirror() -> str:
        if not debian:
            raise HarnessError("no source of Debian packages")
        return "http://mirror"

    monkeypatch.setattr("os.geteuid", lambda: user)
    monkeypatch.setattr(module.debian, "mirror", mirror)
    with pytest.raises(HarnessError, match=why) as refused:
        resolve(context)
    assert "not reached: https://one.example: HTTP 403, and 1 more" in refused.value.message
    assert refused.value.cause == "cluster.node_image"
    assert "HTTPS_PROXY" in refused.value.hint


def test_images_that_are_built_already_can_be_used_anywhere(
    context: RunContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    monkeypatch.setattr(module.bases, "complete", lambda _suite: True)
    monkeypatch.setattr(module.make, "complete", lambda _context: True)
    chosen = origin(versions.load(context.settings), context)
    assert (chosen.image_source, chosen.usable) == ("source", True)
    require_usable(chosen)


def test_a_docker_that_does_not_respond_has_no_images(
    context: RunContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    def down(_suite: str) -> bool:
        raise HarnessError("down")

    monkeypatch.setattr("os.geteuid", lambda: 1000)
    monkeypatch.setattr(module.bases, "complete", down)
    assert not origin(versions.load(context.settings), context).usable


@pytest.mark.parametrize(
    ("mode", "way", "usable"), [("registry", "registry", False), ("source", "source", True)]
)
def test_a_set_origin_is_kept(
    context: RunContext, monkeypatch: pytest.MonkeyPatch, mode: str, way: str, usable: bool
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr(module.debian, "mirror", lambda: "http://mirror")
    settings = context.settings.model_copy(update={"images": mode})
    chosen = origin(versions.load(settings), RunContext(settings=settings, progress=lambda _: None))
    assert (chosen.image_source, chosen.usable) == (way, usable)
    assert bool(chosen.missing) == (mode == "registry")


def test_the_reason_counts_the_other_hosts() -> None:
    assert Origin("source", ["a: b"]).reason == "not reached: a: b"
    assert Origin("source", ["a: b", "c", "d"]).reason == "not reached: a: b, and 2 more"
    assert Origin("registry").reason == ""
