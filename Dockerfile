# The worker image, in which every rank of a job runs. It contains harness/workers, which jobs/*.yaml start.
# `harness images build` builds it, and tags it with the hash of its inputs. To build it manually:
#   pip install --require-hashes -r harness/locks/sdist.txt
#   pip install --require-hashes --only-binary=:all: --no-binary=python-etcd --no-build-isolation --no-deps \
#     --ignore-requires-python --python-version 3.13 --target packages -r harness/locks/worker.txt \
#     --platform manylinux_2_28_$(uname -m) --platform manylinux_2_17_$(uname -m) --platform manylinux2014_$(uname -m)
#   docker build --build-context packages=packages --build-arg BASE=python:3.13-slim-trixie --build-arg TORCH=2.9.1 -t worker:1 .
ARG BASE
FROM ${BASE}
ARG TORCH
ARG TORCH_SHA256=""
# If the base image already contains PyTorch, it is kept. Otherwise, the CPU build is installed.
RUN --mount=type=bind,source=harness/provision/images/files/install_torch.sh,target=/run/install_torch.sh \
    --mount=type=bind,source=harness/locks/torch.txt,target=/run/torch.txt \
    python3 -c 'import torch' 2>/dev/null || sh /run/install_torch.sh /run/torch.txt "${TORCH}" "${TORCH_SHA256}"
# Pluto's client requires an init process that forwards signals.
RUN command -v tini >/dev/null \
 || (apt-get update && apt-get install -y --no-install-recommends tini && rm -rf /var/lib/apt/lists/*)
# A rank imports only one of the 400 models in transformers. Their bytecode would take up 55 MB, and half of the compile
# time. Some packages contain files that Python cannot compile.
RUN --mount=type=bind,from=packages,target=/packages,rw \
    chmod -R a+rX /packages \
 && to=$(python3 -c 'import sysconfig; print(sysconfig.get_path("purelib"))') \
 && mkdir -p "$to" && cp -a /packages/. "$to" \
 && { python3 -m compileall -q -j 0 -x /transformers/models/ "$to" || true; }
# Each rank reports this digest of the image's code for the check `code` (harness/workers/ground_truth/code_digest.py).
ARG IMAGE=""
RUN echo "$IMAGE" >/etc/pluto-e2e-harness.image
COPY harness/workers/ /workspace/
# Pods start netcheck and the acceptance tests only once, so compiling them would be much of the work
# (harness/launch/files/*.sh). Pods may run as any user, but some files of a checkout or download may be readable only by
# their owner.
RUN chmod -R a+rX /workspace \
 && python3 -m compileall -q --invalidation-mode checked-hash /workspace/netcheck /workspace/acceptance /workspace/training
WORKDIR /workspace
CMD ["bash"]
