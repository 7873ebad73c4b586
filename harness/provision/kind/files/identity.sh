# bash runs this script on the control plane of a copied cluster, before kubelet.sh. stdin is a base64-encoded
# tar archive with one folder for each node, which contains its kubeadm.conf and its kubelet's flags. The
# script creates the cluster's keys, and prints a tar archive of the same form with each worker's files.
set -euo pipefail
here=/run/harness-identities self=$(hostname)
install -d -m 700 $here /var/lib/kubelet /var/lib/etcd
mkdir -p /var/lib/kubelet/pki
trap 'rm -rf $here' EXIT  # it contains keys
base64 -d | tar -xC $here
tar -cC $here/"$self" . | tar -xC / --no-overwrite-dir
cp -a --sparse=always /kind/template/etcd/. /var/lib/etcd/

phase() { kubeadm init phase "$@" --config /kind/kubeadm.conf >&2; }
phase certs all
phase kubeconfig all
phase etcd local
phase control-plane all

# Give kubelet.conf the form that it has once a kubelet has its own certificate: the certificate is in a
# separate file, which the kubelet replaces on renewal.
rotatable() { # kubelet.conf, the folder that becomes the node's /
  local pki=/var/lib/kubelet/pki name
  name=kubelet-client-$(date +%F-%H-%M-%S).pem
  mkdir -p "$2$pki"
  (umask 077
    sed -n 's/.*client-certificate-data: //p' "$1" | base64 -d >"$2$pki/$name"
    sed -n 's/.*client-key-data: //p' "$1" | base64 -d >>"$2$pki/$name")
  ln -s "$pki/$name" "$2$pki/kubelet-client-current.pem"
  sed -i "s#client-certificate-data: .*#client-certificate: $pki/kubelet-client-current.pem#
    s#client-key-data: .*#client-key: $pki/kubelet-client-current.pem#" "$1"
}
rotatable /etc/kubernetes/kubelet.conf ""
rm -rf ${here:?}/"$self"
for folder in $here/*/; do
  [ -e "$folder" ] || continue
  node=$(basename "$folder")
  mkdir -p "$folder"etc/kubernetes/manifests "$folder"etc/kubernetes/pki
  cp -a /etc/kubernetes/pki/ca.crt "$folder"etc/kubernetes/pki/
  (umask 077
    kubeadm kubeconfig user --config /kind/kubeadm.conf --client-name "system:node:$node" --org system:nodes \
      2>/dev/null | sed 's#server: .*#server: https://'"$self"':6443#' >"$folder"etc/kubernetes/kubelet.conf)
  rotatable "$folder"etc/kubernetes/kubelet.conf "${folder%/}"
done
tar -cC $here . | base64 -w0
rm -rf $here
