# The base of the tracker image on machines that cannot reach a registry: Debian's Python and its standard library in one
# layer, without a package manager.
ARG BASE
FROM ${BASE} AS slim
RUN rm -f /etc/apt/sources.list.d/sid.sources \
 && apt-get update -qq \
 && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends python3 ca-certificates \
 && rm -rf /usr/share/doc /usr/share/man /usr/share/locale /usr/share/info /usr/share/zoneinfo \
      /usr/lib/*-linux-gnu/gconv /usr/lib/*-linux-gnu/perl* /usr/bin/perl* /usr/share/perl* \
      /usr/lib/apt /usr/bin/apt* /usr/lib/*-linux-gnu/libapt* /usr/bin/sqv \
      /var/lib/dpkg /var/lib/apt /var/cache/* /var/log/*

FROM scratch
COPY --from=slim / /
ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8
CMD ["python3"]
