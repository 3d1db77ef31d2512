#!/usr/bin/env bash
# Few transcripts in another language: pre-train on untranscribed Iban, then train a recogniser.
#
#   bash recipes/iban.sh IBAN ENGLISH                     # from a bare machine with a GPU to the table
#   STUDY=/large/disk bash recipes/iban.sh IBAN ENGLISH   # another folder than runs/iban
#   WHISPER=FOLDER bash recipes/iban.sh IBAN ENGLISH      # also the encoder of Whisper tiny.en, as a reference
#
# IBAN holds the Kaldi folders train and test of the Iban corpus. ENGLISH holds the audio of the English encoder, or is a
# run that is complete already. Encoders are trained on the train speakers only. Run the same command again to continue.
set -euo pipefail
refuse() {
  echo "$*" >&2
  exit 2
}
[ $# = 2 ] || refuse "usage: bash recipes/iban.sh IBAN ENGLISH"
for needed in "$1/train" "$1/test" "$2" ${WHISPER:+"$WHISPER"}; do [ -d "$needed" ] || refuse "there is no folder $needed"; done
IBAN=$(realpath "$1") ENGLISH=$(realpath "$2") STUDY=$(realpath -m "${STUDY:-$(dirname "$0")/../runs/iban}")
WHISPER=${WHISPER:+$(realpath "$WHISPER")}
cd "$(dirname "$0")/.."
if ! command -v sjepa > /dev/null; then
  make setup
  PATH=$PWD/.venv/bin:$PATH
fi
for needed in pyarrow ${WHISPER:+transformers}; do
  python -c "import $needed" 2> /dev/null || refuse "$needed is missing: pip install -e '.[dev]' has all that this needs"
done
mkdir -p "$STUDY"

shards() { # decode once: NAME SOURCE...
  [ -f "$STUDY/$1/index.json" ] && return
  sjepa index "${@:2}" --out "$STUDY/$1-index"
  sjepa shard "$STUDY/$1-index" --encoding int16 --out "$STUDY/$1"
}
train() { # NAME PRESET OPTIONS...
  sjepa pretrain --preset "$2" --out "$STUDY/$1" "${@:3}"
}

shards iban-train "$IBAN/train"
train iban half-hour --data "$STUDY/iban-train"
english=$ENGLISH
if [ ! -f "$ENGLISH/run.json" ]; then
  english=$STUDY/english
  shards english-audio "$ENGLISH"
  train english half-hour --data "$STUDY/english-audio"
  train both half-hour --data "$STUDY/english-audio,$STUDY/iban-train"
fi
# An encoder that is trained already needs fewer steps. Phase 1 predicts its own clusters; with -mfcc those of MFCC.
continued=(--data "$STUDY/iban-train" --phase1.steps 2000 --phase2.steps 10000)
train continued half-hour "${continued[@]}" --init-from "$english" --phase1.targets encoder-gmm
if [ -d "$STUDY/both" ]; then
  train both-continued half-hour "${continued[@]}" --init-from "$STUDY/both" --phase1.targets encoder-gmm
fi
# The same at the size of english-compact, which ships with the package
train iban-compact compact --data "$STUDY/iban-train"
train compact-continued compact "${continued[@]}" --init-from english-compact --phase1.targets encoder-gmm
train compact-continued-mfcc compact "${continued[@]}" --init-from english-compact

recognise() { # NAME ENCODER TRANSCRIPTS STEPS OPTIONS...: fewer transcripts need fewer steps
  sjepa superb asr --lite --steps "$4" --encoder "$2" --data "$IBAN" "${@:5}" --out "$STUDY/results/$1-$3"
}
measure() { # NAME ENCODER
  recognise "$1" "$2" all 3000
  recognise "$1" "$2" 60 2000 --minutes 60
  recognise "$1" "$2" 10 1000 --minutes 10
}
measure logmel logmel
measure english "$english"
measure iban "$STUDY/iban"
measure continued "$STUDY/continued"
measure english-compact english-compact
for name in iban-compact compact-continued compact-continued-mfcc; do measure $name "$STUDY/$name"; done
if [ -d "$STUDY/both" ]; then
  measure both "$STUDY/both"
  measure both-continued "$STUDY/both-continued"
fi
if [ -n "$WHISPER" ]; then measure whisper-tiny "$WHISPER"; fi # its encoder's folder, as a reference
python benchmarks/iban.py "$STUDY"
