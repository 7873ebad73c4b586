#!/bin/bash
# Run the acceptance tests and the training program on a machine with one GPU, Python and PyTorch, without Kubernetes. This
# takes about 4 minutes.
#
#   bash bench/on_one_gpu.sh FOLDER      (with DEVICE=cpu: only the training, to try out this script)
#
# The acceptance tests run on an idle GPU, where they must pass, and next to a program that keeps the GPU busy, where they
# must fail. Then the training program runs in each precision, once undisturbed and once with ranks that are killed. Both
# runs must end with the same weights. Logs and reports are written to FOLDER. If a result is wrong, the exit code is 1.
set -u
out=$(realpath -m "${1:?FOLDER is missing}") device=${DEVICE:-cuda} bad=0
mkdir -p "$out"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
unset CDPATH
cd "$(dirname "$0")/../harness/workers" || exit 1
export PYTHONPATH=$PWD PYTHONDONTWRITEBYTECODE=1 OMP_NUM_THREADS=2
size=(--width 256 --layers 4 --max-steps 160 --save-every 20) runs="float32 bf16 fp16 recompute compile"
[ "$device" = cpu ] && size=(--width 32 --layers 1 --max-steps 40 --save-every 5) runs="float32 recompute"
shopt -s nullglob
say() { echo "[${SECONDS} s] $*"; }

accept() { # NAME CODE: run the acceptance tests, which must exit with CODE
  timeout 120 python3 -m acceptance.run_all_tests --quick --gpus 1 --report-dir "$out/$1" >"$out/$1.log" 2>&1
  local code=$?
  say "accept, $1: exit code $code; $(grep -h RESULT "$out/$1.log" | tail -1)"
  [ $code = "$2" ] || bad=1
}

kill_at() { # NAME COUNT…: kill the rank of run NAME each time the run has COUNT checkpoints
  local name=$1 count folders process
  shift
  for count; do
    for _ in {1..3000}; do
      folders=("$work/$name/$name"/epoch-*)
      [ ${#folders[@]} -ge "$count" ] && break
      sleep 0.02
    done
    for process in /proc/[0-9]*; do
      grep -qz '^LOCAL_RANK=' "$process/environ" 2>/dev/null || continue
      tr '\0' ' ' <"$process/cmdline" | grep -q -- "--run-name $name " && kill -9 "${process#/proc/}"
    done
  done
}

train() { # NAME OPTIONS…: run the training program as run NAME
  local name=$1
  shift
  mkdir -p "$work/$name"
  timeout 300 torchrun --standalone --nproc-per-node 1 --max-restarts 5 -m training.train_framework \
    --run-name "$name" --data-dir "$work/data" --out-dir "$work/$name" --device "$device" \
    "${size[@]}" --epochs 99 --keep 99 --batch 64 --micro-batch 16 --dropout 0.1 "$@" >"$out/$name.log" 2>&1
}

if [ "$device" = cuda ]; then
  nvidia-smi -q -x >"$out/nvidia-smi.xml"
  accept alone 0
  python3 -c 'import torch; a = torch.ones(8192, 8192, device="cuda")
while True: a @ a; torch.cuda.synchronize()' &
  busy=$!
  sleep 5
  accept shared 1
  kill $busy
fi
python3 -m training.source --out-dir "$work/data" --documents 20000 || exit 1
declare -A options=([float32]=--amp=off [bf16]=--amp=bf16 [fp16]=--amp=fp16 [recompute]=--recompute [compile]=--compile)
for run in $runs; do
  train "$run" "${options[$run]}" &
  kill_at "$run-killed" 2 5 &
  train "$run-killed" "${options[$run]}" &
done
wait
for run in $runs; do
  plain=$(grep -ho 'weights [0-9a-f]*$' "$out/$run.log") killed=$(grep -ho 'weights [0-9a-f]*$' "$out/$run-killed.log")
  restarts=$(grep -c 'resumed at step' "$out/$run-killed.log")
  say "$run: $plain; killed and resumed $restarts times: $killed"
  [ -n "$plain" ] && [ "$plain" = "$killed" ] && [ "$restarts" -ge 1 ] || bad=1
done
exit $bad
