#!/usr/bin/env bash
# The command that people know for this test. PLUTO_RUN_ID, KEEP_CLUSTER and PLUTO_API_TOKEN work as they did;
# everything else is `harness run`, which this calls with whatever options are given here.
set -euo pipefail
cd "$(dirname "$0")/../.."
make --silent doctor
exec .venv/bin/harness run jobs/multinode.yaml "$@"
