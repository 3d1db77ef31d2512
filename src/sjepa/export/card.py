"""Write the model card from the facts about an encoder's training."""

import json
from typing import Any, Literal

from sjepa.evaluate.tabular import escape_markdown
from sjepa.export.facts import TrainingFacts
from sjepa.model.card_facts import UNKNOWN, CardFacts
from sjepa.phases import PhaseConfig
from sjepa.runs.encoder import Encoder

Format = Literal["hf", "release", "onnx", "torch"]
FOLDERS = ("hf", "release")
"""Formats that `Encoder.from_pretrained` loads."""
LIBRARIES = {"hf": "transformers", "release": "transformers", "onnx": "onnx", "torch": "pytorch"}
NO_RESULTS = "None were available when this card was written."
CITATION = """@article{ioannides-sjepa,
  title  = {{S-JEPA}: Soft Clustering Anchors for Self-Supervised Speech Representation Learning},
  author = {Ioannides, Georgios and Kieback, Adrian and Goldfeder, Judah and Pang, Linsey and Chadha, Aman and
            Elkins, Aaron and LeCun, Yann and Shwartz-Ziv, Ravid}
}"""
USES = {
    "hf": """```python
from transformers import AutoFeatureExtractor, AutoModel

model = AutoModel.from_pretrained("FOLDER", dtype="float32")   # the path of this folder; a HubertModel
extractor = AutoFeatureExtractor.from_pretrained("FOLDER")
inputs = extractor(waveform, sampling_rate=16_000, return_tensors="pt")
states = model(**inputs, output_hidden_states=True).hidden_states
```

`sjepa.Encoder.from_pretrained("FOLDER")` loads the same folder. For padded utterances in a batch, transformers gives
slightly different features: its group norm includes the padding, ours does not.""",
    "onnx": """```python
import onnxruntime

session = onnxruntime.InferenceSession("FOLDER/encoder.onnx")
states = session.run(None, {"waveforms": waveforms})           # float32 (batch, samples)
```

The outputs are `hidden_state_0`, `hidden_state_1` and so on. Batch size and length can vary; the shortest length is
720 samples. All utterances of a batch must have the same length, because there is no mask for padding.""",
    "torch": """```python
import torch

encoder = torch.export.load("FOLDER/encoder.pt2").module()
states = encoder(waveforms)                                    # float32 (batch, samples)
```

It returns a tuple of hidden states. Batch size and length can vary; the shortest length is 720 samples. All utterances
of a batch must have the same length, because there is no mask for padding.""",
}
USES["release"] = USES["hf"]


def model_card(
    name: str,
    facts: TrainingFacts | None,
    encoder: Encoder,
    *,
    to: Format,
    card: CardFacts,
    notes: str,
) -> str:
    """Return a model card in Markdown, with the front matter that model hubs read.

    `notes` are remarks on the exported weights.
    """
    size = encoder.config
    parameters = sum(p.numel() for p in encoder.parameters())
    normalizes = encoder.feature_extractor.normalizes_waveforms
    scaled = "with zero mean and unit variance" if normalizes else "without normalisation"
    trained_with = "" if facts is None else f"sjepa {table_cell(facts.run.get('sjepa', UNKNOWN))}, "
    return f"""---
license: {json.dumps(card.licence)}
library_name: {LIBRARIES[to]}
pipeline_tag: feature-extraction
tags: [speech, audio, self-supervised, s-jepa, hubert]
---

# {table_cell(name)}

A speech encoder pre-trained with S-JEPA: HuBERT's architecture, {size.layers} transformer layers of width
{size.hidden_size}, {parameters:,} parameters. It takes 16 kHz mono waveforms {scaled}, and returns
{size.layers + 1} hidden states with one frame per 320 samples (20 ms). Frame t is centred on sample
320 t + 200.{prepend_blank_line(card.about)}

## Use it

{USES[to].replace("FOLDER", escape_name(name))}{prepend_blank_line(notes)}
{describe_clusters(encoder) if to in FOLDERS else ""}
## Training

{training_table(facts)}

## Results

{card.results or NO_RESULTS}

## Licence

{describe_licence(facts, card)}

## How to cite

The method:

```bibtex
{CITATION}
```

The encoder was trained with {trained_with}an independent implementation.
"""


