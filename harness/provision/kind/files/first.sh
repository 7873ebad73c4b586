# bash runs this script on the control plane of a copied cluster as soon as the API server responds. It sets
# up what pods wait for.
set -eu
phase() { kubeadm init phase "$@" --config /kind/kubeadm.conf >&2; }
# Pods reach the API server through its Service. Until kube-proxy has written its rules, this rule replaces
# them.
service=$(kubectl --kubeconfig /etc/kubernetes/admin.conf get service kubernetes --output 'jsonpath={.spec.clusterIP}')
address=$(sed -n 's/.*advertiseAddress: //p' /kind/kubeadm.conf | head -n 1)
rule() { # --append or --delete
  for chain in PREROUTING OUTPUT; do
    iptables --wait --table nat "$1" $chain --destination "$service" --protocol tcp --dport 443 \
      --jump DNAT --to-destination "$address:6443"
  done
}
rule --append
trap 'rule --delete' EXIT
phase addon kube-proxy
phase mark-control-plane
