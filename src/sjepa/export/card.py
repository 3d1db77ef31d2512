"""The model card, written from what a run's directory says."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from sjepa.config import Config
from sjepa.evaluate.tabular import escape_markdown
from sjepa.model.encoder import Encoder
from sjepa.phases import PhaseConfig
from sjepa.runs.events import select_events
from sjepa.runs.folder import RunFolder

Format = Literal["hf", "onnx", "torch"]
UNKNOWN = "unknown"
CITATION = """@article{ioannides-sjepa,
  title  = {{S-JEPA}: Soft Clustering Anchors for Self-Supervised Speech Representation Learning},
  author = {Ioannides, Georgios and Kieback, Adrian and Goldfeder, Judah and Pang, Linsey and Chadha, Aman and
            Elkins, Aaron and LeCun, Yann and Shwartz-Ziv, Ravid}
}"""
USES = {
    "hf": """```python
from transformers import AutoFeatureExtractor, AutoModel

model = AutoModel.from_pretrained("FOLDER")                    # a HubertModel
extractor = AutoFeatureExtractor.from_pretrained("FOLDER")
inputs = extractor(waveform, sampling_rate=16_000, return_tensors="pt")
states = model(**inputs, output_hidden_states=True).hidden_states
```

`sjepa.Encoder.from_pretrained("FOLDER")` loads the same folder. Utterances that are padded in a batch come out a little
different through transformers, whose group norm runs over padding; ours does not.""",
    "onnx": """```python
import onnxruntime

session = onnxruntime.InferenceSession("FOLDER/encoder.onnx")
states = session.run(None, {"waveforms": waveforms})           # float32 (batch, samples)
```

Outputs are `hidden_state_0`, `hidden_state_1` and so on; batch and length are free from 720 samples on. Utterances of
one batch have one length: there is no mask for padding.""",
    "torch": """```python
import torch

encoder = torch.export.load("FOLDER/encoder.pt2").module()
states = encoder(waveforms)                                    # float32 (batch, samples)
```

It gives a tuple of hidden states; batch and length are free from 720 samples on. Utterances of one batch have one
length: there is no mask for padding.""",
}


@dataclass(frozen=True)
class RunFacts:
    """What a run's directory says of itself."""

    config: Config
    run: dict[str, Any]
    """run.json: data, versions, command."""
    data: dict[str, Any]
    """Hours and utterances, from the log."""
    step: int
    """Of the newest checkpoint, with which the encoder was written; of the last line where no checkpoint was kept."""
    components: dict[int, int]
    """Components of each phase's targets."""


def read_facts(run: Path) -> RunFacts:
    """Facts of a run; says what is missing and what makes it."""
    folder = RunFolder(run)
    folder.require(folder.facts_file, folder.log, folder.encoder / "model.safetensors")
    events = folder.events()
    data: dict[str, Any] = next(iter(select_events(events, "data")), {})
    components = {event["phase"]: event["k"] for event in select_events(events, "phase")}
    return RunFacts(folder.config(), folder.facts, data, folder.step, components)


def model_card(
    name: str, facts: RunFacts, encoder: Encoder, *, to: Format, licence: str, results: str, check: str
) -> str:
    """Markdown with the front matter that model hubs read."""
    size, batches = encoder.config, facts.config.batches
    parameters = sum(p.numel() for p in encoder.parameters())
    hours = facts.data.get("hours")
    amount = (
        f"{facts.data['utterances']:,} utterances, {hours:,.1f} hours" if hours is not None else "length not logged"
    )
    said = {key: cell(facts.run.get(key, UNKNOWN)) for key in ("data", "corpus", "sjepa", "torch", "started")}
    processes = cell(facts.run.get("world_size", facts.run.get("ranks", UNKNOWN)))  # ranks: in an older run.json
    phases = "\n".join(
        f"| phase {n} | {phase(settings, facts.components.get(n))} |"
        for n, settings in enumerate(facts.config.phases, 1)
    )
    licensed = f"These weights: {cell(licence)}."
    if licence == UNKNOWN:
        licensed = "None is stated for these weights yet: that depends on the audio they were trained on."
    return f"""---
license: {json.dumps(licence)}
library_name: {"transformers" if to == "hf" else "onnx" if to == "onnx" else "pytorch"}
pipeline_tag: feature-extraction
tags: [speech, audio, self-supervised, s-jepa, hubert]
---

# {cell(name)}

A speech encoder pre-trained with S-JEPA: HuBERT's architecture, {size.layers} transformer layers of width
{size.hidden_size}, {parameters:,} parameters. It takes 16 kHz mono waveforms as they are (no normalisation) and gives
{size.layers + 1} hidden states, a frame every 320 samples (20 ms); frame t is centred on sample 320 t + 200.

## Use it

{USES[to].replace("FOLDER", quotable(name))} {check}

## Training

| | |
| --- | --- |
| data | {said["data"]} ({amount}; fingerprint {said["corpus"]}) |
| start | {f"the encoder {cell(facts.config.init_from)}" if facts.config.init_from else "random weights"} |
| steps | {facts.step:,} of {facts.config.steps:,} |
{phases}
| batches | {batches.seconds:,.0f} s of audio, utterances of at most {batches.max_seconds:g} s |
| seed | {facts.config.seed} |
| made with | sjepa {said["sjepa"]}, torch {said["torch"]}, processes: {processes}, started {said["started"]} |

## Results

{results}

## Licence

{licensed}

## How to cite

The method:

```bibtex
{CITATION}
```

The encoder was trained with sjepa {said["sjepa"]}, an independent implementation.
"""


def phase(settings: PhaseConfig, components: int | None) -> str:
    size = f"K = {components}" if components is not None else "not reached yet"
    targets = "those of the phase before" if settings.targets == "same" else f"{settings.targets}, {size}"
    return f"{settings.steps:,} steps at rate {settings.lr:g}; targets: {targets}"


def cell(text: Any) -> str:
    """A string that may stand in a table."""
    return escape_markdown(str(text))


def quotable(name: str) -> str:
    """A name as it can stand between quotation marks in Python, within a block of code."""
    return json.dumps(name, ensure_ascii=False)[1:-1].replace("`", "'")
