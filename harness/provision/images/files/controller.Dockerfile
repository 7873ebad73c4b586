# The torchrun controller (docs/torchrun-controller.md). Only the modules that it imports are copied. `harness
# images build` builds it, tags it with a hash of its inputs, and prints the tag.
ARG BASE
FROM ${BASE}
# Make all files readable for the image's user, even if they were cloned or installed with umask 077.
RUN --mount=type=bind,from=packages,target=/packages \
    to=$(python3 -c 'import sysconfig; print(sysconfig.get_path("purelib"))') \
 && mkdir -p "$to" && cp -a --no-preserve=mode /packages/. "$to" && { python3 -m compileall -q "$to" || true; }
COPY --chmod=755 harness/__init__.py /app/harness/
COPY --chmod=755 harness/core/ /app/harness/core/
COPY --chmod=755 harness/evidence/__init__.py /app/harness/evidence/
COPY --chmod=755 harness/evidence/kubernetes/__init__.py /app/harness/evidence/kubernetes/
COPY --chmod=755 harness/evidence/kubernetes/objects.py /app/harness/evidence/kubernetes/
COPY --chmod=755 harness/evidence/kubernetes/unschedulable.py /app/harness/evidence/kubernetes/
COPY --chmod=755 harness/workers/own_processes.* /app/harness/workers/
COPY --chmod=755 harness/torchrun_sync/ /app/harness/torchrun_sync/
COPY --chmod=755 harness/torchrun_controller/ /app/harness/torchrun_controller/
# The root file system is read-only in the cluster, so nothing can be compiled there.
RUN python3 -m compileall -q --invalidation-mode unchecked-hash /app/harness && chmod -R a+rX /app
ARG IMAGE=""
ENV TORCHRUN_CONTROLLER_IMAGE=${IMAGE}
WORKDIR /app
ENV PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER 65532:65532
ENTRYPOINT ["python3", "-m", "harness.torchrun_controller"]
