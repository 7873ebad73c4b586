# The worker image with one more layer, which replaces packages from the lock file (`--replace`).
ARG BASE
FROM ${BASE}
ARG REMOVED
ARG IMAGE
RUN --mount=type=bind,source=harness/provision/images/files/replace_packages.py,target=/run/replace_packages.py \
    --mount=type=bind,from=packages,target=/packages \
    python3 /run/replace_packages.py /packages ${REMOVED}
