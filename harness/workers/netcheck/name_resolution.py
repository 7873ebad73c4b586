"""Resolve a name as the system resolver would, and determine the cause if it has no address.

Queries go directly to the servers in /etc/resolv.conf (dns_client.py). The first query only checks whether
the name exists. Its record type is chosen at random from the unassigned types.

Some caches, such as CoreDNS, store answers by name and type. In such a cache, this query does not leave a
negative answer for the types that torch, NCCL and gloo query. So the checks do not delay the moment at which
these libraries can resolve the name. Other caches store "no such name" for all types. They are recognised by
a TTL that counts down, and are not queried again until the answer expires.
"""

from __future__ import annotations

import ipaddress
import os
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from . import dns_client
from .dns_client import Answer

RESOLV_CONF, HOSTS = "/etc/resolv.conf", "/etc/hosts"
NAMESPACE = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"
LONGEST = 3600
"""A negative answer with a TTL of this many seconds or more is not from the cluster's DNS zone."""
PATIENCE, SHORT = 5.0, 1.0
"""Seconds to wait for an answer. PATIENCE is the same as in glibc's resolver. If there are several servers,
the first attempt at each of them waits at most SHORT."""
AGREE, AGREE_IN_MANY, MANY = 4, 1, 16
"""Number of additional queries that must confirm that a name exists: AGREE, or AGREE_IN_MANY in jobs of MANY
ranks or more. In a large job, each rank needs fewer queries, because all ranks query each name and together
reach every replica."""
Ask = Callable[..., Answer]
_HOSTS: dict[str, tuple[tuple[int, int, int], list[tuple[str, list[str]]]]] = {}
"""Caches the parsed hosts files. Maps each path to the file's version (inode, modification time and size) and
its content."""


@dataclass(frozen=True)
class Configuration:
    """The settings in /etc/resolv.conf."""

    servers: tuple[str, ...]
    search: tuple[str, ...] = ()
    ndots: int = 1

    @classmethod
    def read(cls, path: str = RESOLV_CONF) -> Configuration:
        """Read the file as specified in resolv.conf(5): use up to three servers, and the last search line."""
        servers: list[str] = []
        search: tuple[str, ...] = ()
        ndots = 1
        for line in _lines(path):
            word, *rest = line.split()
            if word == "nameserver" and rest:
                servers.append(rest[0])
            elif word in ("search", "domain"):
                search = tuple(domain.rstrip(".") for domain in rest)
            elif word == "options":
                given = [option[6:] for option in rest if option.startswith("ndots:")]
                ndots = int(given[-1]) if given and given[-1].isdigit() else ndots
        return cls(tuple(servers[:3]), search, min(ndots, 15))

    def candidates(self, name: str) -> list[str]:
        """Return the full names that the resolver tries for a name, in the order in which it tries them."""
        if name.endswith("."):
            return [name]
        searched = [f"{name}.{domain}." for domain in self.search if domain]
        return [f"{name}.", *searched] if name.count(".") >= self.ndots else [*searched, f"{name}."]


@dataclass
class Lookup:
    """The result of a DNS lookup: the addresses of a name, or the cause if there are none.

    `again` is the earliest time for another lookup, in seconds on the resolver's clock.
    """

    name: str
    addresses: tuple[str, ...] = ()
    cause: str | None = None
    text: str = ""
    again: float = 0.0
    found: str = ""
    """The full name under which the DNS record was found."""
    waited: float = 0.0
    """How many seconds the lookup waited for an answer, if no DNS server sent one."""


@dataclass(frozen=True)
class _Absent:
    """A "no such name" answer, given at time `at`.

    If `kept` is true, a cache repeats this answer until the time `until`.
    """

    ttl: int
    at: float
    kept: bool = False

    @property
    def until(self) -> float:
        return self.at + self.ttl


