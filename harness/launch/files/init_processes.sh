# Forward SIGTERM to every process of the container. If these cannot be identified, forward it only to the
# command.
terminate() { kill -TERM "$1" 2>/dev/null; }
terminate_own() {
  if [ -n "$own_cgroups" ]; then own_each terminate; elif [ -n "$!" ]; then terminate $!; fi
}
# Replace this background shell with the command. A shell without job control makes its background processes
# ignore SIGINT and SIGQUIT, but the command must handle them as it would without this init. If the image's
# `env` does not support --default-signal, the command ignores both signals.
become() {
  if env --default-signal=INT,QUIT true 2>/dev/null; then
    exec env --default-signal=INT,QUIT sh -c 'exec "$@"' sh "$@"
  fi
  exec "$@"
}
# Wait until all of the container's processes that this shell may signal have exited.
lives() { own_runs "$1" && kill -0 "$1" 2>/dev/null; }
note() { ! lives "$1" || noted="$noted $1"; }
wait_for_own() {
  local each=''
  [ -n "$own_cgroups" ] || while kill -0 $! 2>/dev/null; do wait $!; done
  while noted='' && own_each note && [ -n "$noted" ]; do
    for each in $noted; do while lives "$each"; do sleep 0.1; done; done
  done
}
# The recorder around Pluto's client (harness/launch/mounts/recorder.py). Python imports it at startup. Its
# frames go to this shell's stdout, which is the container's. Process 1's stdout is not used, because process 1
# may belong to another container.
if [ -d /opt/harness/recorder ]; then
  export PYTHONPATH="/opt/harness/recorder${PYTHONPATH:+:$PYTHONPATH}" HARNESS_LOG="/proc/$own/fd/1"
  if [ -f /opt/harness/recorder/setup.sh ]; then . /opt/harness/recorder/setup.sh; fi
fi
