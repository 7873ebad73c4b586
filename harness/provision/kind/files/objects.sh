# Run in the control plane of a copy, by bash, once the API server serves. The argument is the phases that kubeadm skips.
set -eu
kubeadm init --config /kind/kubeadm.conf --skip-phases="$1"