@dataclass
class Names:
    """A resolver that remembers the server's negative answers and when they expire. Not thread-safe.

    `clock` returns the seconds of a monotonic clock. If `written` is false, /etc/hosts is ignored. This is
    useful for the pod's own name, which is always in that file: only the DNS server shows whether other pods
    can resolve it.
    """

    configuration: Configuration
    hosts: str = HOSTS
    namespace: str = NAMESPACE
    ask: Ask = dns_client.ask
    clock: Callable[[], float] = time.monotonic
    written: bool = True
    agree: int = AGREE
    """Number of additional queries that must confirm that a name exists."""
    _absent: dict[str, _Absent] = field(default_factory=dict)
    _refused: bool = False
    seconds: float = PATIENCE
    """The number of seconds to wait for a DNS server's answer."""
    asking: float | None = None
    """The monotonic time at which the pending query was sent, or None if no query is pending."""
    _answered: dict[float, float] = field(default_factory=dict)
    """Maps the monotonic time of each answer to the number of seconds that the answer took."""
    _patience: float = 1.0

    def known(self, name: str) -> Lookup | None:
        """Return the addresses of a name that are known without DNS, or None."""
        try:
            return Lookup(name, (str(ipaddress.ip_address(name.strip("[]"))),), found=name)
        except ValueError:
            pass
        written = tuple(address for address, names in _hosts(self.hosts) if name.rstrip(".") in names)
        return Lookup(name, written, found=self.hosts) if written and self.written else None

    def record(self, seconds: float) -> None:
        """Record the duration of a DNS server's answer in seconds."""
        self._answered[time.monotonic()] = seconds

    def look_up(self, name: str, patience: float = 1.0) -> Lookup:
        """Resolve a name once. This leaves no negative answer for other programs in a DNS cache.

        The time to wait for an answer is multiplied by `patience`.
        """
        self._patience = patience
        if (known := self.known(name)) is not None:
            return known
        if not self.configuration.servers:
            return Lookup(name, cause="dns.no_server", text=f"{RESOLV_CONF} lists no DNS server")
        candidates = self.configuration.candidates(name)
        for candidate in candidates:
            found = self._try(name, candidate)
            if found is not None:
                return found
        return self._nowhere(name, candidates)

    def _try(self, name: str, candidate: str) -> Lookup | None:
        """Return the result for a full name, or None if the name does not exist."""
        before = self._absent.get(candidate)
        if before and before.kept and self.clock() < before.until:
            return None
        with dns_client.one_flow():
            return self._in_one_flow(name, candidate, before)

    def _in_one_flow(  # noqa: PLR0911 - one return per answer
        self, name: str, candidate: str, before: _Absent | None
    ) -> Lookup | None:
        """Implement `_try`.

        All queries are in one flow, so the replica that has the name also returns its address.
        """
        exists = self._exists(candidate)
        if exists.kind in ("silent", "refused", "no_route"):
            return self._broken(name, exists)
        if exists.kind == "nxdomain":
            self._absent[candidate] = self._kept(candidate, before, exists)
            return None
        if exists.kind == "nodata" and (late := self._not_everywhere(candidate)) is not None:
            self._absent[candidate] = _Absent(late.ttl or 0, self.clock())
            return None
        answers = [self._ask(candidate, kind) for kind in (dns_client.A, dns_client.AAAA)]
        addresses = tuple(address for answer in answers for address in answer.addresses)
        if addresses:
            return Lookup(name, addresses, found=candidate)
        old = [answer.ttl or 0 for answer in answers if answer.kind == "nxdomain"]
        if old and exists.kind == "nodata":
            left = max(old)
            text = (
                f"{candidate} exists, but the DNS server caches an old 'no "
                f"such name' response for another {left} s"
            )
            return Lookup(name, cause="dns.negative_cached", text=text, again=self.clock() + left)
        for answer in answers:
            if not answer.negative:
                return self._broken(name, answer)
        if exists.kind == "failed":
            self._absent[candidate] = _Absent(answers[0].ttl or 0, self.clock())
            return None
        return Lookup(name, cause="dns.no_record", text=f"{candidate} exists, but has no address")

    def _exists(self, candidate: str) -> Answer:
        return self._ask(candidate, random.choice(dns_client.UNASSIGNED))

    def _not_everywhere(self, candidate: str) -> Answer | None:
        """Return the answer from a DNS replica that does not have the name yet, or None if there is none.

        Several replicas may share the cluster's DNS address, and each receives new records independently.
        Each query here is a separate flow, so it may reach another replica. Without this check, a replica
        that does not have the name yet might be queried for its address, and would then cache "no such name"
        for 30 s.
        """
        for _ in range(self.agree):
            with dns_client.one_flow():
                answer = self._exists(candidate)
            if answer.kind == "nxdomain":
                return answer
        return None

    def _kept(self, candidate: str, before: _Absent | None, now: Answer) -> _Absent:
        """Return the _Absent for a name that does not exist.

        `kept` is true if a cache stores "no such name" for all record types. In that case, the TTL counts
        down from one query to the next, although their record types differ. Two queries may have the same
        random type by chance, so a third query decides. An answer with a TTL of an hour or more is not from
        the cluster's DNS zone.
        """
        seen = [now.ttl or 0]
        if before and seen[0] < before.ttl < LONGEST:
            seen.append(self._exists(candidate).ttl or 0)
        return _Absent(seen[-1], self.clock(), len(seen) > 1 and seen[-1] < (before.ttl if before else 0))

    def _ask(self, candidate: str, kind: int) -> Answer:
        """Query the servers in the system resolver's order, and return the first valid answer."""
        answer, servers = Answer("silent"), self.configuration.servers
        longest = self.seconds * self._patience / len(servers)
        # If there are several servers, the first round is short, because one of them may be down.
        for seconds in (longest,) if len(servers) == 1 else (min(SHORT, longest), longest):
            silent = False
            for server in servers:
                self.asking = began = time.monotonic()
                answer = self.ask(server, candidate, kind, seconds=seconds)
                self.asking = None
                silent |= answer.kind == "silent"
                if answer.kind not in ("silent", "refused", "no_route"):
                    self.record(time.monotonic() - began)
                if answer.kind == "answer" or answer.negative:
                    return answer
            if not silent:
                break
        return answer

    def slowest(self, since: float) -> float:
        """Return the duration of the slowest answer since a monotonic time, in seconds, or 0 without one."""
        return max((took for at, took in list(self._answered.items()) if at >= since), default=0.0)

    def _broken(self, name: str, answer: Answer) -> Lookup:
        # Kernels rate-limit ICMP errors, so a port without a listener sometimes does not respond.
        self._refused |= answer.kind == "refused"
        silent = "dns.server_refused" if self._refused else "dns.server_silent"
        cause = {"silent": silent, "refused": silent, "no_route": "dns.server_silent"}
        servers = ", ".join(self.configuration.servers)
        said = answer.text or answer.kind
        text = f"the DNS server {servers} does not resolve {name}: {said}"
        waited = self.seconds * self._patience if answer.kind == "silent" else 0.0
        return Lookup(name, cause=cause.get(answer.kind, "dns.server_failed"), text=text, waited=waited)

    def _nowhere(self, name: str, candidates: Sequence[str]) -> Lookup:
        """Try other likely full names, and return the reason why none of the candidates exists."""
        tried = f"tried {candidates[0]}" + f" and {len(candidates) - 1} more" * (len(candidates) > 1)
        for other in self._elsewhere(name, candidates):
            if (found := self._try(name, other)) is not None and found.addresses:
                text = (
                    f"the full name of {name} is {found.found}, which the search path does not reach: {tried}"
                )
                return Lookup(name, cause="dns.search_path", text=text)
        kept = [absent for each in candidates if (absent := self._absent[each]).kept]
        if kept:
            until = min(absent.until for absent in kept)
            left = max(0, until - self.clock())
            text = (
                f"{name} may exist, but the DNS server caches an old 'no "
                f"such name' response for another {left:.0f} s"
            )
            return Lookup(name, cause="dns.negative_cached", text=text, again=until)
        text = f"no such name: {tried}"
        for other in self._of_own_service(name, candidates):
            if (found := self._try(name, other)) is not None and found.addresses:
                text += f"; {found.found} exists, so the Service name may be wrong"
        return Lookup(name, cause="dns.no_record", text=text)

    def _of_own_service(self, name: str, candidates: Sequence[str]) -> Iterator[str]:
        """Yield the name's host with the domain of this pod's own name, unless it is already a candidate."""
        host, _, domain = name.partition(".")
        own = max((each for _, names in _hosts(self.hosts) for each in names), key=len, default="")
        full = f"{host}.{own.partition('.')[2]}."
        if domain and "." in own and full not in candidates:
            yield full

    def _elsewhere(self, name: str, candidates: Sequence[str]) -> Iterator[str]:
        """Yield likely full names, in this pod's namespace and in the domains of the pod's own name."""
        domains = [f"{line.strip()}.svc.cluster.local" for line in _lines(self.namespace)]
        for _, names in _hosts(self.hosts):
            for own in names:
                parts = own.split(".")
                domains += [".".join(parts[at:]) for at in range(1, len(parts) - 1)]
        for domain in dict.fromkeys(domains):
            full = f"{name.rstrip('.')}.{domain}."
            if full not in candidates and not name.endswith("."):
                yield full


def _hosts(path: str) -> list[tuple[str, list[str]]]:
    """Return the addresses and names in a hosts file. It is read again only if it has changed."""
    try:
        state = os.stat(path)
    except OSError:
        return []
    version = (state.st_ino, state.st_mtime_ns, state.st_size)
    if path not in _HOSTS or _HOSTS[path][0] != version:
        lines = [line.split() for line in _lines(path)]
        _HOSTS[path] = version, [(address, names) for address, *names in lines if names]
    return _HOSTS[path][1]


def _lines(path: str) -> list[str]:
    """Return a file's lines without comments and empty lines, or [] if it cannot be read."""
    try:
        text = Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    lines = (line.partition("#")[0].partition(";")[0].strip() for line in text.splitlines())
    return [line for line in lines if line]
