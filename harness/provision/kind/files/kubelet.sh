# Run in a node of a copy, by bash, when its identity is there. Starts the kubelet once systemd and containerd answer.
set -eu
chmod 700 /var/lib/kubelet
cp /kind/template/config.yaml /kind/template/instance-config.yaml /var/lib/kubelet/
for try in $(seq 600); do
  if [ -S /run/systemd/private ] && [ -S /run/containerd/containerd.sock ]; then
    exec systemctl start kubelet
  fi
  sleep 0.05
done
echo "systemd and containerd do not answer after 30 s" >&2
exit 1
