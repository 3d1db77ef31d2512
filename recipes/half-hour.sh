#!/usr/bin/env bash
# The half-hour study, from a bare machine with a GPU to its tables.
#
#   bash recipes/half-hour.sh CORPORA                        # everything, one after the other
#   bash recipes/half-hour.sh CORPORA soft-0 soft-0/heads    # parts of it; several such calls can share a GPU
#   STUDY=/large/disk bash recipes/half-hour.sh CORPORA      # somewhere else than in runs/study
#
# CORPORA holds LibriSpeech/dev-clean with phones-dev-clean.jsonl.gz beside LibriSpeech, and any of: extra/ (more
# LibriSpeech), speechocean762/, ravdess/, coffee/, noise/. A part is a recipe and a seed (soft-0), the end of its first
# phase (soft.phase1-0), or features without training (logmel); with /heads behind it, the tasks on it. What a part
# stands on is made with it. The same call again continues what was stopped.
set -euo pipefail
refuse() {
  echo "$*" >&2
  exit 2
}
case ${1:-} in '' | -*) refuse "usage: bash recipes/half-hour.sh CORPORA [PART...]; its first lines explain both" ;; esac
corpora=$(realpath -m "$1")
out=$(realpath -m "${STUDY:-$(dirname "$0")/../runs/study}")
shift
cd "$(dirname "$0")/.."

shards() { # all audio that is heard in pre-training, decoded once
  local sources=("$corpora/LibriSpeech/dev-clean") more
  for more in extra speechocean762; do if [ -d "$corpora/$more" ]; then sources+=("$corpora/$more"); fi; done
  sjepa index "${sources[@]}" --out "$out/corpus"
  sjepa shard "$out/corpus" --encoding int16 --out "$out/shards"
}

train() { # NAME-SEED options: one run of both phases; a call that needs it too waits
  local options=(--preset half-hour --data "$out/shards" --out "$out/$1" --seed "${1##*-}")
  flock "$out/.$1.lock" sjepa pretrain "${options[@]}" "${@:2}"
}

compared() { # the same, at the length of the comparison, with the layer by rank
  train "$1" --phase1.steps 6000 --phase1.warmup 0.1 --phase2.steps 6000 --layer.choice None "${@:2}"
}

branch() { # NAME-SEED options: another second phase after the first of soft-SEED
  local soft=soft-${1##*-}
  test -d "$out/$soft/encoder-phase1" || compared "$soft"
  flock "$out/.$1.lock" sjepa pretrain --branch-from "$out/$soft" --out "$out/$1" "${@:2}"
}

recipe() { # NAME-SEED
  case ${1%-*} in
    headline) train "$1" ;;
    soft) compared "$1" ;;
    hard) compared "$1" --phase1.hard --phase2.hard ;;
    hard-fixed-layer) compared "$1" --phase1.hard --phase2.hard --layer.choice 4 ;;
    hubert) compared "$1" --phase1.targets mfcc-kmeans --phase2.targets encoder-kmeans --layer.choice 4 ;;
    best-rq) compared "$1" --phase1.targets best-rq --phase1.no-centred --phase2.targets same ;;
    masked-only) compared "$1" --phase1.visible-loss-until 0.0 ;;
    softened) branch "$1" --phase2.temperature 16 ;;
    frozen) branch "$1" --phase2.targets same ;;
    fixed-layer) branch "$1" --layer.choice 4 ;;
    last-layer) branch "$1" --layer.choice 5 ;;
    fixed-decay) branch "$1" --ema.slow 0.9999 ;;
    long) branch "$1" --layer.choice 4 --phase2.steps 24000 ;;
    frozen-long) branch "$1" --phase2.targets same --phase2.steps 24000 ;;
    regularised) # long with the paper's dropout, LayerDrop and augmentation
      compared "$1" --layer.choice 4 --phase2.steps 24000 --encoder.layerdrop 0.05 --predictor.dropout 0.1 \
        --encoder.{dropout,attention-dropout,activation-dropout}=0.1 --phase1.augment-until 1.0 \
        --phase2.augment-until 0.5 --augment.noise "$(find "$corpora" -maxdepth 1 -name noise)"
      ;;
    papers-decays) branch "$1" --ema.fast 0.999 --ema.slow 0.9999 --gmm.decay 0.999 ;;
  esac
}

