
# Wait until kube-proxy has written its rules on this node.
for try in $(seq 300); do
  # grep reads all its input. With --quiet, it would end iptables-save with SIGPIPE, which pipefail treats as
  # a failure.
  if iptables-save -t nat | grep default/kubernetes:https >/dev/null; then exit 0; fi
  sleep 0.2
done
echo "kube-proxy has no rules after 60 s" >&2
exit 1
