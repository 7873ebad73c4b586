# The init in a rank's container sources this script. PYTHONPATH makes Python find the recorder, except in
# programs that are started with a clean environment or with -I or -E. The script therefore writes a .pth file
# for each of the image's interpreters whose folder is writable. The .pth file does nothing if the recorder's
# folder is not mounted. The script finds the folders by globs, without starting an interpreter. It writes only
# to the container's own file system, not to volumes.
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
