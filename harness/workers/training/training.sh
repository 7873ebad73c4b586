#!/bin/sh
# Run torchrun on one node of a training job, and restart it if it exited because another node was lost.
#
#   training.sh [torchrun's options] -m training.train_framework …
#
# torchrun itself restarts ranks, but it does not survive the loss of its rendezvous, which node 0 hosts. In that case,
# this script restarts torchrun on every node. The pod sets NNODES, NODE_RANK, MASTER_ADDR, MASTER_PORT, RUN_ID and
# RESTARTS.
#
# NNODES may be a range, MIN:MAX. The training then runs on the available nodes. When a node joins or leaves, for
# example after `kubectl scale`, torchrun restarts the ranks, and they resume from the last checkpoint.
set -u
# Process 1 ignores SIGTERM unless it has a trap, so the trap is set for the whole script, including its waits.
pid='' watcher=''
trap 'kill $pid $watcher 2>/dev/null; [ -z "$pid" ] || wait "$pid"; exit 143' TERM INT
. "${0%/*}/../own_processes.sh"
: "${NODE_RANK:=${HOSTNAME##*-}}" "${MASTER_PORT:=29500}" "${RESTARTS:=0}" "${DATA_DIR:=/data}" "${OUT_DIR:=/out}"
# Another attempt as this user would fail in the same way.
for folder in "$OUT_DIR" "$OUT_DIR/$RUN_ID"; do
  [ ! -e "$folder" ] || [ -w "$folder" ] || {
    echo "[DDP] node $NODE_RANK: expected a folder that user $(id -u) can write to, found $folder of user" \
      "$(stat -c %u "$folder"): --pod FILE can set spec.securityContext.runAsUser to that user" >&2
    exit 2
  }
done
id=${HARNESS_NONCE:-$(echo "$*" | cksum | cut -d' ' -f1)}
# For torch 2.6: if all attempts share one store, a restarted rank reads the previous attempt's addresses.
export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 TORCH_NCCL_ASYNC_ERROR_HANDLING=1
# Rank 0 creates this file after the last barrier. A node that starts later exits immediately.
export TRAINING_ENDED="$OUT_DIR/.ended-$RUN_ID-$id"
# A line is added to this file each time the ranks have joined. The number of lines shows how often torchrun and this
# script restarted them.
export TRAINING_MET=${TMPDIR:-/tmp}/training-met
: >"$TRAINING_MET"
# A rank that refuses its options or data writes the reason into this file, because a restart would not help. The
# other nodes would wait for this one, so a copy on the shared disk makes them exit. The copy's name must be unique to
# this launch: after `kubectl apply` of the same manifests, a file from an earlier launch would end the next one.
export TRAINING_REFUSED=${TMPDIR:-/tmp}/training-refused
rm -f "$TRAINING_REFUSED"
everywhere=${HARNESS_NONCE:+$OUT_DIR/.refused-$RUN_ID-$HARNESS_NONCE}
refused() { [ -e "$TRAINING_REFUSED" ] || { [ -n "$everywhere" ] && [ -e "$everywhere" ]; }; }
# Kill a process if it is a rank that this script's torchrun started. A user can run other ranks in the same container.
export TRAINING_SCRIPT_PID=$$
end_rank() {
  grep -qz '^LOCAL_RANK=' "/proc/$1/environ" 2>/dev/null || return 0
  ! grep -qzx "TRAINING_SCRIPT_PID=$$" "/proc/$1/environ" 2>/dev/null || kill -9 "$1" 2>/dev/null
}
say() { echo "[DDP] node $NODE_RANK: $*"; }

# Texts on a volume belong to the user. The training uses them, and never replaces them.
split() {
  for text in "$DATA_DIR/$1.jsonl" "$DATA_DIR/$1.jsonl.gz" "$DATA_DIR/$1.jsonl.zst" "$DATA_DIR/$1-"[0-9]*.json* \
    "$DATA_DIR/$1"; do
    [ ! -e "$text" ] || return 0
  done
  return 1
}
texts() { split train && split val; }
# Generate texts with known entropy in a folder on the volume, then move them into place. source.json is moved last, so
# if it exists, all files exist. After an interruption, the next start continues.
make_texts() {
  making="$DATA_DIR/.harness-texts-$id"
  if [ ! -f "$making/source.json" ]; then
    if texts; then
      say "$DATA_DIR has texts of both splits: this training uses them, and makes no texts"
      return
    fi
    for name in train val; do
      ! split "$name" || refuse_texts "${text##*/}"
    done
    python3 -m training.source --out-dir "$making" || exit 1
  fi
  for name in train.jsonl val.jsonl source.json; do
    [ ! -e "$making/$name" ] || mv -n "$making/$name" "$DATA_DIR/$name"
    [ ! -e "$making/$name" ] || refuse_texts "$name"
  done
  rmdir "$making"
}
refuse_texts() {
  say "$DATA_DIR has $1 already, which is not replaced: put both train.jsonl and val.jsonl there, or neither" >&2
  exit 2
}
if [ "${TRAINING_SOURCE:-0}" = 1 ]; then
  if [ "$NODE_RANK" = 0 ] && [ ! -f "$DATA_DIR/source.json" ]; then make_texts; fi
  until [ -f "$DATA_DIR/source.json" ] || texts; do sleep 0.2; done
