#!/usr/bin/env bash
# The half-hour study, from a bare machine with a GPU to its tables: bash runs/half-hour.sh CORPORA [OUT]
#
# CORPORA holds LibriSpeech/dev-clean with phones-dev-clean.jsonl.gz beside LibriSpeech, and any of: extra/ (more
# LibriSpeech), speechocean762/, ravdess/, coffee/. Every command continues what was stopped.
set -euo pipefail
here=$(realpath "$(dirname "$0")/..")
corpora=$(realpath "$1") out=$(realpath -m "${2:-$here/runs/study}")
cd "$here"
test -x .venv/bin/sjepa || make setup
PATH=$PWD/.venv/bin:$PATH
mkdir -p "$out"

# All audio that is heard in pre-training, decoded once.
sources=("$corpora/LibriSpeech/dev-clean")
for more in extra speechocean762; do if [ -d "$corpora/$more" ]; then sources+=("$corpora/$more"); fi; done
sjepa index "${sources[@]}" --out "$out/corpus"
sjepa shard "$out/corpus" --encoding int16 --out "$out/shards"

train() { # NAME SEED options: one run of both phases
  sjepa pretrain --preset half-hour --data "$out/shards" --out "$out/$1-$2" --seed "$2" "${@:3}"
}
compared() { # the same, at the length of the comparison: two minutes of an H200
  train "$@" --phase1.steps 6000 --phase1.warmup 0.1 --phase2.steps 6000
}
branch() { # NAME FROM SEED options: the second phase again, from the first of another run
  sjepa pretrain --branch-from "$out/$2-$3" --out "$out/$1-$3" "${@:4}"
}
probed() { # NAME ENCODER
  sjepa probe --encoder "$2" --data "$corpora" --frames 0 --out "$out/$1/results/probe"
}
measure() { # NAME-SEED: what the study reports of a run
  probed "$1" "$out/$1"
  sjepa units --encoder "$out/$1" --data "$corpora" --out "$out/$1/results/units"
  sjepa analyze entropy --run "$out/$1" --data "$corpora/LibriSpeech/dev-clean"
}
tasks() { # NAME ENCODER: heads trained on a frozen encoder
  for task in asr pr; do sjepa superb $task --lite --encoder "$2" --data "$corpora" --out "$out/$1/results/$task"; done
  for task in ravdess coffee; do
    if [ -d "$corpora/$task" ]; then
      sjepa superb $task --lite --encoder "$2" --data "$corpora/$task" --out "$out/$1/results/$task"
    fi
  done
}

for seed in 0 1; do
  compared soft $seed
  branch softened soft $seed --phase2.temperature 16
  compared hard $seed --phase1.hard --phase2.hard
  compared hubert $seed --phase1.targets mfcc-kmeans --phase2.targets encoder-kmeans --layer.choice 4
  runs="soft softened hard hubert"
  if [ $seed = 0 ]; then
    branch frozen soft 0 --phase2.targets same
    branch fixed-layer soft 0 --layer.choice 4
    branch last-layer soft 0 --layer.choice 5
    branch fixed-decay soft 0 --ema.slow 0.9999
    branch papers-decays soft 0 --ema.fast 0.999 --ema.slow 0.9999 --gmm.decay 0.999
    compared best-rq 0 --phase1.targets best-rq --phase1.no-centred --phase2.targets same
    compared masked-only 0 --phase1.visible-loss-until 0.0
    runs="$runs frozen fixed-layer last-layer fixed-decay papers-decays best-rq masked-only"
  fi
  for run in $runs; do measure $run-$seed; done
  for run in soft hard hubert; do probed $run.phase1-$seed "$out/$run-$seed/encoder-phase1"; done
done
train headline 0 --layer.choice 4
measure headline-0
probed headline.phase1-0 "$out/headline-0/encoder-phase1"
for floor in mfcc mfcc+context logmel "untrained:$out/soft-0"; do probed "${floor%%:*}" "$floor"; done
for run in soft-0 softened-0 hard-0 hubert-0 headline-0; do tasks $run "$out/$run"; done
tasks logmel logmel
tasks untrained "untrained:$out/soft-0"

python benchmarks/study.py collect "$out"
python benchmarks/study.py tables
python benchmarks/study_figures.py
