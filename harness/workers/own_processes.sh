# The container's own processes: those in the cgroup of this shell, or in one below it. With hostPID or
# shareProcessNamespace, /proc has other people's processes too, and a signal to -1 would reach them.
# Scripts in containers include this text (harness/core/own_processes.py). A POSIX shell with `local` is enough.
own='' own_cgroups=''
# Read the cgroups of this shell. They change when a hierarchy is mounted, or the container is moved.
own_read() {
  local line='' lines=''
  while IFS= read -r line; do lines="$lines$line|"; done 2>/dev/null </proc/self/cgroup || return 0
  own_cgroups=$lines
}
{ read -r own own_line </proc/self/stat; } 2>/dev/null
own_read
# Return whether process $1 is the container's. Paths outside a cgroup namespace begin with "/..".
own_has() {
  local rest="$own_cgroups" mine='' line=''
  [ -n "$rest" ] || return 1
  while IFS= read -r line; do
    mine=${rest%%"|"*} rest=${rest#*"|"}
    case $line in *:/..*) return 1 ;; "$mine" | "${mine%/}"/*) ;; *) return 1 ;; esac
  done 2>/dev/null <"/proc/$1/cgroup" || return 1
  [ -z "$rest" ]
}
# A container in the machine's root cgroup seems to have every process. Where process 1 shows that, it has none.
case $own_cgroups in *:/[!"|"]*) ;; *)
  [ "$own" = 1 ] || ! own_has 1 || [ /proc/1/ns/mnt -ef /proc/self/ns/mnt ] || own_cgroups='' ;;
esac
# Return whether process $1 is the container's and has not ended.
own_runs() {
  local stat=''
  [ -z "$own_cgroups" ] || own_read
  own_has "$1" && { read -r stat <"/proc/$1/stat"; } 2>/dev/null || return 1
  case ${stat##*) } in [ZX]*) return 1 ;; esac
}
# Run the command $1 with the number of each of them, ended or not, except this shell's.
own_each() {
  local each=''
  [ -z "$own_cgroups" ] || own_read
  for each in /proc/[0-9]*; do
    each=${each#/proc/}
    [ "$each" = "$own" ] || ! own_has "$each" || "$1" "$each" || :
  done
}
