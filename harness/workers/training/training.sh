#!/bin/sh
# One node of a training: torchrun, started again when it was lost with something of another node.
#
#   training.sh [torchrun's options] -m training.train_framework …
#
# torchrun itself restarts ranks. What it does not survive is the loss of its rendezvous, which node 0 holds: then every
# node comes here, and all meet again. NNODES, NODE_RANK, MASTER_ADDR, MASTER_PORT, RUN_ID and RESTARTS are set.
#
# NNODES may be a range, MIN:MAX. Then the nodes that are there train: torchrun restarts the ranks when a node joins or
# leaves, for example after `kubectl scale`, and they resume from the last checkpoint.
set -u
# As process 1 a shell does not hear SIGTERM without a trap: all of it is under one, also what waits.
pid='' watcher=''
trap 'kill $pid $watcher 2>/dev/null; [ -z "$pid" ] || wait "$pid"; exit 143' TERM INT
. "${0%/*}/../own_processes.sh"
: "${NODE_RANK:=${HOSTNAME##*-}}" "${MASTER_PORT:=29500}" "${RESTARTS:=0}" "${DATA_DIR:=/data}" "${OUT_DIR:=/out}"
id=${HARNESS_NONCE:-$(echo "$*" | cksum | cut -d' ' -f1)}
# Of torch 2.6: with one store for all attempts, a restarted rank reads the addresses of the attempt before.
export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 TORCH_NCCL_ASYNC_ERROR_HANDLING=1
# Rank 0 makes it after the last barrier: whoever comes later has nothing to do, and nobody to meet.
export TRAINING_ENDED="$OUT_DIR/.ended-$RUN_ID-$id"
# The ranks add a line each time they have met: torchrun's own restarts and ours are counted together.
export TRAINING_MET=/tmp/training-met
: >"$TRAINING_MET"
# A rank makes it that refuses its options or data: another start would end the same.
export TRAINING_REFUSED=/tmp/training-refused
rm -f "$TRAINING_REFUSED"
# Only of this container: other pods' ranks are in /proc too where pods share the node's process ids.
end_rank() { grep -qz '^LOCAL_RANK=' "/proc/$1/environ" 2>/dev/null && kill -9 "$1" 2>/dev/null; }
say() { echo "[DDP] node $NODE_RANK: $*"; }

# Texts that a volume has are the user's: they are trained on, and never replaced.
texts() { [ -f "$DATA_DIR/train.jsonl" ] && [ -f "$DATA_DIR/val.jsonl" ]; }
# Make texts of a known entropy beside the volume's files, then move them there. source.json comes last, so that whoever
# sees it sees all. A node that was lost in between goes on.
make_texts() {
  making="$DATA_DIR/.harness-texts-$id"
  if [ ! -f "$making/source.json" ]; then
    if texts; then
      say "$DATA_DIR has train.jsonl and val.jsonl: this training uses them, and makes no texts"
      return
    fi
    for name in train.jsonl val.jsonl; do
      [ ! -e "$DATA_DIR/$name" ] || refuse_texts "$name"
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

# Ranks follow the order of the nodes' addresses as texts, in which 10 comes before 2. Node 0's address is the only one
# that is dialled; the others are that with a number of six digits.
[ "$NODE_RANK" = 0 ] && host=true address=$MASTER_ADDR || host=false address=$(printf '%s-%06d' "$MASTER_ADDR" "$NODE_RANK")
# With c10d the nodes meet in node 0, with etcd-v2 in a server that outlives each of them.
: "${RDZV_BACKEND:=c10d}"
: "${RDZV_ENDPOINT:=$MASTER_ADDR:$MASTER_PORT}"
[ "$RDZV_BACKEND" = c10d ] && conf="is_host=$host," || conf=
# With a range of nodes, torchrun waits this long for more of them once MIN are there. Its default is 30 s.
case $NNODES in *:*) conf="${conf}last_call_timeout=${TRAINING_LAST_CALL:-10}," ;; esac
met() { wc -l <"$TRAINING_MET"; }
# Each line of the file is the size of a world. A world of another size was formed because a node joined or left.
restarts() { echo $(($(met) - $(uniq "$TRAINING_MET" | wc -l))); }
# A torchrun that gets SIGTERM twice closes its rendezvous, and etcd keeps that for ever: then all go on in the next one.
# Which it is, folders on the shared disk say.
closed="$OUT_DIR/.closed-$RUN_ID-$id"
meeting() { set -- "$closed"-*; [ -d "$1" ] && echo $# || echo 0; }
error=/tmp/torchrun-error.json
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
  # Who waits for others that have ended would wait until torchrun's own limit. A signal to this subshell is lost where
  # it comes before the subshell has dropped the trap above, so it also ends by itself.
  (while sleep 1 && kill -0 $pid; do
    [ ! -e "$TRAINING_REFUSED" ] || kill $pid
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
  if [ -e "$TRAINING_REFUSED" ]; then
    say "the trainer refuses its options or its data, and is not started again: the line above says why"
    code=2
    break
  fi
  # Where torchrun itself was killed, its ranks live on, train with the others, and nobody would wait for them.
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
# A StatefulSet starts again what ends. The harness holds its containers itself.
if [ "${TRAINING_HOLD:-0}" = 1 ] && [ "$code" = 0 ]; then
  say "done; the pod stays until it is deleted"
  trap 'exit 0' TERM INT
  while :; do sleep 3600 & wait $!; done
fi
exit "$code"
