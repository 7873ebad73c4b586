"""Read the tracker's key from a Secret named by the user. The key is never printed or written to a file."""

from __future__ import annotations

import base64
import binascii
import re
from dataclasses import dataclass

from harness.attach.api_reader import Reader
from harness.core.errors import HarnessError, UsageError

_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_KEY = re.compile(r"[-._a-zA-Z0-9]{1,253}")
USUAL = ("PLUTO_API_KEY", "PLUTO_API_TOKEN", "api-key")
"""Names under which Secrets with several entries usually contain the tracker's key."""


@dataclass(frozen=True)
class SecretKey:
    """A reference to an entry in a Secret. `key` is "" if the user named only the Secret."""

    name: str
    key: str = ""

    @classmethod
    def of(cls, word: str) -> SecretKey | None:
        """Parse NAME or NAME/KEY. Return None for an empty string. Raises UsageError for an invalid
        string."""
        if not word:
            return None
        name, slash, key = word.partition("/")
        if not _NAME.fullmatch(name) or (slash and not _KEY.fullmatch(key)):
            raise UsageError(f"--secret: expected a Secret as NAME or NAME/KEY, found {word}")
        return cls(name, key)


def key_in(reader: Reader, secret_key: SecretKey, referred: str = "") -> str:
    """Return the tracker's key. `referred` is the entry to which the pods refer.

    Raises HarnessError if the Secret does not exist or cannot be read, if it contains no valid key, or if it
    is not clear which entry contains the key.
    """
    data = reader.secret(secret_key.name)
    names = sorted(data)
    subject = f"Secret {secret_key.name} in namespace {reader.namespace}"
    key = secret_key.key or (referred if referred in data else "") or _only(names)
    if not names:
        raise _problem(f"{subject} is empty", "use --secret to name another Secret")
    if not key:
        text = (
            f"{subject} has {len(names)} keys ({', '.join(names[:8])}), so it is not clear which key is "
            "the tracker's API key"
        )
        raise _problem(text, f"name one of the keys, as in --secret {secret_key.name}/{names[0]}")
    if key not in data:
        raise _problem(
            f"{subject} has no key {key}. Its keys are {', '.join(names[:8])}",
            "use --secret to name one of them",
        )
    try:
        value = base64.b64decode(data[key], validate=True).decode("ascii").strip()
    except (binascii.Error, ValueError):
        value = ""
    if not value or not value.isprintable() or " " in value:
        raise _problem(
            f"the value of {key} in {subject} is not an API key, because it is not a single word",
            "use --secret NAME/KEY to name another key of the Secret",
        )
    return value


def _only(names: list[str]) -> str:
    if len(names) == 1:
        return names[0]
    usual = [name for name in USUAL if name in names]
    return usual[0] if len(usual) == 1 else ""


def _problem(message: str, hint: str) -> HarnessError:
    return HarnessError(message, hint=hint, cause="tracker.unreachable")
