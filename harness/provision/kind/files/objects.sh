# Run by bash on the control plane of a copy, once the API server serves. Creates the objects that name the
# cluster.
set -eu
phase() { kubeadm init phase "$@" --config /kind/kubeadm.conf >&2; }
phase upload-config kubeadm
phase bootstrap-token