probed() { # NAME ENCODER
  test -f "$out/$1/results/probe/results.json" ||
    sjepa probe --encoder "$2" --data "$corpora" --frames 0 --out "$out/$1/results/probe"
}

examined() { # NAME-SEED: units and entropies of a run
  test -f "$out/$1/results/units/results.json" ||
    sjepa units --encoder "$out/$1" --data "$corpora" --out "$out/$1/results/units"
  test -f "$out/$1/analysis/entropy.json" ||
    sjepa analyze entropy "$out/$1" --data "$corpora/LibriSpeech/dev-clean"
}

heads() { # NAME ENCODER: tasks on a frozen encoder
  local task data
  for task in asr pr ravdess coffee; do
    data=$corpora
    case $task in ravdess | coffee) data=$corpora/$task ;; esac
    if [ -d "$data" ]; then sjepa superb $task --lite --encoder "$2" --data "$data" --out "$out/$1/results/$task"; fi
  done
}

part() {
  local name=${1%/heads} encoder
  case $name in
    *.phase1-?) recipe "${name/.phase1/}"; encoder=$out/${name/.phase1/}/encoder-phase1 ;;
    *-?) recipe "$name"; encoder=$out/$name ;;
    untrained) recipe soft-0; encoder=untrained:$out/soft-0 ;;
    *) encoder=$name ;;
  esac
  if [ "$1" != "$name" ]; then
    heads "$name" "$encoder"
    return
  fi
  probed "$name" "$encoder"
  if [ "$encoder" = "$out/$name" ]; then examined "$name"; fi
}

recipes=(
  soft softened hard hubert frozen best-rq fixed-layer hard-fixed-layer last-layer fixed-decay papers-decays
  masked-only long frozen-long regularised headline
)
everything=(
  {soft,hard,hubert}{,.phase1}-{0,1,2,3} softened-{0,1,2} {frozen,fixed-layer}-{0,3}
  {best-rq,last-layer,papers-decays}-0 {hard-fixed-layer,fixed-decay,masked-only}-3
  {long,frozen-long,regularised}-2 headline{,.phase1}-0
  mfcc mfcc+context logmel untrained
  {fixed-layer-3,hard-fixed-layer-3,hubert-3,headline-0,headline.phase1-0,logmel,untrained}/heads
)
trained="($(IFS='|' && echo "${recipes[*]}"))(\.phase1)?-[0-9]"
for each in "$@"; do
  [[ $each =~ ^($trained|mfcc|mfcc\+context|logmel|untrained)(/heads)?$ ]] ||
    refuse "$each is no part: one of ${recipes[*]} with a seed, as in soft-0 or soft.phase1-0, or mfcc," \
      "mfcc+context, logmel, untrained; /heads behind it for the tasks"
done
compgen -G "$corpora/LibriSpeech/dev-clean/*/*/*.trans.txt" > /dev/null &&
  compgen -G "$corpora/phones-*.jsonl*" > /dev/null ||
  refuse "$corpora must hold LibriSpeech/dev-clean, with its transcripts, and phones-dev-clean.jsonl.gz beside LibriSpeech"
for more in extra speechocean762 ravdess coffee noise; do
  test -d "$corpora/$more" || echo "without $corpora/$more, which is not there"
done
if ! command -v sjepa > /dev/null; then
  make setup # nothing, where all of it is there
  PATH=$PWD/.venv/bin:$PATH
fi
for needed in pyarrow sklearn transformers matplotlib; do
  python -c "import $needed" 2> /dev/null || refuse "$needed is missing: pip install -e '.[dev]' has all that this needs"
done
mkdir -p "$out"
exec 9> "$out/.shards.lock"
flock 9
test -f "$out/shards/index.json" || shards
exec 9>&-
for each in "${@:-${everything[@]}}"; do part "$each"; done
if [ $# = 0 ]; then
  python benchmarks/study.py collect "$out"
  python benchmarks/study.py tables
  python benchmarks/study_figures.py
fi
