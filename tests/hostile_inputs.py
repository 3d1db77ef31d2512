"""Sound inputs of many formats for attacks to damage, and the commands that read each."""

import gzip
import io
import json
import shutil
import tarfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch
from calls import sjepa

Lines = list[dict[str, Any]]

OUT = ("--out", "{scratch}/out")
COST = ("--seconds", "0.5", "--repeats", "1", *OUT)
PROBE = ("--data", "{scratch}/labelled", *OUT)
HEAD = (*PROBE[:2], "--encoder", "mfcc", "--lite", "--steps", "1")
INPUTS: dict[str, list[tuple[str, ...]]] = {
    "sweep.toml": [("sweep", "{scratch}/sweep.toml", "--list"), ("sweep", "{scratch}/sweep.toml", "--array")],
    "rates.json": [
        ("plan", "--hours", "1", "--throughput", "{scratch}/rates.json"),
        ("plan", "--hours", "1", "--decode", "{scratch}/rates.json"),
    ],
    "run/cost.json": [("table", "{scratch}/run")],
    "features/_embed.json": [("embed", "{corpus}", "--encoder", "{run}", "--out", "{scratch}/features")],
    "run/results/probe/results.json": [("table", "{scratch}/run"), ("report", "{scratch}/run", *OUT)],
    "run/results/units/results.json": [("table", "{scratch}/run", "--format", "latex")],
    "head/results.json": [("superb", "asr", *HEAD, "--out", "{scratch}/head")],
    "lhotse/cuts.jsonl": [("index", "{scratch}/lhotse", *OUT), ("index", "{scratch}/lhotse/cuts.jsonl", *OUT)],
    "lhotse/corpus_recordings_all.jsonl": [("index", "{scratch}/lhotse/corpus_recordings_all.jsonl", *OUT)],
    "lhotse/corpus_supervisions_all.jsonl": [("index", "{scratch}/lhotse/corpus_recordings_all.jsonl", *OUT)],
    "lhotse/packed_cuts.jsonl.gz": [("index", "{scratch}/lhotse/packed_cuts.jsonl.gz", *OUT)],
    "kaldi/wav.scp": [("index", "{scratch}/kaldi", *OUT)],
    "kaldi/segments": [("index", "{scratch}/kaldi", *OUT)],
    "kaldi/text": [("index", "{scratch}/kaldi", *OUT)],
    "light/0.json": [("index", "{scratch}/light", *OUT)],
    "table/dataset_info.json": [("index", "{scratch}/table", *OUT)],
    "table/data-00000-of-00001.arrow": [("index", "{scratch}/table", *OUT)],
    "members.tar": [("index", "{scratch}/members.tar", *OUT)],
    "shards/index.json": [("shard", "{scratch}/shards", *OUT)],
    "whisper/config.json": [("cost", "--encoder", "{scratch}/whisper", *COST)],
    "hubert/config.json": [("cost", "--encoder", "{scratch}/hubert", *COST)],
    "hubert/preprocessor_config.json": [("cost", "--encoder", "{scratch}/hubert", *COST)],
    "exported/card.json": [("export", "{scratch}/exported", "{scratch}/out", "--to", "hf")],
    "exported/training.json": [("export", "{scratch}/exported", "{scratch}/out", "--to", "hf")],
    "grids/0.TextGrid": [
        (
            "units",
            "--encoder",
            "mfcc",
            *PROBE,
            "--alignments",
            "{scratch}/grids",
            "--units",
            "kmeans",
            "--clusters",
            "2",
        )
    ],
}

