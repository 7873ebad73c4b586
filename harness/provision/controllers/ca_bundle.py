"""Set the certificate authority that the API server trusts when it calls JobSet's and Kueue's webhooks."""

from __future__ import annotations

import copy
from collections.abc import Mapping

from harness.core.kubernetes import Object

SECRET = "-webhook-server-cert"  # noqa: S105 - the suffix of the Secrets' names


def trusting(document: Object, authorities: Mapping[str, str]) -> Object:
    """Return a copy of the object with `caBundle` set for each of its webhooks.

    `authorities` maps a namespace to its webhooks' certificate authority. If a CRD lacks `caBundle`, Kueue
    writes the field at startup, which takes 2 s.
    """
    changed = copy.deepcopy(document)
    conversion = changed.get("spec", {}).get("conversion", {}).get("webhook")
    for webhook in [*changed.get("webhooks", []), *([conversion] if conversion else [])]:
        authority = authorities.get(webhook["clientConfig"].get("service", {}).get("namespace", ""))
        if authority:
            webhook["clientConfig"]["caBundle"] = authority
    return changed