def prepend_blank_line(paragraph: str) -> str:
    """Return a paragraph after an empty line, or an empty string."""
    return f"\n\n{paragraph.strip()}" if paragraph.strip() else ""


def describe_licence(facts: TrainingFacts | None, card: CardFacts) -> str:
    """State the licence of the weights, and that of the encoder that training started from."""
    if card.known_licence:
        licensed = f"These weights: {table_cell(card.known_licence)}."
    else:
        licensed = "No licence is stated for these weights yet. It depends on the audio they were trained on."
    if facts is not None and facts.initial_licence:
        licensed += f"\nThe encoder that training started from: {table_cell(facts.initial_licence)}."
    return licensed


def describe_clusters(encoder: Encoder) -> str:
    """Describe the mixture and the cluster head of an encoder. Return an empty string if it has none."""
    if not encoder.held_clusters:
        return ""
    clusters = encoder.clusters
    info = clusters.info
    reads = f"layer {info.layer}" if info.layer is not None else "the audio itself"
    projected = f", projected to {clusters.projection.size} dimensions" if clusters.projection.size else ""
    centred = ", each utterance's mean subtracted" if info.centred else ""
    mixture = (
        f"the {info.targets} targets of phase {info.phase}, K = {clusters.components}, on {reads}{projected}{centred}"
    )
    return f"""
## Clusters

`clusters.safetensors` holds {mixture},
and the cluster head on the last layer. With `encoder` loaded by `sjepa.Encoder.from_pretrained`:

```python
q = encoder.posteriors(waveforms)                              # of the mixture, (batch, frames, {clusters.components})
p = encoder.head_posteriors(waveforms)                         # of the cluster head
units = encoder.units(waveforms)                               # the most likely component of the head
```
"""


def training_table(facts: TrainingFacts | None) -> str:
    """Return the facts about the training as a table."""
    if facts is None:
        return "The folder of these weights has no record of their training."
    batches = facts.config.batches
    known = {key: table_cell(facts.run.get(key, UNKNOWN)) for key in ("sjepa", "torch", "started", "world_size")}
    phases = "\n".join(
        f"| phase {n} | {describe_phase(settings, facts.components.get(n))} |"
        for n, settings in enumerate(facts.config.phases, 1)
    )
    trained_with = "sjepa {sjepa}, torch {torch}, processes: {world_size}, started {started}".format_map(known)
    return f"""| | |
| --- | --- |
| data | {describe_audio(facts)} |
| initial weights | {f"the encoder {table_cell(facts.config.init_from)}" if facts.config.init_from else "random"} |
| steps | {facts.step:,} of {facts.config.steps:,} |
{phases}
| batches | {batches.seconds:,.0f} s of audio, utterances of at most {batches.max_seconds:g} s |
| seed | {facts.config.seed} |
| trained with | {trained_with} |"""


def describe_audio(facts: TrainingFacts) -> str:
    """Describe the audio of the training, with the steps that used it if the run changed its audio."""
    parts = []
    for section, event in facts.audio:
        hours = event.get("hours")
        amount = f"{event['utterances']:,} utterances, {hours:,.1f} hours" if hours is not None else "length not logged"
        since = f"from step {section.since:,} on " if section.since else ""
        fingerprint = table_cell(section.corpus or UNKNOWN)
        parts.append(f"{since}{table_cell(section.data or UNKNOWN)} ({amount}; fingerprint {fingerprint})")
    return ", ".join(parts)


def describe_phase(settings: PhaseConfig, components: int | None) -> str:
    size = f"K = {components}" if components is not None else "not reached yet"
    targets = "those of the previous phase" if settings.targets == "same" else f"{settings.targets}, {size}"
    return f"{settings.steps:,} steps, learning rate {settings.lr:g}; targets: {targets}"


def table_cell(text: Any) -> str:
    """Escape text for a cell of a Markdown table."""
    return escape_markdown(str(text))


def escape_name(name: str) -> str:
    """Escape a name for a Python string in a block of code."""
    return json.dumps(name, ensure_ascii=False)[1:-1].replace("`", "'")
