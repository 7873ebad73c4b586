# bash runs this script on a node of a copied cluster, once the node has its keys. It starts the kubelet as
# soon as systemd and containerd respond.
set -eu
for try in $(seq 600); do
  if [ -S /run/systemd/private ] && [ -S /run/containerd/containerd.sock ]; then break; fi
  sleep 0.05
done
# If config.yaml existed at boot, the kubelet's unit would start before containerd, and again a second later.
cp /kind/template/instance-config.yaml /kind/template/config.yaml /var/lib/kubelet/
systemctl start kubelet
