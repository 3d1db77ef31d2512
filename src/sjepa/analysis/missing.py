"""What a page wants to show and a run lacks, made in one go and without drawing."""

from pathlib import Path

from sjepa.analysis.clusters import analyse_clusters, analyse_phones, made_from_corpus
from sjepa.analysis.entropy import analyse_entropy
from sjepa.analysis.restored import Restored
from sjepa.analysis.speech import choose, read_labels, read_speech
from sjepa.analysis.style import file_name, keep
from sjepa.analysis.utterance import analyse_utterance
from sjepa.device import Device
from sjepa.progress import say, track
from sjepa.runs.folder import RunFolder

SECONDS = 20.0  # longest utterance in the explorer
SAMPLED = 200  # utterances for entropies and clusters; `sjepa analyze` takes 500


def analyse_missing(
    run: Path, data: Path, subset: str, utterances: int, device: Device = "auto", sampled: int = SAMPLED
) -> None:
    """Utterances, entropies and the clusters' phones, each unless it lies in RUN/analysis already."""
    out, restored = RunFolder(run).analysis, None
    if any(out.glob("utterance-*.json")):
        say(f"The utterances of the explorer stay as they are: delete {out} to make all of it anew")
    else:
        restored = Restored(run, device)
        chosen = choose(data, [], utterances, subset)
        analysed = [
            analyse_utterance(restored, read_speech(path, label, 0.0, SECONDS))
            for path, label in track(chosen, "Utterances", len(chosen))
        ]
        for found in analysed:  # only now, because after an interruption one that is there stands for all
            keep(found, out, f"utterance-{file_name(found['name'])}")
    if not (out / "entropy.json").is_file():
        restored = restored or Restored(run, device)
        keep(analyse_entropy(restored, str(data), sampled), out, "entropy")
    if not (out / "clusters.json").is_file():
        labels = [item for item in read_labels(data, subset) if item.phones or item.segments]
        if labels:
            found = analyse_clusters(run) | {"made_from": made_from_corpus(data, subset, sampled)}
            found["phones"] = analyse_phones(restored or Restored(run, device), labels, sampled)
            keep(found, out, "clusters")
