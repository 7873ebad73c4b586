# Run in a node of a copy, by bash, when its identity is there. Starts the kubelet once systemd and containerd answer.
set -eu
for try in $(seq 600); do
  if [ -S /run/systemd/private ] && [ -S /run/containerd/containerd.sock ]; then break; fi
  sleep 0.05
done
# Its unit starts it at boot where config.yaml is there: before containerd, and then again a second later.
cp /kind/template/instance-config.yaml /kind/template/config.yaml /var/lib/kubelet/
systemctl start kubelet
