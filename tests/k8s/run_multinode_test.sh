#!/usr/bin/env bash
# The command from konduktor's guide for this test. It supports the guide's variables PLUTO_RUN_ID, KEEP_CLUSTER and
# PLUTO_API_TOKEN. With a token, the ranks log to hosted Pluto. `harness run`, which gets all options, does the rest.
set -euo pipefail
unset CDPATH
cd "$(dirname "$0")/../.."
make --silent doctor >&2
if [ -n "${PLUTO_API_TOKEN:-}${PLUTO_API_KEY:-}" ]; then
  export HARNESS_TRACKER="${HARNESS_TRACKER:-hosted}"
fi
exec .venv/bin/harness run jobs/multinode.yaml "$@"
