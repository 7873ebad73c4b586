# Sourced by the init of a rank's container. PYTHONPATH leads Python to the recorder, but not a program that is started
# with a clean environment or with -I or -E. So each interpreter of the image gets a .pth file, where that can be written.
# It does nothing where the recorder's folder is not mounted. Globs alone: no interpreter is started. A folder of a
# volume is left as it is: only the container's own file system is written to.
harness_root=$(stat -c %d / 2>/dev/null) || :
harness_pth() {
  for folder in "$@"; do
    [ -d "$folder" ] && [ -w "$folder" ] && [ ! -e "$folder/harness_recorder.pth" ] || continue
    [ -n "$harness_root" ] && [ "$(stat -c %d "$folder" 2>/dev/null)" = "$harness_root" ] || continue
    cat /opt/harness/recorder/harness_recorder.pth >"$folder/harness_recorder.pth" 2>/dev/null || :
  done
}
harness_pth /usr/lib/python3/dist-packages /usr/local/lib/python3*/*-packages /usr/lib/python3.*/site-packages \
  /usr/lib64/python3.*/site-packages /opt/*/lib/python3*/site-packages /opt/*/envs/*/lib/python3*/site-packages
IFS_BEFORE=$IFS
IFS=:
for folder in $PATH; do
  case $folder in /*/bin) harness_pth "${folder%/bin}"/lib/python3*/site-packages ;; esac
done
IFS=$IFS_BEFORE
unset IFS_BEFORE folder harness_root
