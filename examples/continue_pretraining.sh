#!/bin/sh
# Continue pre-training on your own domain: start from a finished encoder and go through both phases on other audio.
#
#     sh examples/continue_pretraining.sh ENCODER AUDIO OUT [PRESET] [more options of `sjepa pretrain`]
#
# ENCODER is a run, an exported or Hugging Face HuBERT folder, a file of weights of fairseq or torchaudio, or the name of
# an encoder that ships with sjepa. Its size must match the preset (`--encoder.layers 12` for a released HuBERT Base).
# Phase 1 predicts clusters of a frozen copy of ENCODER. A trained encoder needs fewer steps than a new one: with
# compact, `--phase1.steps 2000 --phase2.steps 10000` was enough for 7 hours of audio (docs/study-iban.md).
set -eu
if [ $# -lt 3 ]; then
    echo 'usage: sh continue_pretraining.sh ENCODER AUDIO OUT [PRESET] [more options of `sjepa pretrain`]' >&2
    exit 2
fi
if ! command -v sjepa > /dev/null; then
    echo 'continue_pretraining.sh needs the command sjepa: install it, or activate the environment that has it' >&2
    exit 2
fi
if [ ! -e "$2" ]; then
    echo "usage: sh continue_pretraining.sh ENCODER AUDIO OUT [PRESET]: there is no audio $2" >&2
    exit 2
fi
encoder=$1 audio=$2 out=$3 preset=${4:-half-hour}
shift $(($# < 4 ? $# : 4))

sjepa pretrain --preset "$preset" --data "$audio" --out "$out" --init-from "$encoder" \
    --phase1.targets encoder-gmm "$@"
