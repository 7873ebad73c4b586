"""Log as text, or as one JSON object per line. Log lines about a job or queue contain its name."""

from __future__ import annotations

import json
import logging
import sys
import time
from types import TracebackType
from typing import Any, Literal

from kubernetes.client.exceptions import ApiException
from urllib3.exceptions import HTTPError

from harness.core.kubernetes_retries import reason_of

Format = Literal["text", "json"]


def about(kind: str, namespace: str, name: str, uid: str | None = None) -> dict[str, Any]:
    """Return the `extra` argument for a log call about a job or queue.

    `kind` is "job" or "queue". `namespace` and `name` are those of the object.
    """
    return {"about": {"namespace": namespace, kind: name, **({"uid": uid} if uid else {})}}


def short(error: Exception) -> str:
    """Return an exception's message on one line.

    For an error response of the API server, this is the server's message.
    """
    if isinstance(error, ApiException | HTTPError):
        return reason_of(error)
    return f"{type(error).__name__}: {str(error)[:300]}"


class Text(logging.Formatter):
    """Formats a log record as `TIME LEVEL LOGGER NAMESPACE/NAME: MESSAGE`."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s %(whose)s%(message)s")

    def format(self, record: logging.LogRecord) -> str:
        context = getattr(record, "about", None)
        record.whose = (
            f"{context['namespace']}/{context.get('job') or context.get('queue')}: " if context else ""
        )
        return super().format(record)


class Json(logging.Formatter):
    """Formats a log record as a JSON object on one line: time (UTC), level, logger, message, namespace, job
    or queue, uid, error."""

    def format(self, record: logging.LogRecord) -> str:
        seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line = {
            "time": f"{seconds}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "about", {}),
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def setup(log_format: Format) -> None:
    """Write all log lines to stderr in the given format."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(Json() if log_format == "json" else Text())
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    sys.excepthook = _crash


def _crash(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Log an uncaught exception in the configured format."""
    logging.getLogger(__name__).critical("the controller ends: %s", error, exc_info=(kind, error, trace))
