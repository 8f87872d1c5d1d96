#!/usr/bin/env bash
# Trains the forecasting recipes on a GPU: DATA OUT, from the root of a checkout.
set -u
data=$1 out=$2
mkdir -p "$out"
export OMP_NUM_THREADS=1 PYTHONPATH=src:carry/site:${PYTHONPATH:-}
train() {  # NAME RECIPE SETTING...
  name=$1 recipe=$2
  shift 2
  timeout 420 python -m regard train "recipes/$recipe" --data-dir "$data" -o "/tmp/forecasting/$name" \
    report=false "$@" > "$out/$name.log" 2>&1
  cp "/tmp/forecasting/$name/result.json" "$out/$name.json" 2> /dev/null
}
for seed in 1 2 3; do
  train "ett-m1-$seed" ett-m1 "seed=$seed" &
  train "ett-h1-$seed" ett-h1 "seed=$seed" &
done
# variants of what is quick, one after the other in each line
for seed in 1 2 3; do
  (
    train "ett-h1-512-$seed" ett-h1 look_back=512 "seed=$seed"
    train "illness-skip-$seed" illness window_scale=last skip=true "seed=$seed"
    train "illness-mae-$seed" illness loss=mae metric=mse "seed=$seed"
    train "ett-h1-slow-$seed" ett-h1 lr=3e-4 "seed=$seed"
  ) &
done
wait
