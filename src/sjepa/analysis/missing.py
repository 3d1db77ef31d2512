"""Compute the analyses that a report shows and a run does not have yet, without drawing them."""

from pathlib import Path
from typing import Any

from sjepa.analysis.clusters import analyse_clusters, analyse_phones, corpus_inputs
from sjepa.analysis.entropy import analyse_entropy
from sjepa.analysis.restored_run import RestoredRun
from sjepa.analysis.speech import CorpusLabels, read_speech, read_usable, sample_corpus
from sjepa.analysis.style import MADE_BY_REPORT, Findings, findings_file, save_findings, utterance_files
from sjepa.analysis.utterance import analyse_utterance, file_stem
from sjepa.device import Device
from sjepa.evaluate.labelled import drop_without_phones
from sjepa.files import read_json
from sjepa.progress import say
from sjepa.runs.folder import RunFolder

SECONDS = 20.0  # longest utterance in the explorer
SAMPLED = 200  # utterances for entropies and clusters; `sjepa analyze` uses 500 by default


def analyse_missing(
    run: Path, corpus: CorpusLabels, utterances: int, device: Device = "auto", sampled: int = SAMPLED
) -> None:
    """Compute utterances, entropies and the clusters' phones for a page.

    Findings of `sjepa analyze` stay. Those of an earlier page stay if audio and checkpoint are the same.
    """
    folder, data = RunFolder(run), corpus.data
    out, restored = folder.analysis, None
    inputs = corpus_inputs(data, corpus.subset, sampled, folder.step)
    shown = inputs | {"utterances": utterances}
    present = utterance_files(out)
    stale = [path for path in present if is_stale(path, shown)]
    analysed: dict[str, Findings] = {}
    if len(present) > len(stale):
        say(f"The page shows the utterances that are already in {out}")
    else:
        restored = RestoredRun(run, device)
        chosen = sample_corpus(data, corpus.labels, utterances)
        analysed = {
            file_stem(item.utterance): analyse_utterance(restored, speech)
            for item, speech in read_usable(chosen, lambda item: read_speech(item, 0.0, SECONDS), "Utterances")
        }
    for path in stale:
        path.unlink()
    for name, found in analysed.items():  # save them at the end: one saved utterance means that all are there
        save_findings(found | made_by_report(shown), out, name)
    if is_stale(findings_file(out, "entropy"), inputs):
        restored = restored or RestoredRun(run, device)
        save_findings(analyse_entropy(restored, str(data), sampled) | made_by_report(inputs), out, "entropy")
    if is_stale(findings_file(out, "clusters"), inputs):
        findings_file(out, "clusters").unlink(missing_ok=True)
        labels = drop_without_phones(corpus.labels)
        if labels:
            found = analyse_clusters(run) | {"made_from": corpus_inputs(data, corpus.subset, sampled)}
            found["phones"] = analyse_phones(restored or RestoredRun(run, device), labels, sampled)
            save_findings(found | made_by_report(inputs), out, "clusters")


def made_by_report(inputs: dict[str, Any]) -> Findings:
    """What a page's findings store, so that a later page knows whether to make them again."""
    return MADE_BY_REPORT | {"report_inputs": inputs}


def is_stale(path: Path, inputs: dict[str, Any]) -> bool:
    """Return whether findings are missing, or were made for a page from other audio or another checkpoint."""
    if not path.is_file():
        return True
    found = read_json(path)
    return MADE_BY_REPORT.items() <= found.items() and found.get("report_inputs") != inputs
