# The torchrun controller (docs/torchrun-controller.md). Only what it imports is copied.
# `harness images build` builds it, tagged with the hash of its inputs, and says its tag.
ARG BASE
FROM ${BASE}
RUN --mount=type=bind,from=packages,target=/packages,rw \
    chmod -R a+rX /packages \
 && to=$(python3 -c 'import sysconfig; print(sysconfig.get_path("purelib"))') \
 && mkdir -p "$to" && cp -a /packages/. "$to" && { python3 -m compileall -q "$to" || true; }
COPY harness/__init__.py /app/harness/
COPY harness/core/ /app/harness/core/
COPY harness/evidence/__init__.py /app/harness/evidence/
COPY harness/evidence/kubernetes/__init__.py /app/harness/evidence/kubernetes/
COPY harness/evidence/kubernetes/objects.py /app/harness/evidence/kubernetes/
COPY harness/evidence/kubernetes/unschedulable.py /app/harness/evidence/kubernetes/
COPY harness/workers/own_processes.* /app/harness/workers/
COPY harness/torchrun_sync/ /app/harness/torchrun_sync/
COPY harness/torchrun_controller/ /app/harness/torchrun_controller/
# Its root is read-only in the cluster, so nothing can be compiled there.
RUN python3 -m compileall -q --invalidation-mode unchecked-hash /app/harness && chmod -R a+rX /app
ARG IMAGE=""
ENV TORCHRUN_CONTROLLER_IMAGE=${IMAGE}
WORKDIR /app
ENV PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER 65532:65532
ENTRYPOINT ["python3", "-m", "harness.torchrun_controller"]
