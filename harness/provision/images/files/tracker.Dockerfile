# The embedded tracker, which serves Pluto's API to the ranks. Only its own package and the rules for secrets
# are copied, so its code must not import other parts of the harness. /data is for its database.
ARG BASE
FROM ${BASE}
# Make all files readable for the image's user, even if they were cloned or installed with umask 077.
RUN --mount=type=bind,from=packages,target=/packages \
    to=$(python3 -c 'import sysconfig; print(sysconfig.get_path("purelib"))') \
 && mkdir -p "$to" && cp -a --no-preserve=mode /packages/. "$to" && { python3 -m compileall -q "$to" || true; } \
 && install -d -o 65532 -g 65532 /data
COPY --chmod=755 harness/__init__.py /app/harness/
COPY --chmod=755 harness/core/__init__.py harness/core/secret_rules.py harness/core/terminal_row.py harness/core/terminal_text.py /app/harness/core/
COPY --chmod=755 harness/tracker/ /app/harness/tracker/
WORKDIR /app
ENV PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER 65532:65532
ENTRYPOINT ["python3", "-m", "harness.tracker"]
