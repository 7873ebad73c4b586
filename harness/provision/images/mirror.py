"""Make a registry on this machine available to the nodes.

On this machine, the registry is at `localhost:5001`, for example, but on a node, localhost is the node
itself. On each pull, containerd reads /etc/containerd/certs.d/<host>/hosts.toml for the registry's host, but
only if its configuration at startup contains the path /etc/containerd/certs.d (as in kind's "local registry"
guide). Therefore the configuration is patched before the cluster is created, and hosts.toml is written on
each node afterwards.
"""

from __future__ import annotations

import posixpath
import shlex
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from harness.core import processes
from harness.core.progress import Progress

CERTS = "/etc/containerd/certs.d"
GATEWAY = "{gateway}"
_CAUSE: Final = "image.pull_failed"
_PATCH = f'[plugins."io.containerd.grpc.v1.cri".registry]\n  config_path = "{CERTS}"\n'
"""A patch for the configuration of containerd on kind's nodes. The configuration has format version 2, which
containerd 2 converts to its own."""


def patches(mirrors: Mapping[str, str]) -> tuple[str, ...]:
    """Return the containerdConfigPatches for kind's configuration. Returns an empty tuple if there are no
    mirrors."""
    return (_PATCH,) if mirrors else ()


def hosts_file(host: str, url: str, gateway: str) -> tuple[str, str]:
    """Return the path and content of hosts.toml for `host` on a node.

    `url` is the registry's URL, in which {gateway} stands for this machine's address. The file sets `server`
    to the mirror as well, because containerd would otherwise fall back to the host in the image reference,
    which on a node is the node itself.
    """
    base = url.replace(GATEWAY, gateway).rstrip("/")
    content = f'server = "{base}"\n\n[host."{base}"]\n  capabilities = ["pull", "resolve"]\n'
    return posixpath.join(CERTS, host, "hosts.toml"), content


def teach(nodes: Sequence[str], mirrors: Mapping[str, str], progress: Progress) -> None:
    """Write the mirrors' hosts.toml files to running kind nodes.

    Raises ToolError (cause image.pull_failed).
    """
    if not mirrors or not nodes:
        return

    def one(node: str) -> None:
        gateway = _gateway(node)
        for host, url in mirrors.items():
            path, content = hosts_file(host, url, gateway)
            folder = shlex.quote(posixpath.dirname(path))
            write = f"mkdir -p {folder} && cat > {shlex.quote(path)}"
            processes.run(
                ["docker", "exec", "-i", node, "sh", "-c", write], timeout=30, stdin=content, cause=_CAUSE
            )

    with ThreadPoolExecutor(len(nodes)) as pool:
        list(pool.map(one, nodes))
    progress(f"the nodes pull images of {', '.join(mirrors)} through this machine")


def _gateway(node: str) -> str:
    """Return this machine's IPv4 address in a node's network."""
    route = processes.run(
        ["docker", "exec", node, "ip", "-4", "route", "show", "default"], timeout=30, cause=_CAUSE
    )
    return parse_gateway(route.stdout)


def parse_gateway(route: str) -> str:
    """Return the gateway's address in a node's default route, such as `default via ADDRESS dev eth0`."""
    words = route.split()
    return words[words.index("via") + 1]
