"""Fine-tune an exported encoder for speech recognition with Hugging Face's Trainer.

    sjepa export RUN --to hf ENCODER
    python examples/ctc_finetune.py ENCODER CORPUS MODEL [STEPS] [RATE]

The corpus has `labels.jsonl` with `path` and `text` a line. Characters are the targets of CTC.
"""

import argparse
import json
from pathlib import Path

import transformers
from transformers import Wav2Vec2CTCTokenizer, Wav2Vec2FeatureExtractor, Wav2Vec2Processor

from sjepa.audio.io import read_audio

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
for name in ("encoder", "corpus", "model"):
    parser.add_argument(name, type=Path)
parser.add_argument("steps", type=int, nargs="?", default=2000)
parser.add_argument("rate", type=float, nargs="?", default=1e-4)
given = parser.parse_args()
encoder, corpus, out, steps, rate = given.encoder, given.corpus, given.model, given.steps, given.rate
for needed in (encoder / "config.json", corpus / "labels.jsonl"):
    if not needed.is_file():
        parser.error(f"there is no {needed}")

rows = [json.loads(line) for line in (corpus / "labels.jsonl").read_text(encoding="utf-8").splitlines()]
texts = ["".join(c for c in row["text"].lower() if c.isalpha() or c in " '") for row in rows]
characters = sorted(set("".join(texts)) - {" "})
out.mkdir(parents=True, exist_ok=True)
vocabulary = {token: index for index, token in enumerate(["<pad>", "<unk>", "|", *characters])}  # <pad> is the blank
(out / "vocab.json").write_text(json.dumps(vocabulary, ensure_ascii=False), encoding="utf-8")
tokenizer = Wav2Vec2CTCTokenizer(
    str(out / "vocab.json"), pad_token="<pad>", unk_token="<unk>", word_delimiter_token="|"
)
processor = Wav2Vec2Processor(Wav2Vec2FeatureExtractor.from_pretrained(encoder), tokenizer)

examples = [
    {"input_values": read_audio(corpus / row["path"]), "labels": tokenizer(text).input_ids}
    for row, text in zip(rows, texts, strict=True)
]
training, held_out = [e for i, e in enumerate(examples) if i % 10], examples[::10]


def collate(batch: list[dict]) -> dict:
    waveforms = [example["input_values"] for example in batch]
    inputs = processor.feature_extractor(waveforms, sampling_rate=16_000, padding=True, return_tensors="pt")
    labels = tokenizer.pad({"input_ids": [example["labels"] for example in batch]}, return_tensors="pt")
    inputs["labels"] = labels.input_ids.masked_fill(labels.attention_mask == 0, -100)
    return dict(inputs)


model = transformers.HubertForCTC.from_pretrained(
    encoder,
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
)
before = trainer.evaluate()["eval_loss"]
trainer.train()
after = trainer.evaluate()["eval_loss"]
trainer.save_model(str(out))
processor.save_pretrained(out)
print(f"CTC loss on held-out recordings: {before:.2f} before, {after:.2f} after {steps} steps; the model is in {out}")
