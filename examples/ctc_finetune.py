"""Fine-tune an encoder for speech recognition with Hugging Face's Trainer.

    sjepa export RUN --to hf ENCODER
    python examples/ctc_finetune.py ENCODER CORPUS MODEL [STEPS] [RATE]

ENCODER is an exported folder, in fp32 or fp16, or `RUN/encoder`. The corpus has `labels.jsonl` with one JSON object per
line: `path` and `text`. The letters of a text are the targets of CTC; recordings without any are left out. Every tenth
of the others is held out; the script prints the loss, the character error rate and the word error rate on those.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from transformers import Wav2Vec2CTCTokenizer, Wav2Vec2FeatureExtractor, Wav2Vec2Processor

from sjepa.audio.io import BadAudioError, read_audio
from sjepa.counts import format_count
from sjepa.errors import UserError
from sjepa.evaluate.superb.metrics import edit_distance
from sjepa.evaluate.superb.records import read_json_lines, require_audio
from sjepa.fields import TEXT, require
from sjepa.progress import bar, track

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
for name in ("encoder", "corpus", "model"):
    parser.add_argument(name, type=Path)
parser.add_argument("steps", type=int, nargs="?", default=2000)
parser.add_argument("rate", type=float, nargs="?", default=1e-4)
given = parser.parse_args()
encoder, corpus, out, steps, rate = given.encoder, given.corpus, given.model, given.steps, given.rate
for needed in (encoder / "config.json", encoder / "preprocessor_config.json", corpus / "labels.jsonl"):
    if not needed.is_file():
        parser.error(f"there is no {needed}")
if steps < 1:
    parser.error("STEPS should be 1 or more")
labels = corpus / "labels.jsonl"


def read_row(row: dict[str, Any], where: str) -> tuple[Path, str]:
    text = "".join(c for c in require(row, "text", TEXT, where).lower() if c.isalpha() or c in " '")
    return corpus / require(row, "path", TEXT, where), text


try:
    rows = [read_row(row, f"{labels} line {number}") for number, row in read_json_lines(labels)]
    spoken = [(path, text) for path, text in rows if text.strip(" '")]
    if len(spoken) < len(rows):
        print(f"{labels}: {len(rows) - len(spoken):,} of {len(rows):,} recordings have no letters and are left out")
    if len(spoken) < 10:
        found = format_count(len(spoken), "recording")
        parser.error(f"{labels} has {found} with text: at least 10 are needed, one of them held out")
    paths, texts = zip(*spoken, strict=True)
    require_audio(paths, str(labels))
    audio = [read_audio(path) for path in track(paths, "Reading audio")]
except (UserError, OSError, BadAudioError) as error:
    parser.error(str(error))

characters = sorted(set("".join(texts)) - {" "})
out.mkdir(parents=True, exist_ok=True)
vocabulary = {token: index for index, token in enumerate(["<pad>", "<unk>", "|", *characters])}  # <pad> is the blank
(out / "vocab.json").write_text(json.dumps(vocabulary, ensure_ascii=False), encoding="utf-8")
tokenizer = Wav2Vec2CTCTokenizer(
    str(out / "vocab.json"), pad_token="<pad>", unk_token="<unk>", word_delimiter_token="|"
)
processor = Wav2Vec2Processor(Wav2Vec2FeatureExtractor.from_pretrained(encoder), tokenizer)
examples = [
    {"input_values": samples, "labels": tokenizer(text).input_ids} for samples, text in zip(audio, texts, strict=True)
]
training, held_out = [e for i, e in enumerate(examples) if i % 10], examples[::10]


def collate(batch: list[dict]) -> dict:
    waveforms = [example["input_values"] for example in batch]
    inputs = processor.feature_extractor(waveforms, sampling_rate=16_000, padding=True, return_tensors="pt")
    labels = tokenizer.pad({"input_ids": [example["labels"] for example in batch]}, return_tensors="pt")
    inputs["labels"] = labels.input_ids.masked_fill(labels.attention_mask == 0, -100)
    return dict(inputs)


class Progress(transformers.TrainerCallback):
    """The steps in our progress bar."""

    def on_step_end(self, *_: Any, **__: Any) -> None:
        progress.advance()

    def on_log(self, *_: Any, logs: dict | None = None, **__: Any) -> None:
        if logs and "loss" in logs:
            progress.advance(0, note=f"loss {logs['loss']:.3f}")


@torch.no_grad()
def error_rates() -> tuple[float, float]:
    """Character and word error rate of greedy decoding on the held-out recordings, one by one."""
    edits, lengths = np.zeros(2), np.zeros(2)
    model.eval()
    for example, text in zip(track(held_out, "Decoding"), texts[::10], strict=True):
        inputs = processor(example["input_values"], sampling_rate=16_000, return_tensors="pt").to(model.device)
        found = processor.batch_decode(model(**inputs).logits.argmax(-1))[0]
        wanted = " ".join(text.split())
        edits += edit_distance(found, wanted), edit_distance(found.split(), wanted.split())
        lengths += len(wanted), len(wanted.split())
    characters, words = edits / np.maximum(lengths, 1)
    return float(characters), float(words)


print("transformers reports lm_head and masked_spec_embed as missing. This is expected: both are new and trained here")
model = transformers.HubertForCTC.from_pretrained(
    encoder,
    dtype=torch.float32,  # also from weights in fp16, which cannot be trained as they are
    vocab_size=len(vocabulary),
    pad_token_id=vocabulary["<pad>"],
    ctc_loss_reduction="mean",
    ctc_zero_infinity=True,
    mask_time_prob=0.05,
)
model.freeze_feature_encoder()
trainer = transformers.Trainer(
    model,
    transformers.TrainingArguments(
        output_dir=str(out / "trainer"),
        max_steps=steps,
        per_device_train_batch_size=8,
        learning_rate=rate,
        warmup_steps=steps // 10,
        logging_steps=max(1, steps // 10),
        save_strategy="no",
        remove_unused_columns=False,
        report_to="none",
        disable_tqdm=True,
    ),
    data_collator=collate,
    train_dataset=training,
    eval_dataset=held_out,
    callbacks=[Progress()],
)
trainer.remove_callback(transformers.PrinterCallback)
before = trainer.evaluate()["eval_loss"]
with bar("Training", steps) as progress:
    trainer.train()
after = trainer.evaluate()["eval_loss"]
trainer.save_model(str(out))
processor.save_pretrained(out)
cer, wer = error_rates()
print(f"CTC loss on held-out recordings: {before:.2f} before, {after:.2f} after {steps} steps; the model is in {out}")
print(f"Greedy decoding of {format_count(len(held_out), 'held-out recording')}: CER {cer:.1%}, WER {wer:.1%}")
