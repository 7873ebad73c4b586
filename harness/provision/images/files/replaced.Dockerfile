# A worker image in which packages from the lock are replaced (`--replace`), as one layer on the worker image.
ARG BASE
FROM ${BASE}
ARG REMOVED
ARG IMAGE
RUN --mount=type=bind,source=harness/provision/images/files/replace_packages.py,target=/run/replace_packages.py \
    --mount=type=bind,from=packages,target=/packages \
    python3 /run/replace_packages.py /packages ${REMOVED}
