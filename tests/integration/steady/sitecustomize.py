"""Let pluto.init() outlive a network interface of this machine: a pod's own interfaces do not come and go.

The client asks psutil for all interfaces, then again for each of them. A cluster that another test makes or
deletes meanwhile takes interfaces away, and the client ends with KeyError: 'veth…'.
"""

import psutil

ask = psutil.net_if_addrs


class Addresses(dict):
    """The addresses of each interface; one that is gone has none."""

    def __missing__(self, name):
        return []


psutil.net_if_addrs = lambda: Addresses(ask())
