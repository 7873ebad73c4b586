# The worker image: what every rank of a job runs in. It proves nothing itself; jobs/*.yaml run harness/workers/ from it.
# `harness images build` builds it, tagged with the hash of its inputs. By hand:
#   pip install --require-hashes --only-binary=:all: --no-binary=python-etcd --no-deps --ignore-requires-python --python-version 3.13 \
#     --platform manylinux_2_28_x86_64 --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 --target packages \
#     -r harness/locks/worker.txt
#   docker build --build-context packages=packages --build-arg BASE=python:3.13-slim-trixie --build-arg TORCH=2.9.1 -t worker:1 .
ARG BASE
FROM ${BASE}
ARG TORCH
# Any base with PyTorch is taken as it is; one without gets the CPU build.
RUN python3 -c 'import torch' 2>/dev/null \
 || python3 -m pip install --no-cache-dir --index-url https://download.pytorch.org/whl/cpu "torch==${TORCH}"
# Pluto's client wants an init process that forwards signals.
RUN command -v tini >/dev/null \
 || (apt-get update && apt-get install -y --no-install-recommends tini && rm -rf /var/lib/apt/lists/*)
# Of transformers' 400 models a rank imports one: their bytecode would be 55 MB, and half of the compiling. Some packages
# hold files that no Python compiles.
RUN --mount=type=bind,from=packages,target=/packages,rw \
    chmod -R a+rX /packages \
 && to=$(python3 -c 'import sysconfig; print(sysconfig.get_path("purelib"))') \
 && mkdir -p "$to" && cp -a /packages/. "$to" \
 && { python3 -m compileall -q -j 0 -x /transformers/models/ "$to" || true; }
# What the image is, for the check `code`: a rank reports it (harness/workers/code_digest.py).
ARG IMAGE=""
RUN echo "$IMAGE" >/etc/pluto-e2e-harness.image
COPY harness/workers/ /workspace/
# Pods start netcheck and the acceptance tests once, and to compile them is much of the work (harness/launch/files/*.sh).
# Pods run as any user, and a checkout or a download can have files that only their owner reads.
RUN chmod -R a+rX /workspace \
 && python3 -m compileall -q --invalidation-mode checked-hash /workspace/netcheck /workspace/acceptance /workspace/training
WORKDIR /workspace
CMD ["bash"]
