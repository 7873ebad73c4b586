# bash runs this script on the control plane of a copied cluster once the API server responds. It creates the
# objects that contain the cluster's name.
set -eu
phase() { kubeadm init phase "$@" --config /kind/kubeadm.conf >&2; }
phase upload-config kubeadm
phase bootstrap-token
