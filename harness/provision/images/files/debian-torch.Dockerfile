# The base of the worker image where no registry is reached.
# Debian's PyTorch (CPU, gloo, torchrun), without what a gloo worker never touches, as one flat layer. The
# self-test runs a two-process torchrun with DDP on the result, so a removal that breaks it ends the build.
ARG BASE
FROM ${BASE} AS slim
RUN rm -f /etc/apt/sources.list.d/sid.sources \
 && apt-get update -qq \
 && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends python3-torch tini
# Test programs, the AMD GPU runtime that UCX and hwloc would load as plug-ins, Python packages that torch
# imports only for graph export and in its own tests, numpy (the worker brings the one of its lock), and the
# package manager's data.
RUN cd /usr/lib/python3/dist-packages \
 && find torch/bin -type f ! -name torch_shm_manager -delete \
 && rm -rf torch/test torch/utils/benchmark networkx* hypothesis* _hypothesis* expecttest* fsspec* numpy* \
      chardet* requests* jinja2* setuptools* pkg_resources* \
 && find . -type d -name tests -prune -exec rm -rf {} + \
 && rm -rf /usr/lib/libtorch-test /usr/include /usr/share/doc /usr/share/man /usr/share/locale /usr/share/info \
 && cd /usr/lib/x86_64-linux-gnu \
 && rm -rf libLLVM* libamd_comgr* libamdhip64* libhsa-runtime64* libhsakmt* hwloc dri \
      ucx/libuc*_rocm* ucx/libuc*_cuda* ucx/libuc*_ze* \
 && rm -rf gconv perl* libapt* /usr/lib/apt /usr/bin/apt* /usr/bin/sqv /usr/bin/perl* /usr/share/perl* \
      /usr/share/zoneinfo /var/lib/dpkg /var/lib/apt /var/cache/* /var/log/*
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
