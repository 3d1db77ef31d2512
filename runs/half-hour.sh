#!/usr/bin/env bash
# The half-hour study, from a bare machine with a GPU to its tables: bash runs/half-hour.sh CORPORA [OUT]
#
# CORPORA holds LibriSpeech/dev-clean with phones-dev-clean.jsonl.gz beside LibriSpeech, and any of: extra/ (more
# LibriSpeech), speechocean762/, esc50/ (noise), ravdess/, coffee/. Every command continues what was stopped.
set -euo pipefail
corpora=$1 out=${2:-runs/study}
cd "$(dirname "$0")/.."
test -x .venv/bin/sjepa || make setup
PATH=$PWD/.venv/bin:$PATH
mkdir -p "$out"

# All audio that is heard in pre-training, decoded once.
sources=("$corpora/LibriSpeech/dev-clean")
for more in extra speechocean762; do [ -d "$corpora/$more" ] && sources+=("$corpora/$more"); done
[ -d "$out/shards" ] || { sjepa index "${sources[@]}" --out "$out/corpus"; sjepa shard "$out/corpus" --encoding int16 --out "$out/shards"; }
noise=(); [ -d "$corpora/esc50" ] && noise=(--augment.noise "$corpora/esc50")

train() { # NAME SEED options: one run of both phases
  sjepa pretrain --preset half-hour --data "$out/shards" --out "$out/$1-$2" --seed "$2" "${noise[@]}" "${@:3}"
}
branch() { # NAME FROM SEED options: the second phase again, from the first of another run
  sjepa pretrain --branch-from "$out/$2-$3" --out "$out/$1-$3" "${@:4}"
}
measure() { # NAME-SEED: what the study reports of a run
  sjepa probe --encoder "$out/$1" --data "$corpora" --out "$out/$1/results/probe"
  sjepa units --encoder "$out/$1" --data "$corpora" --out "$out/$1/results/units"
  sjepa analyze entropy --run "$out/$1" --data "$corpora/LibriSpeech/dev-clean"
}
tasks() { # NAME ENCODER: heads trained on a frozen encoder
  for task in asr pr; do sjepa superb $task --lite --encoder "$2" --data "$corpora" --out "$out/$1/results/$task"; done
  for task in ravdess coffee; do
    [ -d "$corpora/$task" ] && sjepa superb $task --lite --encoder "$2" --data "$corpora/$task" --out "$out/$1/results/$task"
  done
}

for seed in 0 1; do
  train soft $seed --phase2.temperature 1
  branch softened soft $seed --phase2.temperature 16
  train hard $seed --phase1.hard --phase2.hard
  train hubert $seed --phase1.targets mfcc-kmeans --phase2.targets encoder-kmeans --layer.choice 3
done
branch frozen soft 0 --phase2.targets same
branch fixed-layer soft 0 --layer.choice 3 --phase2.temperature 16
branch fixed-decay soft 0 --ema.slow 0.999 --phase2.temperature 16
train best-rq 0 --phase1.targets best-rq --phase2.targets same
train masked-only 0 --phase1.visible-loss-until 0 --phase2.visible-loss-until 0 --phase2.temperature 16

for run in soft-0 soft-1 softened-0 softened-1 hard-0 hard-1 hubert-0 hubert-1 frozen-0 fixed-layer-0 fixed-decay-0 \
  best-rq-0 masked-only-0; do measure $run; done
sjepa probe --encoder "$out/soft-0/encoder-phase1" --data "$corpora" --out "$out/phase1-0/results/probe"
for floor in mfcc mfcc+context logmel "untrained:$out/soft-0"; do
  name=${floor%%:*}
  sjepa probe --encoder "$floor" --data "$corpora" --out "$out/$name/results/probe"
done
for run in soft-0 softened-0 hard-0 hubert-0; do tasks $run "$out/$run"; done
tasks logmel logmel
tasks untrained "untrained:$out/soft-0"

python benchmarks/study.py collect "$out"
python benchmarks/study.py tables
