"""How much of the phones do k-means units hold, and how much does a classifier find that was trained with labels?

python benchmarks/unit_limits.py CORPORA ENCODER...   # -> benchmarks/results/unit-limits.json, and prints the table

Last layer; every eighth utterance of dev-clean; a codebook of 256 clusters from CORPORA/extra. *Centred*: the mean of
each utterance is subtracted. *Averaged*: over three neighbouring frames. *Discriminant*: a linear discriminant
analysis separates 1,000 k-means clusters, without labels; k-means then runs in its 64 best directions (after Heck and
others, 2016). *Classifiers* are trained with the phones of half the speakers, and answer one of 40 phones for every
frame of the others.
"""

import sys
from pathlib import Path

import numpy as np
import torch
from output import merge_entries, to_markdown
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.neural_network import MLPClassifier
from torch import Tensor
from torch.nn.functional import avg_pool1d

from sjepa.evaluate.agreement import measure_agreement
from sjepa.evaluate.labelled import LabelledUtterance, read_labelled, read_unlabelled
from sjepa.evaluate.units import kmeans_units
from sjepa.evaluate.upstream import Upstream, load_upstream
from sjepa.files import read_json
from sjepa.progress import track

RESULTS = Path(__file__).parent / "results" / "unit-limits.json"
EVERY, CLUSTERS, CLASSES, DIRECTIONS, FRAMES = 8, 256, 1000, 64, 60_000


def examine(encoder: str, corpora: Path) -> dict[str, float]:
    """Return the PNMI of each kind of units."""
    upstream = load_upstream(encoder)
    corpus = read_labelled(corpora)[::EVERY]
    test = extract(upstream, corpus, "Features of dev-clean")
    other = extract(upstream, read_unlabelled(corpora / "extra")[::2], "Features for the codebook")
    phones = np.concatenate([item.frame_phones(len(x)) for item, x in zip(corpus, test, strict=True)])
    found = {}
    for name, (fitted, measured) in {
        "plain": (sample(other), torch.cat(test)),
        "centred": (sample(centre(other)), torch.cat(centre(test))),
        "averaged": (sample(average(other)), torch.cat(average(test))),
    }.items():
        found[f"k-means, {name}"] = measure_agreement(assign(measured, CLUSTERS, fitted), phones)["pnmi"]
        classes = assign(fitted, CLASSES, fitted)
        directions = LinearDiscriminantAnalysis(n_components=DIRECTIONS).fit(fitted.numpy(), classes)
        seen, projected = (torch.from_numpy(directions.transform(x.numpy())).float() for x in (fitted, measured))
        found[f"k-means, {name}, discriminant"] = measure_agreement(assign(projected, CLUSTERS, seen), phones)["pnmi"]
    speakers = sorted({item.speaker for item in corpus})
    train = np.concatenate(
        [np.full(len(x), item.speaker in speakers[::2]) for item, x in zip(corpus, test, strict=True)]
    )
    frames = torch.cat(test).numpy()
    frames = (frames - frames[train].mean(0)) / frames[train].std(0)
    for name, classifier in {
        "linear classifier": LinearDiscriminantAnalysis(),
        "MLP": MLPClassifier(512, batch_size=1024, early_stopping=True, random_state=0),
    }.items():
        answers = classifier.fit(frames[train], phones[train]).predict(frames[~train])
        found[name] = measure_agreement(answers, phones[~train])["pnmi"]
        found[f"{name}, accuracy"] = float((answers == phones[~train]).mean())
    return {name: round(value, 3) for name, value in found.items()}


def extract(upstream: Upstream, corpus: list[LabelledUtterance], title: str) -> list[Tensor]:
    """Return the last layer of each utterance, (T, D)."""
    return [upstream.extract([item.utterance.read()])[0][-1].float() for item in track(corpus, title, len(corpus))]


def centre(utterances: list[Tensor]) -> list[Tensor]:
    return [x - x.mean(0) for x in utterances]


def average(utterances: list[Tensor]) -> list[Tensor]:
    return [avg_pool1d(x.T, 3, 1, 1, count_include_pad=False).T for x in utterances]


def sample(utterances: list[Tensor]) -> Tensor:
    frames = torch.cat(utterances)
    return frames[torch.randperm(len(frames), generator=torch.Generator().manual_seed(0))[:FRAMES]]


def assign(frames: Tensor, clusters: int, fitted: Tensor) -> np.ndarray:
    """Fit k-means, and return the units of other frames."""
    return kmeans_units([frames.numpy()], clusters, 0, torch.device("cpu"), [fitted.numpy()])


def make_table() -> str:
    """Make the table of docs/study-trials.md."""
    kept = read_json(RESULTS)
    rows = [
        [f"{kind} in percent", *(f"{100 * found[kind]:.1f}" for found in kept.values())]
        if "accuracy" in kind
        else [kind, *(f"{found[kind]:.3f}" for found in kept.values())]
        for kind in next(iter(kept.values()))
    ]
    return to_markdown(["", *kept], rows)


def main() -> None:
    if len(sys.argv) < 3:
        raise SystemExit(__doc__)
    merge_entries(RESULTS, {Path(encoder).name: examine(encoder, Path(sys.argv[1])) for encoder in sys.argv[2:]})
    print(make_table())


if __name__ == "__main__":
    main()
