# bash runs this script in a container from the node image. The arguments are scripts that link images. This
# script runs them to create containerd's records of the images, and copies the etcd program to
# /freeze/etcd-program.
set -eu
cp -a /var/lib/containerd /freeze/containerd
containerd --root /freeze/containerd --log-level warn >/freeze/log 2>&1 &
daemon=$!
for try in $(seq 300); do
  if ctr --timeout 1s version >/dev/null 2>&1; then break; fi
  sleep 0.1
done
for script in "$@"; do sh "$script"; done
image=$(ctr -n k8s.io images ls -q | grep '/etcd:' | head -n 1)
mkdir /freeze/image
ctr -n k8s.io images mount "$image" /freeze/image >/dev/null
cp /freeze/image/usr/local/bin/etcd /freeze/etcd-program
ctr -n k8s.io images unmount --rm /freeze/image >/dev/null
kill $daemon
wait $daemon || true
rm -rf /var/lib/containerd
cp -a /freeze/containerd /var/lib/containerd
