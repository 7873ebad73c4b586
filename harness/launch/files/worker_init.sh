# PID 1 of a rank's container: run the command, pass SIGTERM on to every process, and say how the command ended.
# With HARNESS_HOLD=1 stay afterwards, until SIGTERM: the pod's controller would start the command again.
# A /tmp that is a volume outlives the container, and with it the result of the container before.
[ -n "$KONDUKTOR_OUTPUT_DIR" ] || rm -f /tmp/harness-output/result.json
export KONDUKTOR_OUTPUT_DIR="${KONDUKTOR_OUTPUT_DIR:-/tmp/harness-output}"
run() {
  become "$@" &
  pid=$!
  # The signal may have come before there was a process to pass it on to.
  [ -z "$ended" ] || kill -TERM $pid
  wait $pid
  code=$?
  # A signal ends `wait`, not the command: go on until the command has ended. When both come at once, the shell knows
  # the command's own code still; one that was told already is 127.
  while kill -0 $pid 2>/dev/null; do wait $pid; code=$?; done
  wait $pid
  again=$?
  [ $again = 127 ] || code=$again
}
# netcheck first, where it is asked for (harness/launch/mounts/netcheck.py): when it failed, the command does not run.
code=0
[ "$HARNESS_NETCHECK" = before ] && run sh /opt/harness/netcheck/netcheck.sh
case $code in 0 | 3) run "$@" ;; 1 | 2) code=90 ;; esac
[ $code -le 128 ] || wait_for_own
value=$(cat "$KONDUKTOR_OUTPUT_DIR/result.json" 2>/dev/null || echo null)
printf '{"exit":%d,"value":%s}' $code "$value" >"${TERMINATION_LOG:-/dev/termination-log}" 2>/dev/null
echo "@exit1 $HARNESS_NONCE $code"
# `wait` ends at once when the signal comes; `sleep` alone would not. A `sleep` that was forked a moment ago may lose the
# signal that the trap passes on to it, so it is short.
while [ "$HARNESS_HOLD" = 1 ] && [ -z "$ended" ]; do sleep 5 & wait $!; done
exit $code
