#!/bin/sh
# Install PyTorch's CPU build in an image. The arguments are a lock file for the packages that torch imports, the version of
# torch, and the SHA-256 of its wheel or "". CPU builds are available only from PyTorch's own index; TORCH_INDEX selects
# another index. Without a SHA-256, only the version is checked, and the build log contains the wheel's SHA-256.
set -eu
needs=$1 version=$2 sha256=$3
index=${TORCH_INDEX:-https://download.pytorch.org/whl/cpu}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
pip() { python3 -m pip --disable-pip-version-check --no-cache-dir "$@"; }

pip install --require-hashes --no-deps --only-binary=:all: -r "$needs"
pip download --quiet --no-deps --only-binary=:all: --index-url "$index" --dest "$folder" "torch==$version"
wheel=$(echo "$folder"/torch-*.whl)
found=$(sha256sum "$wheel" | cut -d " " -f 1)
if [ -z "$sha256" ]; then
  echo "torch $version: not verified, because versions.toml has no torch_sha256 for $(uname -m); its SHA-256 is $found" >&2
elif [ "$found" != "$sha256" ]; then
  echo "torch $version: SHA-256 $sha256 was expected, $found was found at $index;" \
    "if the release really changed, set torch_sha256 in versions.toml" >&2
  exit 1
fi
pip install --no-deps --no-index "$wheel"
