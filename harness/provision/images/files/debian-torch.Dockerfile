# The base of the worker image on machines that cannot reach a registry: Debian's PyTorch (CPU, gloo and torchrun) in one
# layer. Files that ranks with gloo do not need are removed. The self-test runs DDP with two processes under torchrun, so
# the build fails if a necessary file was removed.
ARG BASE
FROM ${BASE} AS slim
COPY debian-torch.dpkg /etc/dpkg/dpkg.cfg.d/torch
# py3compile of a package fails if dpkg excluded one of its files. apt finds this empty py3compile in /usr/sbin first.
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
