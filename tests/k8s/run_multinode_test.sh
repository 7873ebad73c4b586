#!/usr/bin/env bash
# The command that people know for this test. PLUTO_RUN_ID, KEEP_CLUSTER and PLUTO_API_TOKEN work as they did: with a
# token, the ranks log to hosted Pluto. Everything else is `harness run`, which this calls with the options given here.
set -euo pipefail
unset CDPATH
cd "$(dirname "$0")/../.."
make --silent doctor >&2
if [ -n "${PLUTO_API_TOKEN:-}${PLUTO_API_KEY:-}" ]; then
  export HARNESS_TRACKER="${HARNESS_TRACKER:-hosted}"
fi
exec .venv/bin/harness run jobs/multinode.yaml "$@"
