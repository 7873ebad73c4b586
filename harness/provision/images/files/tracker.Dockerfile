# The embedded tracker: serves Pluto's wire contract to the ranks. Only its own package is copied, so nothing in it
# may import the rest of the harness. /data is for its database.
ARG BASE
FROM ${BASE}
RUN --mount=type=bind,from=packages,target=/packages,rw \
    chmod -R a+rX /packages \
 && to=$(python3 -c 'import sysconfig; print(sysconfig.get_path("purelib"))') \
 && mkdir -p "$to" && cp -a /packages/. "$to" && { python3 -m compileall -q "$to" || true; } \
 && install -d -o 65532 -g 65532 /data
COPY harness/__init__.py /app/harness/
COPY harness/tracker/ /app/harness/tracker/
RUN chmod -R a+rX /app
WORKDIR /app
ENV PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER 65532:65532
ENTRYPOINT ["python3", "-m", "harness.tracker"]
