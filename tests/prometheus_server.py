"""A real Prometheus that scrapes given targets each second, and answers queries."""

from __future__ import annotations

import json
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import yaml

from harness.torchrun_controller.objects import dashboard
from tests import tools

SECONDS = 60.0
RANGE = "30s"
"""What stands for Grafana's $__rate_interval: enough scrapes for a rate."""


@dataclass
class Prometheus:
    """A Prometheus with these `scrape_configs`. Its data goes into `folder`."""

    folder: Path
    scrape_configs: list[dict[str, Any]]

    def __enter__(self) -> Prometheus:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._address = f"127.0.0.1:{free.getsockname()[1]}"
        document = {"global": {"scrape_interval": "1s"}, "scrape_configs": self.scrape_configs}
        (self.folder / "prometheus.yml").write_text(yaml.safe_dump(document))
        self._log = (self.folder / "prometheus.log").open("wb")
        self._process = subprocess.Popen(
            [
                tools.prometheus(),
                f"--config.file={self.folder}/prometheus.yml",
                f"--storage.tsdb.path={self.folder}/data",
                f"--web.listen-address={self._address}",
            ],
            stdout=self._log,
            stderr=self._log,
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.terminate()
        self._process.wait(30)
        self._log.close()

    def query(self, expression: str) -> list[tuple[dict[str, str], float]]:
        """Return the current samples of an expression, labels and value. Raises RuntimeError."""
        url = f"http://{self._address}/api/v1/query?{urllib.parse.urlencode({'query': expression})}"
        try:
            with urllib.request.urlopen(url, timeout=10) as answer:
                result = json.load(answer)["data"]["result"]
        except urllib.error.HTTPError as error:
            if error.code == 503:  # it has not loaded its data yet
                return []
            raise RuntimeError(f"{expression}: {error.read().decode()}") from None
        except OSError:
            if self._process.poll() is not None:
                raise RuntimeError((self.folder / "prometheus.log").read_text()[-2000:]) from None
            return []
        return [(sample["metric"], float(sample["value"][1])) for sample in result]

    def until(self, expression: str, least: float | None = None) -> list[tuple[dict[str, str], float]]:
        """Return the samples of an expression once there are any, and one of them is at least `least`."""
        late = time.monotonic() + SECONDS
        while True:
            found = self.query(expression)
            if found and (least is None or max(value for _, value in found) >= least):
                return found
            assert time.monotonic() < late, (expression, found, self.query("up"))
            time.sleep(0.2)


def as_run(query: str, namespace: str = ".*") -> str:
    """Return a query of the dashboard with Grafana's variables replaced, as Grafana does."""
    return query.replace(dashboard.RATE, RANGE).replace(dashboard.NAMESPACE, namespace)
