# Without this init, konduktor's script would run as PID 1 in bash, which neither forwards nor obeys SIGTERM.
# Its ranks would be killed 30 s later without a log line. Bash receives that script as $0. If requested,
# netcheck runs first. If netcheck fails, konduktor's script does not run.
code=0
if [ "$HARNESS_NETCHECK" = before ]; then
  sh /opt/harness/netcheck/netcheck.sh & wait $!; code=$?
fi
# A signal may arrive before there is a process to forward it to. It is then forwarded afterwards.
case $code in
0 | 3) become bash -c "$0" & [ -z "$ended" ] || kill -TERM $!; wait $!; code=$? ;;
1 | 2) code=90 ;;
esac
[ $code -le 128 ] || wait_for_own
exit $code
