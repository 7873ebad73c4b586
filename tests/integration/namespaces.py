"""Simulate pods with Linux network namespaces, each with a host name, a resolv.conf and a hosts file.

Each pod has its own link to a router, which forwards packets as a node does. iptables rules in the router act
as rules on the node. A DNS server runs in the router. This requires root.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path

from dns_server import Zone

GATE = """import sys, netcheck.__main__ as netcheck
print("ready", flush=True)
sys.stdin.readline()
sys.exit(netcheck.main(["--json", *sys.argv[1:]]))"""
"""A program that runs netcheck after it has read a line, so that all ranks start together even on a busy
machine."""
PYTHON = getattr(sys, "_base_executable", sys.executable)
"""The Python interpreter without the packages installed for the tests, as in a pod."""
_NUMBERS = itertools.count()
ROOT = Path(__file__).resolve().parents[2]
DOMAIN = "pods.team.svc.cluster.local"
"""The headless Service of the ranks."""


def run(*command: str) -> str:
    """Run a command. Raises RuntimeError with the command's output if it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=20)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip() or done.returncode}")
    return done.stdout


class World:
    """`size` pods, `job-0` to `job-<size - 1>`, at 10.77.<i>.2 and fd77:<i>::2."""

    def __init__(
        self, folder: Path, size: int = 4, interface: str = "eth0", versions: tuple[int, ...] = (4, 6)
    ) -> None:
        self.size, self._folder, self._interface, self._versions = size, folder, interface, versions
        self._name = f"nc{os.getpid()}-{next(_NUMBERS)}"
        self.gateway = f"{self._name}-gw"
        self._made: list[str] = []
        self._ruled: set[str] = set()
        self._narrow: set[int] = set()
        self._routing: list[str] = []
        self._version_4: set[int] = set()
        self._dns: subprocess.Popen[bytes] | None = None
        try:
            self._build()
            self.zone = self.healthy()
            self.serve(self.zone)
        except BaseException:
            self.close()
            raise

    def pod(self, index: int) -> str:
        """Return the name of a rank's network namespace."""
        return f"{self._name}-{index}"

    def address(self, index: int) -> str:
        return f"10.77.{index}.2" if 4 in self._versions else f"fd77:{index}::2"

    def healthy(self) -> Zone:
        """Return a zone in which every rank has a record."""
        return Zone({f"job-{index}.{DOMAIN}.": [self.address(index)] for index in range(self.size)})

    def _build(self) -> None:
        self._add(self.gateway)
        batch = self._in(self.gateway, "ip", "-batch", "-")
        links = []
        for index in range(self.size):
            self._add(self.pod(index))
            links.append(f"link add p{index} type veth peer name {self._interface} netns {self.pod(index)}")
            links.append(f"link set p{index} up")
            links += [f"addr add 10.77.{index}.1/24 dev p{index}"] * (4 in self._versions)
            links += [f"addr add fd77:{index}::1/64 dev p{index} nodad"] * (6 in self._versions)
        subprocess.run(batch, input="\n".join(links).encode(), check=True)
        for key in ("net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding"):
            run(*self._in(self.gateway, "sysctl", "-qw", f"{key}=1"))
        # By default, a node sends one ICMP error per second to each receiver. Tests must not depend on which
        # packet gets it.
        run(*self._in(self.gateway, "sysctl", "-qw", "net.ipv4.icmp_ratelimit=0"))
        for index in range(self.size):
            # Every connection to a closed port gets an error. By default, a kernel sends only a few ICMP
            # errors per second.
            run(
                *self._in(
                    self.pod(index),
                    "sysctl",
                    "-eqw",
                    "net.ipv4.icmp_ratelimit=0",
                    "net.ipv4.icmp_msgs_burst=10000",
                )
            )
            inside = [f"link set {self._interface} up"]
            if 4 in self._versions:
                inside += [
                    f"addr add 10.77.{index}.2/24 dev {self._interface}",
                    f"route add default via 10.77.{index}.1",
                ]
            if 6 in self._versions:
                inside += [
                    f"addr add fd77:{index}::2/64 dev {self._interface} nodad",
                    f"-6 route add default via fd77:{index}::1",
                ]
            lines = "\n".join(line.removeprefix("-6 ") for line in inside)
            subprocess.run(self._in(self.pod(index), "ip", "-batch", "-"), input=lines.encode(), check=True)

    def _add(self, name: str) -> None:
        run("ip", "netns", "add", name)
        self._made.append(name)
        run("ip", "-n", name, "link", "set", "lo", "up")

    def close(self) -> None:
        """Remove every namespace, with the processes in it."""
        if self._dns:
            self._dns.kill()
            self._dns.wait()
        for name in self._made:
            with contextlib.suppress(RuntimeError):
                for pid in run("ip", "netns", "pids", name).split():
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(int(pid), 9)
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)

    def _in(self, name: str, *command: str) -> list[str]:
        return ["ip", "netns", "exec", name, *command]

    def iptables(self, name: str, rule: str) -> None:
        """Add an iptables rule in a namespace: in `pod(i)`, or in `gateway`, which represents the node."""
        self._ruled.add(name)
        run(*self._in(name, "iptables", *rule.split()))

    def rule(self, rule: str) -> None:
        """Add a rule to the node's routing policy."""
        self._routing.append(rule)
        run("ip", "-n", self.gateway, "rule", "add", *rule.split())

    def mtu(self, index: int, size: int) -> None:
        """Set the MTU of the router's end of a pod's link. The MTU of the pod's end does not change."""
        self._narrow.add(index)
        run("ip", "-n", self.gateway, "link", "set", f"p{index}", "mtu", str(size))

    def version_4_alone(self, index: int) -> None:
        """Remove a pod's IPv6 address."""
        self._version_4.add(index)
        run("ip", "-n", self.pod(index), "-6", "addr", "flush", "dev", self._interface)

    def reset(self) -> None:
        """Undo all rules, link settings and changes of the zone."""
        for name in self._ruled:
            for table in ("filter", "nat"):
                run(*self._in(name, "iptables", "-t", table, "-F"))
        for rule in self._routing:
            run("ip", "-n", self.gateway, "rule", "del", *rule.split())
        self._routing.clear()
        for index in [*self._narrow]:
            self.mtu(index, 1500)
        for index in self._version_4:
            for change in ("addr add fd77:{0}::2/64 dev {1} nodad", "route replace default via fd77:{0}::1"):
                words = change.format(index, self._interface).split()
                run("ip", "-n", self.pod(index), "-6", *words)
        self._version_4.clear()
        self._ruled.clear()
        self._narrow.clear()
        if self.zone != self.healthy():
            self.serve(self.healthy())

    def serve(self, zone: Zone) -> None:
        """Make the DNS server serve this zone."""
        self.zone, path = zone, self._folder / "zone.json"
        temporary = path.with_suffix(".new")
        temporary.write_text(json.dumps(asdict(zone)))
        temporary.rename(path)
        if self._dns is None:
            # In a cluster, the DNS server usually runs on another node, where the pods do not use its CPU.
            program = [str(Path(__file__).with_name("dns_server.py")), str(path), "::", "53"]
            server = ["nice", "-n", "-15", sys.executable, *program]
            self._dns = subprocess.Popen(self._in(self.gateway, *server))
            ends = time.monotonic() + 10
            while ":0035 " not in run(*self._in(self.gateway, "cat", "/proc/net/udp6")):
                assert time.monotonic() < ends, "the DNS server does not start"
                time.sleep(0.02)
        time.sleep(0.1)

    def start(
        self,
        index: int,
        *arguments: str,
        variables: Mapping[str, str] = {},
        search: str = "team.svc.cluster.local svc.cluster.local cluster.local",
        nameserver: str | None = None,
        setup: str = "true",
        host: int | None = None,
        module: tuple[str, ...] = ("-c", GATE),
    ) -> subprocess.Popen[str]:
        """Start Python in a pod, with the environment of a job of all pods. `setup` is a shell command that
        runs first."""
        own = f"job-{index if host is None else host}"
        server = nameserver or (f"10.77.{index}.1" if 4 in self._versions else f"fd77:{index}::1")
        resolv, hosts = self._folder / f"resolv{index}", self._folder / f"hosts{index}"
        resolv.write_text(f"nameserver {server}\nsearch {search}\noptions ndots:5\n")
        hosts.write_text(f"127.0.0.1 localhost\n::1 localhost\n{self.address(index)} {own}.{DOMAIN} {own}\n")
        job = {
            "MASTER_ADDR": f"job-0.{DOMAIN}",
            "MASTER_PORT": "29500",
            "NNODES": str(self.size),
            "NODE_RANK": str(index),
            "WORLD_SIZE": str(self.size),
            "RDZV_ID": "run-7f3a",
            "PYTHONPATH": str(ROOT / "harness/workers"),
            "PATH": os.environ["PATH"],
        }
        given = {name: value for name, value in {**job, **variables}.items() if value != "-"}
        mounts = f"mount --bind {resolv} /etc/resolv.conf; mount --bind {hosts} /etc/hosts"
        prepare = f"hostname {own}; {mounts}; {setup}; "
        inside = [
            "unshare",
            "--uts",
            "sh",
            "-ec",
            prepare + 'exec "$@"',
            "sh",
            sys.executable,
            *module,
            *arguments,
        ]
        return subprocess.Popen(
            self._in(self.pod(index), *inside),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=given,
        )


@contextlib.contextmanager
def world(folder: Path, **options: object) -> Iterator[World]:
    """Yield a World, and remove it even if the test fails."""
    made = World(folder, **options)  # type: ignore[arg-type]
    try:
        yield made
    finally:
        made.close()
