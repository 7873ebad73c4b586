# Run netcheck from its mount (harness/launch/mounts/netcheck.py), with Python 3.9 or later. The exit code is
# netcheck's. Values that the harness derives from the workload apply only if the pod itself does not set
# them.
cd "${0%/*}" || exit 2
# The worker image contains the same files with their bytecode. Mounted files would be compiled again in every
# pod.
diff -rq -x __pycache__ netcheck /workspace/netcheck >/dev/null 2>&1 && cd /workspace
unset PYTHONPATH
export MASTER_ADDR="${MASTER_ADDR:-$HARNESS_MASTER_ADDR}" MASTER_PORT="${MASTER_PORT:-$HARNESS_MASTER_PORT}"
[ -n "$HARNESS_NODE_RANK" ] && export NODE_RANK="${NODE_RANK:-$HARNESS_NODE_RANK}"
python=$(command -v python3 || command -v python) || {
  echo "netcheck: this image has no Python that user $(id -u) may run; --pod FILE can set spec.securityContext.runAsUser" >&2
  exit 2
}
exec "$python" -B -S -m netcheck --frames --nodes "$HARNESS_NODES" --deadline "$HARNESS_NETCHECK_SECONDS" "$@"
