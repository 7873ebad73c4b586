
# Waits until kube-proxy has its rules in this node.
for try in $(seq 300); do
  if iptables-save -t nat | grep -q default/kubernetes:https; then exit 0; fi
  sleep 0.2
done
echo "kube-proxy has no rules after 60 s" >&2
exit 1
