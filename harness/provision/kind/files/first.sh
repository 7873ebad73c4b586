# Run in the control plane of a copy, by bash, as soon as the API server serves: what pods wait for.
set -eu
phase() { kubeadm init phase "$@" --config /kind/kubeadm.conf >&2; }
phase mark-control-plane
phase addon kube-proxy
