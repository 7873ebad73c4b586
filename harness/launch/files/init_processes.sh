# Pass SIGTERM on to every process of the container. Where they cannot be told from others, to the command alone.
terminate() { kill -TERM "$1" 2>/dev/null; }
terminate_own() {
  if [ -n "$own_cgroups" ]; then own_each terminate; elif [ -n "$!" ]; then terminate $!; fi
}
# Become the command, in the background. A shell without job control lets what it starts there ignore SIGINT and SIGQUIT,
# and the command is to have them as without this init. An image whose env does not know the option has none of that.
become() {
  if env --default-signal=INT,QUIT true 2>/dev/null; then
    exec env --default-signal=INT,QUIT sh -c 'exec "$@"' sh "$@"
  fi
  exec "$@"
}
# Wait until each of them has ended that this shell may signal.
lives() { own_runs "$1" && kill -0 "$1" 2>/dev/null; }
note() { ! lives "$1" || noted="$noted $1"; }
wait_for_own() {
  local each=''
  [ -n "$own_cgroups" ] || while kill -0 $! 2>/dev/null; do wait $!; done
  while noted='' && own_each note && [ -n "$noted" ]; do
    for each in $noted; do while lives "$each"; do sleep 0.1; done; done
  done
}
# The recorder around Pluto's client (harness/launch/mounts/recorder.py): Python imports it when it starts. Its frames go to
# this shell's stdout, the container's. Process 1 may be another container's.
if [ -d /opt/harness/recorder ]; then
  export PYTHONPATH="/opt/harness/recorder${PYTHONPATH:+:$PYTHONPATH}" HARNESS_LOG="/proc/$own/fd/1"
  if [ -f /opt/harness/recorder/setup.sh ]; then . /opt/harness/recorder/setup.sh; fi
fi
