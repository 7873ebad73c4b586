# Without this init, konduktor's script would be PID 1 as bash, which neither forwards nor obeys SIGTERM: its ranks would
# be killed 30 s later without a log line. Bash gets that script as $0. netcheck comes first where it is asked for. When
# it failed, konduktor's script does not run.
code=0
if [ "$HARNESS_NETCHECK" = before ]; then
  sh /opt/harness/netcheck/netcheck.sh & wait $!; code=$?
fi
# The signal may come before there is a process to pass it on to: then it is passed on afterwards.
case $code in
0 | 3) become bash -c "$0" & [ -z "$ended" ] || kill -TERM $!; wait $!; code=$? ;;
1 | 2) code=90 ;;
esac
[ $code -le 128 ] || wait_for_own
exit $code