LABELLED = ("--encoder", "mfcc", "--data", "{scratch}/labelled", "--out", "{scratch}/out")
# All files that attacks damage: those of runs, encoders, indexes and results, and the inputs above.
FILES: dict[str, list[tuple[str, ...]]] = {
    "run/config.toml": [("report", "{scratch}/run", "--out", "{scratch}/out"), ("pretrain", "--out", "{scratch}/run")],
    "run/run.json": [
        ("report", "{scratch}/run", "--out", "{scratch}/out"),
        ("pretrain", "--out", "{scratch}/run"),
        ("runs", "{scratch}/run"),
        ("runs", "{scratch}", "--format", "json"),
    ],
    "run/metrics.jsonl": [
        ("report", "{scratch}/run", "--out", "{scratch}/out"),
        ("watch", "{scratch}/run", "--once"),
        ("runs", "{scratch}/run"),
        ("figures", "{scratch}/run", "--out", "{scratch}/out"),
        ("analyze", "erank", "{scratch}/run", "--out", "{scratch}/out"),
        ("analyze", "clusters", "{scratch}/run", "--out", "{scratch}/out"),
        ("export", "{scratch}/run", "{scratch}/out", "--to", "hf"),
    ],
    "run/checkpoints/step-00000004/state.json": [
        ("pretrain", "--out", "{scratch}/run"),
        ("embed", "{corpus}", "--encoder", "{scratch}/run", "--what", "units", "--out", "{scratch}/out"),
    ],
    "run/encoder/config.json": [
        ("embed", "{corpus}", "--encoder", "{scratch}/run", "--out", "{scratch}/out"),
        ("cost", "--encoder", "{scratch}/run", *COST),
        ("units", "--encoder", "untrained:{scratch}/run", *LABELLED[2:], "--units", "kmeans", "--clusters", "2"),
    ],
    "run/results/results.json": [
        ("table", "{scratch}/run"),
        ("table", "{scratch}/run", "--format", "latex"),
        ("table", "{scratch}/run", "--format", "csv"),
        ("report", "{scratch}/run", "--out", "{scratch}/out"),
        ("analyze", "pareto", "{scratch}/run", "--out", "{scratch}/out"),
    ],
    "run/analysis/entropy.json": [("report", "{scratch}/run", "--out", "{scratch}/out")],
    "run/analysis/pareto.json": [("report", "{scratch}/run", "--out", "{scratch}/out")],
    "run/analysis/erank.json": [
        ("report", "{scratch}/run", "--out", "{scratch}/out"),
        ("analyze", "erank", "{scratch}/run", "--redraw"),
    ],
    "run/analysis/utterance-0.json": [("report", "{scratch}/run", "--out", "{scratch}/out")],
    "labelled/labels.jsonl": [
        ("units", *LABELLED, "--units", "kmeans", "--clusters", "2"),
        ("probe", *LABELLED),
        ("superb", "asr", *LABELLED, "--lite", "--steps", "1"),
        ("analyze", "clusters", "{run}", "--data", "{scratch}/labelled", "--out", "{scratch}/out"),
    ],
    "index/index.json": [
        ("shard", "{scratch}/index", "--out", "{scratch}/out", "--workers", "1"),
        ("index", "{corpus}", "--out", "{scratch}/index"),
    ],
    "index/audio.arrow": [("shard", "{scratch}/index", "--out", "{scratch}/out", "--workers", "1")],
    "index/files.arrow": [("shard", "{scratch}/index", "--out", "{scratch}/out", "--workers", "1")],
    "micro.toml": [
        ("config", "--preset", "{scratch}/micro.toml"),
        ("plan", "--hours", "1", "--preset", "{scratch}/micro.toml"),
    ],
} | INPUTS

ENCODER = {"name": "mine", "parameters": 30256, "states": 3, "fingerprint": "0"}
PROBED: dict[str, Any] = {
    "task": "probe",
    "corpus": "dev-clean",
    "encoder": ENCODER,
    "layers": {"layer 1": {"speaker": {"mean": 50.0, "deviation": 1.0, "chance": 25.0, "splits": [49.0, 51.0]}}},
    "chance": {"speaker": 25.0},
    "data": {"utterances": 4, "phone_utterances": 3, "phone_frames": 226, "phones": 3},
}
UNITS: dict[str, Any] = {
    "task": "units",
    "corpus": "dev-clean",
    "encoder": ENCODER,
    "units": {"kind": "kmeans", "layer": "layer 1", "clusters": 2},
    "metrics": {"phone_purity": 0.5, "cluster_purity": 0.5, "pnmi": 0.1, "perplexity": 1.5, "units_used": 2.0},
    "data": {"utterances": 4, "of_utterances": 4, "frames": 226},
}


def make_inputs(folder: Path, corpus: Path, run: Path, preset: Path) -> None:
    """Write the inputs below a folder that already has a corpus, a labelled corpus, a run and an index."""
    write_sweep(folder / "sweep.toml", preset)
    rates = {"audio_per_second": 100.0, "batch": 4, "seconds": 15.0, "phase1": {"audio_per_second": 90.0}}
    (folder / "rates.json").write_text(json.dumps(rates | {"decode": {"flac": {"audio_per_second": 50.0}}}))
    cost = {"macs_per_second": 1e9, "threads": 1, "seconds": 10, "cpu_ms": 3.0}
    (run / "cost.json").write_text(json.dumps(cost | {"encoder": {"name": "mine", "fingerprint": "0"}}))
    assert sjepa("embed", corpus, "--encoder", run, "--out", folder / "features").status == 0
    assert sjepa("shard", folder / "index", "--out", folder / "shards", "--workers", "1").status == 0
    assert sjepa("export", run, folder / "exported", "--to", "hf").status == 0
    head = ("--data", folder / "labelled", "--encoder", "mfcc", "--lite", "--steps", "1", "--out", folder / "head")
    assert sjepa("superb", "asr", *head).status == 0
    for result in (PROBED, UNITS):
        file = run / "results" / result["task"] / "results.json"
        file.parent.mkdir()
        file.write_text(json.dumps(result))
    write_lhotse(folder / "lhotse", corpus)
    write_kaldi(folder / "kaldi", corpus)
    (folder / "light").mkdir()
    shutil.copy(corpus / "0.wav", folder / "light" / "0.wav")
    (folder / "light" / "0.json").write_text('{"speaker": "7", "voice_activity": [[0.0, 0.5], [0.6, 1.0]]}')
    write_table(folder / "table", corpus)
    with tarfile.open(folder / "members.tar", "w") as tar:
        tar.add(corpus / "0.wav", "a.wav")
        add_member(tar, "a.json", b'{"text": "one", "speaker": 3, "labels": "{}"}')
        add_member(tar, "a.txt", b"two")
    write_encoders(folder)
    header = ['File type = "ooTextFile"', 'Object class = "TextGrid"', "", "xmin = 0", "xmax = 1", "tiers? <exists>"]
    tier = ["size = 1", "item []:", "item [1]:", 'class = "IntervalTier"', 'name = "phones"', "xmin = 0", "xmax = 1"]
    interval = ["intervals: size = 1", "intervals [1]:", "xmin = 0", "xmax = 0.5", 'text = "a"']
    (folder / "grids").mkdir()
    (folder / "grids" / "0.TextGrid").write_text("\n".join(header + tier + interval) + "\n")


