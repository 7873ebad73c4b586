"""`harness doctor --fix`: install missing packages and start Docker, without changing what already works."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Final

from harness.context import RunContext
from harness.core.concurrency import in_background
from harness.core.errors import HarnessError, ToolError, WaitError
from harness.core.locks import locked
from harness.core.processes import environment
from harness.core.progress import Progress
from harness.provision.doctor import apt, probe
from harness.provision.doctor.check_results import Check, at_least, exit_code, version_of
from harness.provision.doctor.checks import DOCKER_BOUNDED, INOTIFY, checks
from harness.provision.kind.docker_check import PODMAN
from harness.provision.source.prefetch import download_modules
from harness.settings import Settings

DAEMON_SECONDS = 90
DOWN: Final = "docker.daemon_down"
APT_SECONDS = 900
GO_HOME = Path("/usr/lib/go-1.26/bin/go")
PID_FILES = {
    Path("/run/docker.pid"): "dockerd",
    Path("/run/docker/containerd/containerd.pid"): "containerd",
}
GO_LINK = Path("/usr/local/bin/go")

_PACKAGES = {
    "Docker client": ["docker-cli"],
    "docker buildx": ["docker-buildx"],
    "kind": ["kind"],
    "kubectl": ["kubectl"],
    "Go": ["golang-1.26-go", "golang-1.26-src"],
    "mmdebstrap": ["mmdebstrap"],
}
_DAEMON_PACKAGES = ["docker.io", "containerd", "docker-cli", "docker-buildx", "iptables"]


def fix(context: RunContext) -> list[Check]:
    """Repair the machine where possible, then run all checks and return their results.

    If this process runs as root, it starts Docker's daemon, raises inotify limits and, on Debian, installs
    packages. Otherwise nothing is changed, and the checks show what to do. A daemon that responds is never
    restarted. Raises HarnessError if a repair fails.
    """
    settings, progress = context.settings, context.progress
    with locked(
        settings.state_dir / "doctor.lock",
        lambda: progress("waiting for another `harness doctor --fix` to end"),
    ):
        before = checks(settings)
        failed = [check for check in before if check.failed]
        if os.geteuid() != 0:
            if failed:
                progress("nothing was changed, because you are not root")
            return before
        dockerd = probe.run("dockerd", "--version").text if probe.which("dockerd") else None
        packages = needed_packages(failed, settings, dockerd)
        release = apt.codename(apt.text_of(Path("/etc/os-release")))
        if packages and release:
            with _go_modules(before, context):
                install(packages, release, progress)
            _link_go(packages, progress)
        elif packages:
            progress("nothing was installed, because this machine does not run Debian")
        if not probe.docker_info()[0] and not os.environ.get("DOCKER_HOST") and probe.which("dockerd"):
            start_daemon(context)
        _raise_inotify(before, progress)
        after = checks(settings)
        progress("ready" if exit_code(after) == 0 else "some checks still fail")
        return after


def needed_packages(failed: Sequence[Check], settings: Settings, dockerd: str | None) -> list[str]:
    """Return the Debian packages that repair the failed checks.

    `dockerd` is the output of `dockerd --version`, or None if dockerd is not installed.
    """
    # Checks that found Podman are skipped, because installing their packages would make apt remove
    # podman-docker.
    names = {check.name for check in failed if check.seen != PODMAN}
    names -= {"kind"} if settings.kind_bin != "kind" else set()
    names -= {"kubectl"} if settings.kubectl_bin != "kubectl" else set()
    required: list[str] = []
    if "Docker daemon" in names and not os.environ.get("DOCKER_HOST"):
        too_old = dockerd is not None and not at_least(version_of(dockerd), DOCKER_BOUNDED)
        if dockerd is None or (too_old and probe.capabilities_withheld()):
            required += _DAEMON_PACKAGES
    for name, packages in _PACKAGES.items():
        if name in names:
            required += packages
    return list(dict.fromkeys(required))


def _go_modules(before: Sequence[Check], context: RunContext) -> AbstractContextManager[object]:
    """Return a context manager that downloads Go modules in the background.

    It does nothing if Go is not installed or images are not built from source.
    """
    from_source = any(check.name == "Go" and check.ok and check.required for check in before)
    return in_background(lambda: download_modules(context)) if from_source else nullcontext()


def install(packages: Sequence[str], release: str, progress: Progress) -> None:
    """Install Debian packages.

    If no apt source provides a suite that they need, this suite is added to apt's sources first.
    """
    specs = apt.specs(packages, release)
    suites = apt.missing_suites(specs, apt.read_sources())
    if suites:
        for path in apt.write_sources(suites, release):
            progress(f"wrote {path} ({', '.join(suites)}, with lower priorities than all other sources)")
    progress("apt-get update")
    _apt("update")
    progress(f"apt-get install {' '.join(specs)}")
    _apt("install", "--yes", "--no-install-recommends", *specs)


def _apt(*arguments: str) -> None:
    command = ["apt-get", "-qq", "-o", "DPkg::Lock::Timeout=120", *arguments]
    result = probe.run(*command, seconds=APT_SECONDS)
    if not result.ok:
        raise ToolError(
            command, result.code, result.text, hint="repair apt, then run `harness doctor --fix` again"
        )


def start_daemon(context: RunContext) -> None:
    """Start dockerd, and wait until it responds.

    If systemd is running, it starts dockerd. Otherwise dockerd is started as a detached process with a log
    file.
    """
    settings, progress = context.settings, context.progress
    if Path("/run/systemd/system").is_dir():
        progress("systemctl start docker")
        result = probe.run("systemctl", "start", "docker", seconds=DAEMON_SECONDS)
        if not result.ok:
            raise ToolError(
                ["systemctl", "start", "docker"],
                result.code,
                result.text,
                hint="see `journalctl -u docker`",
                cause=DOWN,
            )
        _wait_for_daemon(lambda: None)
        return
    _remove_stale_pid_files(progress)
    log = settings.state_dir / "dockerd.log"
    progress(f"starting dockerd, which logs to {log}")
    with log.open("ab") as output:
        daemon = subprocess.Popen(
            [probe.which("dockerd") or "dockerd"],
            cwd="/",
            env=environment({"PATH": probe.SEARCH_PATH}),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def ended() -> None:
        if daemon.poll() is not None:
            hint = f"read the whole log in {log}"
            raise ToolError(["dockerd"], daemon.returncode, apt.text_of(log), hint=hint, cause=DOWN)

    _wait_for_daemon(ended)
    progress("dockerd answers")


def _remove_stale_pid_files(progress: Progress) -> None:
    """Remove the pid files that a killed dockerd left behind.

    If another process now has the same pid, a new dockerd would conclude that dockerd is already running, and
    would not start.
    """
    for path, program in PID_FILES.items():
        pid = probe.kernel_number(path)
        if pid is not None and apt.text_of(Path(f"/proc/{pid}/comm")).strip() != program:
            path.unlink()
            progress(f"removed {path}, because process {pid} is not {program}")


def _wait_for_daemon(still_running: Callable[[], None]) -> None:
    start = time.monotonic()
    while True:
        info, problem = probe.docker_info()
        if info:
            return
        still_running()
        if time.monotonic() - start > DAEMON_SECONDS:
            raise WaitError("`docker info` to answer", problem, DAEMON_SECONDS, cause=DOWN)
        time.sleep(0.3)


def _link_go(packages: Sequence[str], progress: Progress) -> None:
    """Link `go` into a folder on PATH, because Debian's golang-1.26-go package does not do this."""
    if "golang-1.26-go" in packages and GO_LINK.resolve() != GO_HOME:
        if GO_LINK.exists():
            raise HarnessError(
                f"{GO_LINK} exists, but is an older version of Go",
                hint=f"remove this file, or put {GO_HOME.parent} first on PATH",
            )
        GO_LINK.symlink_to(GO_HOME)
        progress(f"linked {GO_LINK} to {GO_HOME}")


def _raise_inotify(before: Sequence[Check], progress: Progress) -> None:
    """Raise the inotify limits until the next boot.

    If the kernel rejects the change, a progress message reports the reason, and the check still fails.
    """
    low = {check.name.removeprefix("inotify ") for check in before if not check.ok}
    for name in low & INOTIFY.keys():
        try:
            (Path("/proc/sys/fs/inotify") / name).write_text(str(INOTIFY[name]))
            progress(f"set fs.inotify.{name} to {INOTIFY[name]} until the next boot")
        except OSError as error:
            progress(f"fs.inotify.{name} cannot be raised: {error.strerror}")
