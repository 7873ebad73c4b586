"""Options and functions shared by the commands that launch a workload."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any

from harness.cli import options
from harness.cli.view import lazy

if TYPE_CHECKING:
    from harness.launch.workloads.base import Workload
    from harness.report.finalize import Outcome
    from harness.settings import Settings


@dataclass(frozen=True)
class Launch:
    """The options shared by all commands that launch a workload.

    The `launching` decorator adds them to a command.
    """

    cluster_name: options.ClusterName = None
    workers: options.Workers = None
    kubernetes: options.Kubernetes = None
    images: options.Images = None
    replace: options.Replace = None
    runs_dir: options.RunsDir = None
    keep_runs: options.KeepRuns = None
    keep_cluster: options.Keep = None
    fresh: options.Fresh = None
    kubeconfig: options.Kubeconfig = None
    context: options.Context = None
    wait: options.Wait = None
    quiet: options.Quiet = False
    as_json: options.Json = False

    def settings(self, **more: Any) -> "Settings":
        """Return the settings.

        The options in this instance, and the command's own options in `more`, override all other sources of
        settings.

        Raises UsageError if a value is invalid.
        """
        own = {name: getattr(self, name) for name in _LAUNCH if name not in ("wait", "quiet", "as_json")}
        from harness.core.replacements import pairs

        own["replace"] = pairs(self.replace) if self.replace else None
        return lazy.load(**{**own, "wait_seconds": self.wait, **more})

    def run(self, workload: "Workload", settings: "Settings") -> "Outcome":
        """Launch a workload and judge it. Progress is printed to stderr."""
        from harness import run as running

        with lazy.watching(self.quiet) as (progress, listener):
            return running.run(workload, lazy.run_context(settings, progress), listener)

    def show(self, outcome: "Outcome") -> int:
        """Print the verdict and return its exit code."""
        return lazy.show_verdict(outcome.verdict, outcome.bundle, self.as_json)


NOTHING = Launch()
_LAUNCH = inspect.signature(Launch).parameters


def launching(command: Callable[..., int]) -> Callable[..., int]:
    """A decorator that replaces a command's last parameter, `launch`, with the options of Launch."""

    @wraps(command)
    def wrapper(**arguments: Any) -> int:
        launch = Launch(**{name: arguments.pop(name) for name in _LAUNCH})
        return command(**arguments, launch=launch)

    own = [each for each in inspect.signature(command).parameters.values() if each.name != "launch"]
    parameters = [*own, *_LAUNCH.values()]
    wrapper.__signature__ = inspect.Signature(parameters, return_annotation=int)  # type: ignore[attr-defined]
    wrapper.__annotations__ = {each.name: each.annotation for each in parameters}
    return wrapper
