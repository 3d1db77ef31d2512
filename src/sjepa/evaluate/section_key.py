"""The identity of a table: results on the same data with the same protocol."""

from collections.abc import Sequence
from dataclasses import dataclass

from sjepa.evaluate import reported
from sjepa.evaluate.metric import SectionKind

TITLES = {
    SectionKind.SUPERB: "SUPERB",
    SectionKind.OTHER: "Full protocol, not part of SUPERB",
    SectionKind.LITE: "Lite protocols",
    SectionKind.PROBES: "Probes",
    SectionKind.UNITS: "Units",
}
DEV_CLEAN, DEV_CLEAN_UTTERANCES = "LibriSpeech dev-clean", 2703
REPORTED_SIGN = "†"  # footnote of names
REPORTED_NOTE = f"{REPORTED_SIGN} reported by others, not measured here"


@dataclass(frozen=True)
class SectionKey:
    """Identifies a section: results on the same data with the same protocol."""

    kind: SectionKind
    corpus: str = ""
    """For probes and units only."""
    total: int | None = None
    """Number of utterances, if only a part of the corpus was used."""
    phones: tuple[int, int] | None = None
    """Utterances whose phones were used and total utterances, if they differ."""
    frames: int | None = None
    """Frames that were requested from random utterances, if these are not all. The utterances depend on the seed."""
    labels: str = ""
    """Version of the labels, if corpora with the same name differ in them."""

    @property
    def data(self) -> str:
        """The corpus and the part of it that was used, for probes and units."""
        parts = [self.corpus]
        if self.total is not None:
            parts.append(f"only {self.total:,} utterances")
        if self.frames is not None:
            parts.append(f"phones of about {self.frames:,} frames")
        elif self.phones:
            parts.append(f"phones of {self.phones[0]:,} of {self.phones[1]:,} utterances")
        if self.labels:
            parts.append(f"labels {self.labels}")
        return ", ".join(parts)

    @property
    def title(self) -> str:
        return TITLES[self.kind] + (f" on {self.data}" if self.corpus else "")

    @property
    def order(self) -> tuple[int, str]:
        return list(SectionKind).index(self.kind), self.title

    @property
    def reported(self) -> Sequence[reported.ReportedResult]:
        """Published results on the same data. Phones of a part of dev-clean are compared with those of all of it."""
        if self.kind is SectionKind.PROBES and self.corpus == DEV_CLEAN and self.total is None:
            return reported.PROBES
        return reported.SUPERB if self.kind is SectionKind.SUPERB else ()

    @property
    def note(self) -> str:
        """Text to print with the section."""
        if self.kind is SectionKind.LITE:
            text = "Reduced protocols: fewer steps, less data, a narrower recurrent head."
            return f"{text} Not comparable with full results."
        if self.kind is SectionKind.PROBES:
            return "Percent, mean ± deviation over splits."
        if self.kind is SectionKind.UNITS:
            return "Agreement of discrete units with phones; ABX error in percent."
        return "Percent, ↓ lower is better." if self.kind is SectionKind.SUPERB else "Percent."

    @property
    def reported_note(self) -> str:
        """The meaning of the sign of reported results."""
        if self.kind is not SectionKind.PROBES:
            return f"{REPORTED_NOTE}."
        frames = "" if self.frames is None and not self.phones else ", on all frames of dev-clean"
        return f"{REPORTED_NOTE}, with 67 phonemes of another alignment{frames}."
