"""An S3 server over a folder: versitygw, built from its Go module, with one account."""

from __future__ import annotations

import secrets
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from minio import Minio

from harness.context import RunContext
from harness.provision.source.golang import Module
from harness.provision.source.programs import pinned, program

PATH = "github.com/versity/versitygw"


@dataclass(frozen=True)
class S3Server:
    """Where it listens, and the keys of its account."""

    address: str
    access_key: str
    secret_key: str = field(repr=False)

    @property
    def environment(self) -> dict[str, str]:
        """Return what a job's Secret holds for this server."""
        return {
            "AWS_ENDPOINT_URL": f"http://{self.address}",
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
        }

    def client(self) -> Minio:
        return Minio(self.address, access_key=self.access_key, secret_key=self.secret_key, secure=False)


@contextmanager
def s3_server(context: RunContext, folder: Path, host: str = "127.0.0.1") -> Iterator[S3Server]:
    """Serve an empty folder while the block runs."""
    version = pinned("simulation", "versitygw")
    gateway = program(Module("versitygw", PATH, version, {"versitygw": f"{PATH}/cmd/versitygw"}), context)
    access, secret = f"TESTS{secrets.token_hex(8)}", secrets.token_hex(16)
    (folder / "s3").mkdir()
    with (folder / "s3.log").open("wb") as log:
        process = subprocess.Popen(
            [str(gateway), "--port", f"{host}:0", "posix", str(folder / "s3")],
            env={"ROOT_ACCESS_KEY_ID": access, "ROOT_SECRET_ACCESS_KEY": secret},
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        yield S3Server(f"{host}:{_port(process, folder / 's3.log')}", access, secret)
    finally:
        process.kill()
        process.wait(timeout=30)


def _port(process: subprocess.Popen[bytes], log: Path) -> int:
    """Wait until it listens. It was asked for any port, and does not say which it got."""
    until = time.monotonic() + 30
    while time.monotonic() < until and process.poll() is None:
        for found in psutil.Process(process.pid).net_connections("tcp"):
            if found.status == psutil.CONN_LISTEN:
                return int(found.laddr.port)
        time.sleep(0.05)
    raise AssertionError(f"versitygw does not listen: {log.read_text()}")
