#!/bin/sh
# Continue pre-training on your own domain: start from a finished encoder and go through both phases on other audio.
#
#     sh examples/continue_pretraining.sh ENCODER AUDIO OUT [PRESET] [more options of `sjepa pretrain`]
#
# ENCODER is a run, a Hugging Face HuBERT folder, or a file of weights of fairseq or torchaudio; its size must be the
# preset's (`--encoder.layers 12` for a released HuBERT Base). The learning rate is half the paper's first one.
set -eu
if [ $# -lt 3 ]; then
    echo 'usage: sh continue_pretraining.sh ENCODER AUDIO OUT [PRESET] [more options of `sjepa pretrain`]' >&2
    exit 2
fi
encoder=$1 audio=$2 out=$3 preset=${4:-half-hour}
shift $(($# < 4 ? $# : 4))

sjepa pretrain --preset "$preset" --data "$audio" --out "$out" --init-from "$encoder" --phase1.lr 5e-5 "$@"
