
# As kind does for a single node, let the only node accept pods and receive load balancer traffic.
export KUBECONFIG=/etc/kubernetes/admin.conf
kubectl taint nodes --all node-role.kubernetes.io/control-plane- >&2
kubectl label nodes --all node.kubernetes.io/exclude-from-external-load-balancers- >&2
