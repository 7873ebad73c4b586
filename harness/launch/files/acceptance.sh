# Run the acceptance tests from their mount (harness/launch/workloads/acceptance.py), with any Python 3.9 or
# later that has torch. The arguments are a module and its options, as after `python -m`. The reports are
# written to $ACCEPT_REPORTS.
cd "${0%/*}" || exit 2
# The worker image contains the same files with their bytecode. Mounted files would be compiled again in every
# pod.
diff -rq -x __pycache__ acceptance /workspace/acceptance >/dev/null 2>&1 && cd /workspace
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}" ACCEPT_REPORTS="${ACCEPT_REPORTS:-/app/reports}"
mkdir -p "$ACCEPT_REPORTS"
ended="$ACCEPT_REPORTS/ended.txt"
rm -f "$ended"
# If there are more threads than cores, the threads wait for each other, and a test on a busy node takes
# minutes.
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
python=$(command -v python3 || command -v python)
[ -n "$python" ] || echo "acceptance: this image has no Python that user $(id -u) may run;" \
  "--pod FILE can set spec.securityContext.runAsUser" >&2
# After a plain `kubectl apply`, nobody collects the reports, and a controller would restart the container. So
# the container keeps running until the pod is deleted, regardless of the result. In a launch, the harness's
# init keeps it running.
if [ "${ACCEPT_HOLD:-0}" = 1 ] && [ -z "$HARNESS_NONCE" ]; then
  code=127
  if [ -n "$python" ]; then
    "$python" -B -m "$@" &
    pid=$!
    trap 'kill -TERM $pid 2>/dev/null; told=1' TERM INT
    wait $pid
    code=$?
    while kill -0 $pid 2>/dev/null; do wait $pid; code=$?; done
  fi
  found=$(find "$ACCEPT_REPORTS" -name '*.json' -exec sed -n 's/^ "verdict": "\([A-Z]*\)".*/\1/p' {} +)
  for worst in FAIL UNKNOWN WARN PASS ''; do case $found in *$worst*) break ;; esac; done
  # torchrun exits with 1 regardless of its ranks' exit codes, and only one pod has a report on the collectives.
  case $code-$worst in
    *-FAIL) word=FAIL ;;
    [012]-UNKNOWN) word=UNKNOWN ;;
    0-) word="DONE, the first pod has the report" ;;
    0-*) word=$worst ;;
    1-*) word=FAIL ;;
    2-*) word=UNKNOWN ;;
    *) word="UNKNOWN, the tests ended with exit code $code" ;;
  esac
  echo "$word" >"$ended.part" && mv "$ended.part" "$ended"
  echo "[RESULT] $word; this pod stays until it is deleted, and its reports are in $ACCEPT_REPORTS"
  trap 'exit $code' TERM INT
  while [ -z "$told" ]; do sleep 3600 & wait $!; done
  exit $code
fi
[ -n "$python" ] || exit 127
"$python" -B -m "$@"
code=$?
# Exit codes 1 and 2 repeat the report's verdict, and the harness judges the report. Without a report, the
# tests themselves have failed. In a search for bad nodes, only rank 0 has a report, and the pods of bad nodes
# exit with 1.
case $code-$1 in 1-acceptance.screen | 2-acceptance.screen) exit 0 ;; esac
case $code in 1 | 2) find "$ACCEPT_REPORTS" -name '*.json' | grep -q . && exit 0 ;; esac
exit $code
