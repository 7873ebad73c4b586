# Find the container's own processes: those in this shell's cgroup or in a cgroup below it. With hostPID or
# shareProcessNamespace, /proc also lists processes in other containers, and a signal to -1 would reach them.
# Scripts in containers include this text (harness/core/own_processes.py). It requires a POSIX shell with
# `local`.
own='' own_cgroups=''
# Read this shell's cgroups. They change when a hierarchy is mounted or the container is moved.
own_read() {
  local line='' lines=''
  while IFS= read -r line; do lines="$lines$line|"; done 2>/dev/null </proc/self/cgroup || return 0
  own_cgroups=$lines
}
{ read -r own own_line </proc/self/stat; } 2>/dev/null
own_read
# Return whether process $1 belongs to the container. Paths outside a cgroup namespace begin with "/..".
own_has() {
  local rest="$own_cgroups" mine='' line=''
  [ -n "$rest" ] || return 1
  while IFS= read -r line; do
    mine=${rest%%"|"*} rest=${rest#*"|"}
    case $line in *:/..*) return 1 ;; "$mine" | "${mine%/}"/*) ;; *) return 1 ;; esac
  done 2>/dev/null <"/proc/$1/cgroup" || return 1
  [ -z "$rest" ]
}
# In the node's root cgroup, every process would appear to belong to the container. If process 1 appears to
# belong to it, but has a different mount namespace, own_has returns false for all processes.
case $own_cgroups in *:/[!"|"]*) ;; *)
  [ "$own" = 1 ] || ! own_has 1 || [ /proc/1/ns/mnt -ef /proc/self/ns/mnt ] || own_cgroups='' ;;
esac
# Return whether process $1 belongs to the container and has not ended.
own_runs() {
  local stat=''
  [ -z "$own_cgroups" ] || own_read
  own_has "$1" && { read -r stat <"/proc/$1/stat"; } 2>/dev/null || return 1
  case ${stat##*) } in [ZX]*) return 1 ;; esac
}
# Run command $1 with the pid of each of the container's processes, including zombies, except this shell.
own_each() {
  local each=''
  [ -z "$own_cgroups" ] || own_read
  for each in /proc/[0-9]*; do
    each=${each#/proc/}
    [ "$each" = "$own" ] || ! own_has "$each" || "$1" "$each" || :
  done
}
