# Run in a worker of a copy, by bash, before kubelet.sh. stdin: what identity.sh printed.
set -euo pipefail
base64 -d | tar -xC / --no-overwrite-dir --strip-components=2 "./$(hostname)"