fi

# torchrun orders ranks by the nodes' addresses as strings, in which 10 comes before 2. Connections use only node 0's
# address. The other nodes' addresses are therefore node 0's address with a six-digit suffix.
[ "$NODE_RANK" = 0 ] && host=true address=$MASTER_ADDR || host=false address=$(printf '%s-%06d' "$MASTER_ADDR" "$NODE_RANK")
# With c10d, node 0 hosts the rendezvous. With etcd-v2, a server that does not depend on any node hosts it.
: "${RDZV_BACKEND:=c10d}"
: "${RDZV_ENDPOINT:=$MASTER_ADDR:$MASTER_PORT}"
[ "$RDZV_BACKEND" = c10d ] && conf="is_host=$host," || conf=
# With a range of nodes, torchrun waits this long for more nodes after MIN nodes have joined. Its default is 30 s.
case $NNODES in *:*) conf="${conf}last_call_timeout=${TRAINING_LAST_CALL:-10}," ;; esac
met() { wc -l <"$TRAINING_MET"; }
# Each line of the file is a world size. A different size means that a node joined or left, not that ranks restarted.
restarts() { echo $(($(met) - $(uniq "$TRAINING_MET" | wc -l))); }
# A torchrun that receives SIGTERM twice closes its rendezvous, and etcd keeps it closed. All nodes then use the next
# rendezvous. The number of folders on the shared disk is the number of the current rendezvous.
closed="$OUT_DIR/.closed-$RUN_ID-$id"
meeting() { set -- "$closed"-*; [ -d "$1" ] && echo $# || echo 0; }
error=${TMPDIR:-/tmp}/torchrun-error.json
since=$(date +%s)
while :; do
  if [ -e "$TRAINING_ENDED" ]; then
    say "the training has ended"
    code=0
    break
  fi
  before=$(met) meeting=$(meeting)
  rm -f "$error"
  TORCHELASTIC_ERROR_FILE=$error \
    torchrun --nnodes="$NNODES" --local-addr="$address" --max-restarts="$RESTARTS" --rdzv-id="$RUN_ID-$id-$meeting" \
    --rdzv-backend="$RDZV_BACKEND" --rdzv-endpoint="$RDZV_ENDPOINT" \
    --rdzv-conf="${conf}join_timeout=${TRAINING_JOIN:-300},read_timeout=30" "$@" &
  pid=$!
  # If other nodes have exited, torchrun would wait for them until its timeout. A signal to this subshell is lost
  # if the subshell has not yet reset the trap above, so the subshell also exits by itself.
  (while sleep 1 && kill -0 $pid; do
    ! refused || kill $pid
    [ -e "$TRAINING_ENDED" ] && [ "$(met)" = "$before" ] && sleep 5 && kill $pid
  done) 2>/dev/null &
  watcher=$!
  wait $pid
  code=$?
  kill $watcher 2>/dev/null
  pid='' watcher=''
  [ $code = 0 ] && break
  if [ $code = 2 ]; then
    say "torchrun refuses these options"
    break
  fi
  if refused; then
    if [ -e "$TRAINING_REFUSED" ]; then
      [ -z "$everywhere" ] || cp "$TRAINING_REFUSED" "$everywhere" 2>/dev/null
      say "the trainer refuses its options or its data, and is not started again: the line above has the reason"
    else
      say "another node refuses its options or its data, and the training is not started again: $(cat "$everywhere")"
    fi
    code=2
    break
  fi
  # If torchrun itself was killed, its ranks are still alive and train with the others, but no process waits for them.
  own_each end_rank
  if [ "$RDZV_BACKEND" != c10d ] && grep -qs RendezvousClosedError "$error"; then
    mkdir -p "$closed-$meeting"
  fi
  now=$(date +%s)
  [ "$(met)" -gt "$before" ] && since=$now
  if [ "$(met)" -gt 0 ] && [ "$(restarts)" -ge "$RESTARTS" ]; then
    say "torchrun ended with $code; the ranks met $(met) times, and $RESTARTS restarts are allowed"
    break
  fi
  if [ $((now - since)) -gt "${TRAINING_JOIN:-300}" ]; then
    say "torchrun ended with $code; the ranks have not met for $((now - since)) s"
    break
  fi
  say "torchrun ended with $code: once more"
  sleep 1
done
[ "$NODE_RANK" = 0 ] && [ "$code" = 0 ] && rmdir "$closed"-* 2>/dev/null
# A StatefulSet restarts containers that exit. The harness itself keeps its containers alive.
if [ "${TRAINING_HOLD:-0}" = 1 ] && [ "$code" = 0 ]; then
  say "done; the pod stays until it is deleted"
  trap 'exit 0' TERM INT
  while :; do sleep 3600 & wait $!; done
fi
exit "$code"
