#!/bin/sh
# Installs PyTorch's CPU build in an image: NEEDS (a lock of what torch imports), VERSION, SHA256 (or "").
# The CPU builds are on PyTorch's own index alone; TORCH_INDEX names another. Without a hash, TLS to the index and the
# exact version are all that is checked, and the build's log says so with the hash of what was installed.
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
