# The worker image: what every rank of a job runs in. It proves nothing itself; jobs/*.yaml run harness/workers/ from it.
# `harness images build` builds it, tagged with the hash of its inputs. By hand:
#   pip download --require-hashes --only-binary=:all: --no-deps --python-version 3.13 --platform manylinux_2_28_x86_64 \
#     --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 -d wheels -r harness/locks/worker.txt
#   cp harness/locks/worker.txt wheels/lock.txt
#   docker build --build-context wheels=wheels --build-arg BASE=python:3.13-slim-trixie --build-arg TORCH=2.9.1 -t worker:1 .
ARG BASE
FROM ${BASE}
ARG TORCH
# Any base with PyTorch is taken as it is; one without gets the CPU build.
RUN python3 -c 'import torch' 2>/dev/null \
 || python3 -m pip install --no-cache-dir --index-url https://download.pytorch.org/whl/cpu "torch==${TORCH}"
# Pluto's client wants an init process that forwards signals.
RUN command -v tini >/dev/null \
 || (apt-get update && apt-get install -y --no-install-recommends tini && rm -rf /var/lib/apt/lists/*)
# pip runs from its own wheel: not every base has one. Debian's packages lack the RECORD that pip would uninstall by.
RUN --mount=type=bind,from=wheels,target=/wheels \
    PYTHONPATH=$(echo /wheels/pip-*.whl) python3 -m pip install --quiet --require-hashes --no-index --find-links /wheels --no-deps \
      --no-cache-dir --no-compile --ignore-installed --break-system-packages --root-user-action=ignore -r /wheels/lock.txt \
# Of transformers' 400 models a rank imports one: their bytecode would be 55 MB, and half of the compiling. Some packages
# hold files that no Python compiles.
 && { python3 -m compileall -q -j 0 -x /transformers/models/ "$(python3 -c 'import sysconfig; print(sysconfig.get_path("purelib"))')" \
      || true; }
# What the image is, for the check `code`: a rank reports it (harness/workers/code_digest.py).
ARG IMAGE=""
RUN echo "$IMAGE" >/etc/pluto-e2e-harness.image
COPY harness/workers/ /workspace/
# Pods start netcheck and the acceptance tests once, and to compile them is much of the work (harness/launch/files/*.sh).
RUN python3 -m compileall -q --invalidation-mode checked-hash /workspace/netcheck /workspace/acceptance /workspace/training
WORKDIR /workspace
CMD ["bash"]
