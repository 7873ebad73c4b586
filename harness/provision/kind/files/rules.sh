
# Waits until kube-proxy has its rules in this node.
for try in $(seq 300); do
  # grep reads to the end: with --quiet it would end iptables-save by SIGPIPE, which pipefail takes for a failure.
  if iptables-save -t nat | grep default/kubernetes:https >/dev/null; then exit 0; fi
  sleep 0.2
done
echo "kube-proxy has no rules after 60 s" >&2
exit 1
