# The worker image: what every rank of a job runs in. It proves nothing itself; jobs/*.yaml run harness/workers/ from it.
# `harness images build` builds it, tagged with the hash of its inputs. By hand:
#   pip install --require-hashes -r harness/locks/sdist.txt
#   pip install --require-hashes --only-binary=:all: --no-binary=python-etcd --no-build-isolation --no-deps \
#     --ignore-requires-python --python-version 3.13 --target packages -r harness/locks/worker.txt \
#     --platform manylinux_2_28_$(uname -m) --platform manylinux_2_17_$(uname -m) --platform manylinux2014_$(uname -m)
#   docker build --build-context packages=packages --build-arg BASE=python:3.13-slim-trixie --build-arg TORCH=2.9.1 -t worker:1 .
ARG BASE
FROM ${BASE}
ARG TORCH
ARG TORCH_SHA256=""
# Any base with PyTorch is taken as it is; one without gets the CPU build.
RUN --mount=type=bind,source=harness/provision/images/files/install_torch.sh,target=/run/install_torch.sh \
    --mount=type=bind,source=harness/locks/torch.txt,target=/run/torch.txt \
    python3 -c 'import torch' 2>/dev/null || sh /run/install_torch.sh /run/torch.txt "${TORCH}" "${TORCH_SHA256}"
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
# What the image is, for the check `code`: a rank reports it (harness/workers/ground_truth/code_digest.py).
ARG IMAGE=""
RUN echo "$IMAGE" >/etc/pluto-e2e-harness.image
COPY harness/workers/ /workspace/
# Pods start netcheck and the acceptance tests once, and to compile them is much of the work (harness/launch/files/*.sh).
# Pods run as any user, and a checkout or a download can have files that only their owner reads.
RUN chmod -R a+rX /workspace \
 && python3 -m compileall -q --invalidation-mode checked-hash /workspace/netcheck /workspace/acceptance /workspace/training
WORKDIR /workspace
CMD ["bash"]
