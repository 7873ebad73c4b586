"""Determine what torchrun derives from the pods' own host names unless an option overrides it.

With a c10d or etcd-v2 rendezvous, torchrun does not pass MASTER_ADDR from the pod template to the workers.
Instead, it passes the name of the agent that comes first in alphabetical order. An agent's name is
--local-addr, or else `socket.getfqdn()` (torch/distributed/elastic/rendezvous/dynamic_rendezvous.py).

With a c10d rendezvous, each torchrun also compares the host in --rdzv_endpoint with its pod's own name. If
they match, it opens the rendezvous store (`_matches_machine_hostname` in utils.py of the same package).
"""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping, Sequence
from typing import Any

from .finding import OK, Finding, failed
from .rank_report import Report
from .torchrun_options import RENDEZVOUS

BACKEND, ENDPOINT, CONF, LOCAL_ADDR = RENDEZVOUS
DYNAMIC = ("c10d", "etcd-v2")
"""Backends with which torchrun assigns the pods' ranks in the order of their names."""


def published(torchrun: Mapping[str, str]) -> bool:
    """Return whether torchrun passes a pod's own host name to the workers as MASTER_ADDR."""
    return torchrun.get(BACKEND) in DYNAMIC and not torchrun.get(LOCAL_ADDR)


def compared(torchrun: Mapping[str, str], master: str) -> bool:
    """Return whether each torchrun compares its own name with `master`, to determine who opens the store."""
    if torchrun.get(BACKEND) != "c10d" or re.search(r"\bis_host\b|(^|,)\s*[$`]", torchrun.get(CONF, "")):
        return False
    host = re.sub(r":[^\]:]*$", "", torchrun.get(ENDPOINT, "")).strip("[]")
    return host in (master, "$MASTER_ADDR", "${MASTER_ADDR}")


def own(torchrun: Mapping[str, str], master: str) -> dict[str, Any]:
    """Return the facts about this pod that `published_by` and `unhosted` need. `master` is MASTER_ADDR.

    Resolving the pod's own name may take several seconds.
    """
    facts: dict[str, Any] = {}
    if published(torchrun):
        facts["published"] = socket.getfqdn()
    if compared(torchrun, master):
        host = socket.gethostname()
        try:
            records = socket.getaddrinfo(host, None, proto=socket.IPPROTO_TCP, flags=socket.AI_CANONNAME)
        except OSError:
            return facts
        facts["names"] = sorted({host, *(name for *_, name, _ in records if name)})
        facts["addresses"] = sorted({str(address[0]) for *_, address in records})
    return facts


def published_by(at: Mapping[int, Report], nodes: int) -> int | None:
    """Return the rank whose name torchrun would pass to the workers, or None if a rank's name is unknown."""
    names = {place: str(report.facts.get("published") or "") for place, report in at.items()}
    if len(names) < nodes or not all(names.values()):
        return None
    return min(names, key=lambda place: (names[place], place))


def unhosted(reports: Sequence[Report], nodes: int) -> list[Finding]:
    """Return a finding if no pod would open torchrun's c10d store, although MASTER_ADDR resolves to rank 0.

    MASTER_ADDR may be the name of a Service. If neither that name nor its addresses match any pod's own name,
    every torchrun connects to the store, and none opens it.
    """
    if len(reports) < nodes or nodes < 2:
        return []
    hosts = {}
    for report in reports:
        cell = report.master or report.row.get(0)
        names, addresses = report.facts.get("names"), report.facts.get("addresses")
        if cell is None or cell.outcome != OK or cell.rank != 0 or names is None or addresses is None:
            return []
        if cell.host in names or cell.address in addresses:
            return []
        hosts[report.place] = f"{cell.host} ({cell.address})"
        if report.place == 0 and not report.facts.get("store_port_free"):
            return []
    store = hosts[min(hosts)]
    text = (
        f"no torchrun would open its c10d store at {store}, because no pod has this name or address: "
        "every torchrun would connect to it, and none would listen. "
        "Name the pod of rank 0, or pass --rdzv_conf=is_host=1 there and is_host=0 elsewhere"
    )
    return [failed("variables.torchrun", text, hosts)]
