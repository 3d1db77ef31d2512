#!/usr/bin/env bash
# A study, from a bare machine with a GPU to its tables. recipes/$RECIPE.toml describes its runs (study.toml by default).
#
#   bash recipes/study.sh CORPORA                                      # everything, one after the other
#   bash recipes/study.sh CORPORA --only headline-0 logmel             # some runs; several calls can share a GPU
#   bash recipes/study.sh CORPORA --list                               # all runs and their state
#   STUDY=/large/disk bash recipes/study.sh CORPORA                    # another folder than runs/study
#   RECIPE=study-ablations bash recipes/study.sh CORPORA               # short runs, in runs/study-ablations
#   RECIPE=study-adamw bash recipes/study.sh CORPORA                   # the first study, in runs/study-adamw
#
# CORPORA holds LibriSpeech/dev-clean with phones-dev-clean.jsonl.gz next to LibriSpeech, and any of: extra/ (the
# utterances of LibriSpeech train-clean-100 and test-other in recipes/study-extra.txt), speechocean762/, noise/,
# whisper-tiny.en-encoder/; for the first study also ravdess/ and coffee/. Other audio works too, but its results cannot
# be stored next to those of this repository. Run the same command again to continue.
set -euo pipefail
refuse() {
  echo "$*" >&2
  exit 2
}
case ${1:-} in '' | -*) refuse "usage: bash recipes/study.sh CORPORA [options of sjepa sweep]" ;; esac
RECIPE=${RECIPE:-study}
CORPORA=$(realpath -m "$1") STUDY=$(realpath -m "${STUDY:-$(dirname "$0")/../runs/$RECIPE}")
NOISE=$(find "$CORPORA" -maxdepth 1 -name noise 2> /dev/null || true)
export CORPORA STUDY NOISE
shift
cd "$(dirname "$0")/.."

compgen -G "$CORPORA/LibriSpeech/dev-clean/*/*/*.trans.txt" > /dev/null && compgen -G "$CORPORA/phones-*.jsonl*" > /dev/null ||
  refuse "$CORPORA must hold LibriSpeech/dev-clean, with its transcripts, and phones-dev-clean.jsonl.gz next to LibriSpeech"
sources=("$CORPORA/LibriSpeech/dev-clean")
for more in extra speechocean762; do if [ -d "$CORPORA/$more" ]; then sources+=("$CORPORA/$more"); fi; done
for more in extra speechocean762 noise; do
  test -d "$CORPORA/$more" || echo "$CORPORA/$more does not exist; the study continues without it"
done
if ! command -v sjepa > /dev/null; then
  make setup # does nothing if everything is installed
  PATH=$PWD/.venv/bin:$PATH
fi
for needed in pyarrow sklearn transformers matplotlib; do
  python -c "import $needed" 2> /dev/null || refuse "$needed is missing: pip install -e '.[dev]' has all that this needs"
done

mkdir -p "$STUDY"
exec 9> "$STUDY/.shards.lock"
flock 9 # a second call waits until the shards are there
if [ ! -f "$STUDY/shards/index.json" ]; then # all audio of pre-training, decoded once
  sjepa index "${sources[@]}" --out "$STUDY/corpus"
  sjepa shard "$STUDY/corpus" --encoding int16 --out "$STUDY/shards"
fi
exec 9>&-
for source in "${sources[@]:1}"; do # all audio but dev-clean, for codebooks
  mkdir -p "$STUDY/other"
  ln -sfn "$source" "$STUDY/other/"
done
sjepa sweep "recipes/$RECIPE.toml" "$@"
if [ $# = 0 ]; then
  whisper=$CORPORA/whisper-tiny.en-encoder # trained with transcripts: a reference
  probed=$STUDY/whisper-tiny/results/probe
  if [ "$RECIPE" = study ] && [ -d "$whisper" ] && [ ! -f "$probed/results.json" ]; then
    sjepa probe --encoder "$whisper" --data "$CORPORA" --frames 0 --out "$probed"
  fi
  python benchmarks/study.py collect "$RECIPE" "$STUDY"
  python benchmarks/study.py tables
  python benchmarks/study_figures.py
fi
