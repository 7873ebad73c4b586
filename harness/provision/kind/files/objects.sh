# Run in the control plane of a copy, by bash, once the API server serves: the objects that name the cluster.
set -eu
phase() { kubeadm init phase "$@" --config /kind/kubeadm.conf >&2; }
phase upload-config kubeadm
phase bootstrap-token
