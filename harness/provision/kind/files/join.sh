# Run in a worker of a copy, by bash, before kubelet.sh. stdin: what identity.sh printed.
set -euo pipefail
install -d -m 700 /var/lib/kubelet
base64 -d | tar -xC / --no-overwrite-dir --strip-components=2 "./$(hostname)"
