# PID 1 of a rank's container: run the command, forward SIGTERM to every process, and log how the command
# ended. With HARNESS_HOLD=1, keep running until SIGTERM, because the pod's controller would restart the
# command. If /tmp is a volume, it outlives the container, and so does the previous container's result.
[ -n "$KONDUKTOR_OUTPUT_DIR" ] || rm -f /tmp/harness-output/result.json
export KONDUKTOR_OUTPUT_DIR="${KONDUKTOR_OUTPUT_DIR:-/tmp/harness-output}"
run() {
  become "$@" &
  pid=$!
  # The signal may have arrived before there was a process to forward it to.
  [ -z "$ended" ] || kill -TERM $pid
  wait $pid
  code=$?
  # A signal ends `wait` but not the command, so wait until the command has exited. If both happen at once,
  # the shell still knows the command's exit code. `wait` returns 127 for an exit code that was already
  # reported.
  while kill -0 $pid 2>/dev/null; do wait $pid; code=$?; done
  wait $pid
  again=$?
  [ $again = 127 ] || code=$again
}
# If requested, netcheck runs first (harness/launch/mounts/netcheck.py). If it fails, the command does not
# run.
code=0
[ "$HARNESS_NETCHECK" = before ] && run sh /opt/harness/netcheck/netcheck.sh
case $code in 0 | 3) run "$@" ;; 1 | 2) code=90 ;; esac
[ $code -le 128 ] || wait_for_own
value=$(cat "$KONDUKTOR_OUTPUT_DIR/result.json" 2>/dev/null || echo null)
printf '{"exit":%d,"value":%s}' $code "$value" >"${TERMINATION_LOG:-/dev/termination-log}" 2>/dev/null
echo "@exit1 $HARNESS_NONCE $code"
# A signal ends `wait` immediately, but it would not end `sleep` in the foreground. A `sleep` that was forked a
# moment ago may miss the signal that the trap forwards to it, so each `sleep` is short.
while [ "$HARNESS_HOLD" = 1 ] && [ -z "$ended" ]; do sleep 5 & wait $!; done
exit $code
