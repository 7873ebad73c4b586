
# The only node takes pods, and load balancers lead to it: as kind does where there is one node.
export KUBECONFIG=/etc/kubernetes/admin.conf
kubectl taint nodes --all node-role.kubernetes.io/control-plane- >&2
kubectl label nodes --all node.kubernetes.io/exclude-from-external-load-balancers- >&2