def add_member(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    tar.addfile(member, io.BytesIO(content))


def write_sweep(file: Path, preset: Path) -> None:
    file.write_text(
        f"""
[sweep]
preset = "{preset}"
data = "audio"
out = "runs"
seeds = [0, 1]
launch = "torchrun"
[sweep.settings]
"phase1.steps" = 3
[runs.soft]
[runs.hard]
phase2.steps = 3
seeds = [0]
[encoders.early]
run = "soft-0"
phase = 1
[encoders.mfcc]
encoder = "mfcc"
[evaluate.probe]
command = "probe --encoder {{encoder}} --out {{folder}}/probe"
makes = "probe/results.json"
on = ["soft-*"]
needs = "audio"
"""
    )


def write_lhotse(folder: Path, corpus: Path) -> None:
    folder.mkdir()
    shutil.copy(corpus / "0.wav", folder / "0.wav")
    source = {"type": "file", "channels": [0], "source": "0.wav"}
    recording = {"id": "r", "sources": [source], "sampling_rate": 16000, "num_samples": 16000, "duration": 1.0}
    spoken = {
        "id": "s",
        "recording_id": "r",
        "start": 0.0,
        "duration": 0.5,
        "channel": 0,
        "text": "one",
        "speaker": "a",
    }
    spoken |= {"custom": {"mood": "calm"}, "language": "en", "gender": "female"}
    cut = {"id": "c", "type": "MonoCut", "start": 0.0, "duration": 1.0, "channel": 0, "recording": recording}
    cuts = [cut | {"supervisions": [spoken]}, cut | {"id": "d", "supervisions": [spoken, spoken | {"id": "t"}]}]
    write_lines(folder / "cuts.jsonl", cuts)
    write_lines(folder / "corpus_recordings_all.jsonl", [recording])
    write_lines(folder / "corpus_supervisions_all.jsonl", [spoken])
    (folder / "packed_cuts.jsonl.gz").write_bytes(gzip.compress((folder / "cuts.jsonl").read_bytes()))


def write_lines(file: Path, lines: Lines) -> None:
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))


def write_kaldi(folder: Path, corpus: Path) -> None:
    folder.mkdir()
    shutil.copy(corpus / "0.wav", folder / "0.wav")
    (folder / "wav.scp").write_text("r 0.wav\nq touch here |\n")
    (folder / "segments").write_text("r-1 r 0.0 0.5\nr-2 r 0.5 -1\n")
    (folder / "text").write_text("r-1 one two\nr-2 three\n")


def write_table(folder: Path, corpus: Path) -> None:
    folder.mkdir()
    audio = [{"bytes": (corpus / "0.wav").read_bytes(), "path": "0.wav"}]
    table = pa.table({"audio": pa.array(audio), "text": ["one"], "mood": [1]})
    with (
        pa.OSFile(str(folder / "data-00000-of-00001.arrow"), "wb") as sink,
        pa.ipc.new_stream(sink, table.schema) as out,
    ):
        out.write_table(table)
    features = {"mood": {"_type": "ClassLabel", "names": ["calm", "glad"]}}
    (folder / "dataset_info.json").write_text(json.dumps({"features": features}))
    (folder / "state.json").write_text("{}")


def write_encoders(folder: Path) -> None:
    """Write a small Whisper and a small HuBERT."""
    import transformers

    torch.manual_seed(0)
    sizes = {"d_model": 64, "encoder_layers": 1, "encoder_attention_heads": 1, "encoder_ffn_dim": 256}
    rest = {"decoder_layers": 1, "decoder_attention_heads": 1, "decoder_ffn_dim": 8, "vocab_size": 50}
    tokens = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
    whisper = transformers.WhisperModel(transformers.WhisperConfig(**sizes, **rest, **tokens))
    whisper.save_pretrained(folder / "whisper")
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    config = transformers.WavLMConfig(
        **sizes, conv_dim=[8] * 7, num_conv_pos_embeddings=16, num_conv_pos_embedding_groups=2
    )
    transformers.WavLMModel(config).save_pretrained(folder / "hubert")
    (folder / "hubert" / "preprocessor_config.json").write_text('{"do_normalize": true, "sampling_rate": 16000}')
