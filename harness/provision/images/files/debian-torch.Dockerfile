# The base of the worker image where no registry is reached.
# Debian's PyTorch (CPU, gloo, torchrun), without what a gloo worker never touches, as one flat layer. The
# self-test runs a two-process torchrun with DDP on the result, so a removal that breaks it ends the build.
ARG BASE
FROM ${BASE} AS slim
COPY debian-torch.dpkg /etc/dpkg/dpkg.cfg.d/torch
# A package's own py3compile fails where dpkg left a file out, so this empty one takes its place: apt looks in /usr/sbin first.
RUN rm -f /etc/apt/sources.list.d/sid.sources \
 && install -m 755 /dev/null /usr/sbin/py3compile \
 && apt-get update -qq \
 && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends python3-torch tini \
 && rm -rf /usr/sbin/py3compile /usr/share/zoneinfo /var/lib/dpkg /var/lib/apt /var/cache/* /var/log/* \
      /usr/lib/apt /usr/bin/apt* /usr/bin/sqv /usr/bin/perl* /usr/share/perl* \
      /usr/lib/*-linux-gnu/gconv /usr/lib/*-linux-gnu/perl* /usr/lib/*-linux-gnu/libapt* \
 && python3 -m compileall -q -j 0 /usr/lib/python3/dist-packages
COPY without_libuv.py /usr/lib/python3/dist-packages/torch/distributed/_without_libuv.py
RUN cd /usr/lib/python3/dist-packages/torch/distributed \
 && printf '\nfrom torch.distributed import _without_libuv as _without_libuv\n' >> __init__.py \
 && python3 -m compileall -q __init__.py _without_libuv.py
COPY torch_selftest.py /tmp/
RUN torchrun --nproc_per_node=2 --master_addr=127.0.0.1 --master_port=29500 /tmp/torch_selftest.py \
 && torchrun --nproc_per_node=2 --rdzv_backend=c10d --rdzv_endpoint=127.0.0.1:29501 /tmp/torch_selftest.py \
 && rm -rf /tmp/*

FROM scratch
COPY --from=slim / /
ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8
CMD ["bash"]
