# The image of a kind node, built from Debian packages and kind's node files. BASE is a Debian root file system in which
# `sid` has a low priority. The build context contains kind/ (kind's images/base/files), bin/ (kubeadm, kubelet and kubectl),
# harness/ (the files in this folder), and version (which becomes /kind/version).
ARG BASE
FROM ${BASE} AS debian
ENV DEBIAN_FRONTEND=noninteractive

# The root file system of the kube-proxy image: the programs that kube-proxy runs, without the package manager.
FROM debian AS proxy
RUN --mount=type=cache,id=harness-apt-node,target=/var/lib/apt/lists,sharing=locked \
    apt-get update -qq && apt-get install -y -qq --no-install-recommends iptables nftables conntrack kmod \
 && rm -rf /var/cache/apt /var/log/*

FROM debian AS base
# Remove the systemd units that must not start in a container, as kind's own base image does.
RUN --mount=type=cache,id=harness-apt-node,target=/var/lib/apt/lists,sharing=locked \
    apt-get update -qq && apt-get install -y -qq --no-install-recommends \
      systemd dbus conntrack iptables nftables iproute2 ethtool util-linux mount kmod libseccomp2 bash ca-certificates \
      curl jq procps containernetworking-plugins runc containerd/sid \
 && containerd --version | grep -q ' 2\.' \
 && find /lib/systemd/system/sysinit.target.wants/ -name systemd-tmpfiles-setup.service -delete \
 && rm -f /lib/systemd/system/multi-user.target.wants/* /etc/systemd/system/*.wants/* \
      /lib/systemd/system/local-fs.target.wants/* /lib/systemd/system/sockets.target.wants/*udev* \
      /lib/systemd/system/sockets.target.wants/*initctl* /lib/systemd/system/basic.target.wants/* \
 && echo ReadKMsg=no >> /etc/systemd/journald.conf \
 && ln -sf /usr/lib/systemd/systemd /sbin/init \
 && rm -rf /etc/containerd/config.toml /var/cache/apt \
 && mkdir -p /etc/kubernetes/manifests /opt/cni /kind/manifests /usr/local/share/harness \
 && rm -rf /opt/cni/bin && ln -s /usr/lib/cni /opt/cni/bin \
 && ln -sf /usr/bin/containerd /usr/local/bin/containerd && ln -sf /usr/bin/ctr /usr/local/bin/ctr
COPY kind/ /
COPY harness/crictl /usr/local/bin/crictl
COPY harness/harness-cni /usr/local/sbin/harness-cni
COPY harness/harness-cni.service /etc/systemd/system/harness-cni.service
COPY harness/cni.conflist /usr/local/share/harness/cni.conflist
COPY harness/default-cni.yaml harness/default-storage.yaml /kind/manifests/
# Use the pause image that kubeadm expects. This image has no fuse-overlayfs. A container without CAP_SYS_RESOURCE cannot set
# an OOM score below the one of its daemon. The hook and the removed limits are the same as in kind's own base image. Remove
# the machine ID that dbus created, because otherwise all nodes would have the same ID.
ARG PAUSE
RUN chmod 755 /usr/local/bin/* /usr/local/sbin/* /kind /kind/bin /kind/bin/* \
 && sed -i -e "s#registry.k8s.io/pause:[^\"]*#${PAUSE}#" \
      -e 's#restrict_oom_score_adj = false#restrict_oom_score_adj = true#' \
      -e '/fuse-overlayfs/,+2d' -e '/proxy_plugins/d' /etc/containerd/config.toml \
 && grep -q "${PAUSE}" /etc/containerd/config.toml \
 && grep -q 'restrict_oom_score_adj = true' /etc/containerd/config.toml \
 && ctr oci spec | jq '.hooks.createContainer += [{"path": "/kind/bin/mount-product-files.sh"}] | del(.process.rlimits)' \
      > /etc/containerd/cri-base.json \
 && systemctl enable kubelet.service containerd.service undo-mount-hacks.service harness-cni.service \
 && systemctl mask systemd-binfmt.service \
 && rm -f /etc/machine-id /var/lib/dbus/machine-id

FROM base AS node
COPY bin/ /usr/bin/
COPY version /kind/version
ENV container=docker
STOPSIGNAL SIGRTMIN+3
ENTRYPOINT ["/usr/local/bin/entrypoint", "/sbin/init"]
