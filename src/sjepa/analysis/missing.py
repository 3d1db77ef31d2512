"""Compute the analyses that a report shows and a run does not have yet, without drawing them."""

from pathlib import Path

from sjepa.analysis.clusters import analyse_clusters, analyse_phones, corpus_inputs
from sjepa.analysis.entropy import analyse_entropy
from sjepa.analysis.restored_run import RestoredRun
from sjepa.analysis.speech import CorpusLabels, read_speech, read_usable, sample_corpus
from sjepa.analysis.style import MADE_BY_REPORT, findings_file, save_findings, utterance_files
from sjepa.analysis.utterance import analyse_utterance, file_stem
from sjepa.device import Device
from sjepa.evaluate.labelled import drop_without_phones
from sjepa.progress import say
from sjepa.runs.folder import RunFolder

SECONDS = 20.0  # longest utterance in the explorer
SAMPLED = 200  # utterances for entropies and clusters; `sjepa analyze` uses 500 by default


def analyse_missing(
    run: Path, corpus: CorpusLabels, utterances: int, device: Device = "auto", sampled: int = SAMPLED
) -> None:
    """Compute utterances, entropies and the clusters' phones, except those already in RUN/analysis."""
    out, data, restored = RunFolder(run).analysis, corpus.data, None
    if utterance_files(out):
        say(
            f"The page shows the utterances that are already in {out}. If they come from other audio than {data}, "
            f"delete {out} and start again"
        )
    else:
        restored = RestoredRun(run, device)
        chosen = sample_corpus(data, corpus.labels, utterances)
        analysed = {
            file_stem(item.utterance): analyse_utterance(restored, speech)
            for item, speech in read_usable(chosen, lambda item: read_speech(item, 0.0, SECONDS), "Utterances")
        }
        for name, found in analysed.items():  # save them at the end: one saved utterance means that all are there
            save_findings(found, out, name)
    if not findings_file(out, "entropy").is_file():
        restored = restored or RestoredRun(run, device)
        save_findings(analyse_entropy(restored, str(data), sampled) | MADE_BY_REPORT, out, "entropy")
    if not findings_file(out, "clusters").is_file():
        labels = drop_without_phones(corpus.labels)
        if labels:
            found = analyse_clusters(run) | {"made_from": corpus_inputs(data, corpus.subset, sampled)}
            found["phones"] = analyse_phones(restored or RestoredRun(run, device), labels, sampled)
            save_findings(found | MADE_BY_REPORT, out, "clusters")
