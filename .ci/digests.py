"""Print harness/versions.toml with the digests that the registries report, and the SHA-256 of torch's wheels.

    digests.py [VERSIONS]

An image reference without a digest gets the one that its tag has now. A reference with a digest is unchanged,
and stderr lists the tags that have moved. Exit code 1 means that some digests could not be read.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

import httpx

from harness.provision.images.registry_access import api_url
from harness.provision.platforms import SUPPORTED

VERSIONS = Path(__file__).parents[1] / "harness/versions.toml"
REFERENCE = re.compile(r'"([\w.-]+(?::\d+)?/[\w./-]+:[\w.-]+)(@sha256:[0-9a-f]{64})?"')
KINDS = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)
TORCH_INDEX = "https://download.pytorch.org/whl/cpu"


def digest(reference: str, client: httpx.Client) -> str:
    """Return the digest of the image index that a tag names. Raises httpx.HTTPError."""
    host, _, rest = reference.partition("/")
    name, _, tag = rest.rpartition(":")
    url, headers = f"{api_url(host)}{name}/manifests/{tag}", {"Accept": ", ".join(KINDS)}
    response = client.head(url, headers=headers)
    if response.status_code == 401:
        asked = dict(re.findall(r'(\w+)="([^"]*)"', response.headers.get("WWW-Authenticate", "")))
        token = client.get(asked.pop("realm", ""), params=asked).raise_for_status().json()
        headers["Authorization"] = f"Bearer {token.get('token') or token['access_token']}"
        response = client.head(url, headers=headers)
    return str(response.raise_for_status().headers["Docker-Content-Digest"])


def wheel_sha256(version: str, python: str, machine: str, index: str = TORCH_INDEX) -> str:
    """Return the SHA-256 of PyTorch's CPU wheel. Raises CalledProcessError if it cannot be downloaded."""
    with tempfile.TemporaryDirectory() as folder:
        options = ["--no-deps", "--only-binary=:all:", f"--python-version={python}", f"--index-url={index}"]
        options += [f"--platform=manylinux_2_28_{machine}", f"--dest={folder}"]
        subprocess.run(
            [sys.executable, "-m", "pip", "download", "--quiet", *options, f"torch=={version}"], check=True
        )
        (wheel,) = Path(folder).glob("torch-*.whl")
        with wheel.open("rb") as content:
            return hashlib.file_digest(content, "sha256").hexdigest()


def completed(text: str, torch_index: str = TORCH_INDEX) -> tuple[str, list[str]]:
    """Return the text of a versions file with all digests, and a line for each unknown or moved one."""
    said: list[str] = []
    with httpx.Client(timeout=30, follow_redirects=True) as client:
        for reference, known in sorted(set(REFERENCE.findall(text))):
            try:
                found = f"@{digest(reference, client)}"
            except (httpx.HTTPError, KeyError, ValueError) as error:
                said.append(f"{reference}: {error or type(error).__name__}")
                continue
            if known and known != found:
                said.append(f"{reference}: moved to {found}")
            elif not known:
                text = text.replace(f'"{reference}"', f'"{reference}{found}"')
    worker = tomllib.loads(text)["worker"]
    hashes = dict(worker.get("torch_sha256", {}))
    for platform in SUPPORTED.values():
        try:
            found = wheel_sha256(worker["torch"], worker["python"], platform.machine, torch_index)
            if hashes.setdefault(platform.architecture, found) != found:
                said.append(f"torch for {platform.docker}: its SHA-256 is {found}")
        except (subprocess.CalledProcessError, ValueError):
            said.append(f"torch {worker['torch']} for {platform.docker}: could not be downloaded")
    table = ", ".join(f'{name} = "{value}"' for name, value in sorted(hashes.items()))
    return re.sub(r"(?m)^torch_sha256 = .*$", f"torch_sha256 = {{{table}}}", text), said


def main(arguments: list[str]) -> int:
    text, said = completed(Path(arguments[0] if arguments else VERSIONS).read_text())
    print(text, end="")
    print(*said, sep="\n", file=sys.stderr)
    return 1 if said else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
