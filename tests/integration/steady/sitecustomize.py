"""Keep pluto.init() from failing when a network interface of this machine disappears, which does not happen
in a pod.

The client lists all interfaces with psutil, and then queries each of them. If another test creates or deletes
a cluster at the same time, interfaces disappear, and the client fails with KeyError: 'veth…'.
"""

import psutil

ask = psutil.net_if_addrs


class Addresses(dict):
    """The addresses of each interface. An interface that no longer exists has none."""

    def __missing__(self, name):
        return []


psutil.net_if_addrs = lambda: Addresses(ask())
