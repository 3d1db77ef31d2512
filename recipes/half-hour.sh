#!/usr/bin/env bash
# The half-hour study, from a bare machine with a GPU to its tables. Its runs are in half-hour.toml.
#
#   bash recipes/half-hour.sh CORPORA                                      # everything, one after the other
#   bash recipes/half-hour.sh CORPORA --only soft-0 soft.phase1-0 logmel   # parts; several calls can share a GPU
#   bash recipes/half-hour.sh CORPORA --list                               # all parts and their state
#   STUDY=/large/disk bash recipes/half-hour.sh CORPORA                    # somewhere else than in runs/study
#
# CORPORA holds LibriSpeech/dev-clean with phones-dev-clean.jsonl.gz beside LibriSpeech, and any of: extra/ (more
# LibriSpeech), speechocean762/, ravdess/, coffee/, noise/. The same call again continues what was stopped.
set -euo pipefail
refuse() {
  echo "$*" >&2
  exit 2
}
case ${1:-} in '' | -*) refuse "usage: bash recipes/half-hour.sh CORPORA [options of sjepa sweep]" ;; esac
CORPORA=$(realpath -m "$1") STUDY=$(realpath -m "${STUDY:-$(dirname "$0")/../runs/study}")
NOISE=$(find "$CORPORA" -maxdepth 1 -name noise 2> /dev/null || true)
export CORPORA STUDY NOISE
shift
cd "$(dirname "$0")/.."

compgen -G "$CORPORA/LibriSpeech/dev-clean/*/*/*.trans.txt" > /dev/null && compgen -G "$CORPORA/phones-*.jsonl*" > /dev/null ||
  refuse "$CORPORA must hold LibriSpeech/dev-clean, with its transcripts, and phones-dev-clean.jsonl.gz beside LibriSpeech"
sources=("$CORPORA/LibriSpeech/dev-clean")
for more in extra speechocean762; do if [ -d "$CORPORA/$more" ]; then sources+=("$CORPORA/$more"); fi; done
for more in extra speechocean762 ravdess coffee noise; do
  test -d "$CORPORA/$more" || echo "without $CORPORA/$more, which is not there"
done
if ! command -v sjepa > /dev/null; then
  make setup # nothing, where all of it is there
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
sjepa sweep recipes/half-hour.toml "$@"
if [ $# = 0 ]; then
  python benchmarks/study.py collect "$STUDY"
  python benchmarks/study.py tables
  python benchmarks/study_figures.py
fi
