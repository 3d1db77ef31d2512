"""The utterance explorer: play an utterance and inspect every frame. explorer.js draws the data written here."""

from collections.abc import Sequence
from typing import Any

from sjepa.analysis.names import PATHS
from sjepa.report.blocks import SectionBody, as_script
from sjepa.report.contents import Report

KEPT = ("name", "text", "speaker", "start", "seconds", "phones", "words", "target", "spectrogram", "audio")
CONTROLS = """
<div class="explorer" tabindex="0" aria-label="Utterance explorer">
<div class="player">
<button class="play" type="button" aria-label="Play">▶</button>
<button class="before" type="button" aria-label="Utterance before" title="utterance before">‹</button>
<select class="which" aria-label="Utterance"></select>
<button class="after" type="button" aria-label="Next utterance" title="next utterance">›</button>
<span class="clock"></span>
<label class="rate">speed <select aria-label="Speed"><option value="1">1×</option><option value="0.5">½×</option>
<option value="0.25">¼×</option></select></label>
<span class="zoom"><button type="button" class="out" aria-label="Zoom out">−</button><button type="button" class="fit"
aria-label="Show all">all</button><button type="button" class="in" aria-label="Zoom in">+</button></span>
</div>
<p class="transcript"></p>
<div class="readout" aria-live="off"></div>
<div class="board"><canvas class="tracks"></canvas><canvas class="cursor"></canvas></div>
<p class="keys">Click or drag to seek, hover for values. <kbd>space</kbd> plays, <kbd>←</kbd> <kbd>→</kbd> step a
frame of 20 ms, with <kbd>shift</kbd> ten; <kbd>home</kbd> and <kbd>end</kbd> jump.</p>
<audio preload="auto"></audio>
</div>
"""


def explorer(reports: Sequence[Report]) -> SectionBody | None:
    """The explorer of one or several runs; None if no utterance was analysed."""
    entries = [entry(report, utterance, len(reports) > 1) for report in reports for utterance in report.utterances]
    if not entries:
        return None
    if len(reports) > 1:
        entries.sort(key=lambda each: each["name"])  # the same utterance of all runs together
    return SectionBody(
        "The distributions of the cluster head with nothing masked, of the predictor at each frame while it is masked, "
        "and of their target. If one cluster has all the probability, the frame is clear. If two share it, the frame "
        "is ambiguous.",
        f'{CONTROLS}<script type="application/json" class="explorer-data">{as_script(entries)}</script>',
    )


def entry(report: Report, utterance: dict[str, Any], name_run: bool) -> dict[str, Any]:
    names = report.found.get("clusters", {}).get("phones") or {}
    if names.get("phase") != utterance["run"]["phase"]:  # clusters of other phases have other phones
        names = {}
    about = {"run": report.name if name_run else "", "components": utterance["run"]["components"]}
    paths = {path: utterance[path] for path in PATHS}
    return {key: utterance[key] for key in KEPT} | paths | about | {"cluster_names": names.get("names", {})}
