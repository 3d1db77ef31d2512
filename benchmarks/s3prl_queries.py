"""Query by example for `s3prl_agreement.py`: a corpus, an encoder that finds words, and both sides' scores."""

import itertools
import random
import xml.etree.ElementTree as ElementTree
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
import torch
from s3prl_sides import make_expert
from torch import Tensor, nn

from sjepa.data.synthetic import VOICES, Voice, speak
from sjepa.evaluate.superb.queries import LayerSearch, QueryTask, Scores
from sjepa.evaluate.superb.records import Utterance
from sjepa.evaluate.superb.tasks import make_task
from sjepa.evaluate.superb.term_weighted_value import maximum_term_weighted_value
from sjepa.evaluate.upstream import Upstream, load_upstream

WORDS = ("kitchen", "weather", "morning", "banana", "forest", "yellow", "paper", "window", "music", "seven", "garden")
DOCUMENTS = 48
NOISE = 0.01
CONFIG = {
    "max_workers": 1,
    "feature_normalization": True,
    "silence_frame": None,
    "dtwrc": {"dist_method": "cosine_exp", "minmax_norm": True, "step_pattern": "asymmetric", "subsequence": True},
}


class SpectralEncoder(nn.Module):
    """Log-mel features, the same smoothed over time, and a random projection. Layers differ and find words."""

    stride, centre = 320, 200

    def __init__(self) -> None:
        super().__init__()
        self.features = load_upstream("logmel")
        generator = torch.Generator().manual_seed(0)
        width = self.features.dimension
        self.projection = nn.Parameter(torch.randn(width, width, generator=generator) / width)

    def forward(self, waveforms: Tensor) -> list[Tensor]:
        spectrum = torch.stack([states[-1] for states in self.features.extract(list(waveforms.cpu().numpy()))])
        smooth = nn.functional.avg_pool1d(spectrum.transpose(1, 2), 9, 1, 4).transpose(1, 2)
        return [spectrum, smooth, torch.tanh(spectrum @ self.projection)]


def write_quesst(root: Path) -> Path:
    """QUESST 2014's layout. A document is three words. Three queries in four have a voice of the documents."""
    generator, noise = random.Random(0), np.random.default_rng(0)
    root = root / "quesst14Database"

    def record(words: Sequence[str], voice: Voice, path: Path) -> None:
        samples = np.concatenate([speak(word, voice).samples for word in words])
        path.parent.mkdir(parents=True, exist_ok=True)
        soundfile.write(path, samples + NOISE * noise.normal(size=len(samples)), 16_000)

    contents = {f"quesst14_{number:05d}": generator.sample(WORDS, 3) for number in range(1, DOCUMENTS + 1)}
    listed = {"utterances": [f"quesst14Database/Audio/{name}.wav nnenglish" for name in contents]}
    for number, (name, words) in enumerate(contents.items()):
        record(words, VOICES[number % 3], root / "Audio" / f"{name}.wav")
    for part, (known, new) in {"dev": (0, 4), "eval": (1, 5)}.items():
        queries = {f"quesst14_{part}_{number:04d}": word for number, word in enumerate(WORDS, 1)}
        listed[part] = [f"quesst14Database/{part}_queries/{query}.wav nnenglish" for query in queries]
        for number, (query, word) in enumerate(queries.items()):
            record([word], VOICES[new if number % 4 == 3 else known], root / f"{part}_queries" / f"{query}.wav")
        folder = root / "scoring" / f"groundtruth_quesst14_{part}"
        folder.mkdir(parents=True)
        terms = "".join(f'<term termid="{query}"><termtext>x</termtext></term>' for query in queries)
        (folder / f"quesst14_{part}.tlist.xml").write_text(f"<termlist>{terms}</termlist>")
        excerpts = "".join(f'<excerpt audio_filename="{name}" channel="1"/>' for name in contents)
        (folder / "quesst14.ecf.xml").write_text(f"<ecf>{excerpts}</ecf>")
        found = [
            (name, query)
            for (name, words), query in itertools.product(contents.items(), queries)
            if queries[query] in words
        ]
        rttm = "".join(f"LEXEME {name} 1 0.00 1.00 {query} lex 1 0.5\n" for name, query in found)
        (folder / f"quesst14_{part}.rttm").write_text(rttm)
    for part, lines in listed.items():
        (root / "scoring" / f"language_key_{part}.lst").write_text("".join(f"{line}\n" for line in lines))
    return root.parent


def compare_queries(place: Path) -> dict[str, Any]:
    """Compare the scores of all queries and documents of dev and test at each layer, MTWV, and the chosen layer."""
    root = write_quesst(place / "data")
    upstream = load_upstream("s3prl_queries:SpectralEncoder")
    task = make_task("qbe", root)
    assert isinstance(task, QueryTask)
    fold = task.folds[0]
    search = LayerSearch(task, upstream, place / "ours")
    search.measure()
    layers = list(range(upstream.states))
    pairs: list[tuple[float, float]] = []
    values: dict[str, dict[str, float]] = {}
    same = True
    for part, queries in (("dev", fold.dev), ("test", fold.test)):
        ours = search.detect(fold.train, queries, layers)
        theirs, names = search_by_s3prl(search, upstream, place, root, part, [*queries, *fold.train])
        same = same and names == [u.name for u in (*queries, *fold.train)]
        for layer in layers:
            both = ours[layer], theirs[layer]
            truth = task.truths[part]
            values[f"{part}, layer {layer}"] = {
                side: maximum_term_weighted_value(scores, truth)
                for side, scores in zip(("ours", "s3prl"), both, strict=True)
            }
            trials = itertools.product((u.name for u in queries), (u.name for u in fold.train))
            pairs += [(both[0][query][name], both[1][query][name]) for query, name in trials]
    chosen = {side: max(layers, key=lambda layer: values[f"dev, layer {layer}"][side]) for side in ("ours", "s3prl")}
    scores = np.array(pairs)
    differences = np.abs(scores[:, 0] - scores[:, 1])
    apart = max(abs(pair["ours"] - pair["s3prl"]) for pair in values.values())
    return {
        "steps": 0,
        "scores_compared": len(scores),
        "range_of_scores": [scores.min(), scores.max()],
        "equal_to_four_digits": int((differences < 5e-5).sum()),
        "largest_difference_of_scores": float(differences.max()),
        "test_metrics": {f"mtwv, {name}": pair for name, pair in values.items()},
        "chosen_layer": chosen,
        "same_parts": same,
        "agrees": bool(same and differences.max() < 1e-3 and apart < 1e-2 and chosen["ours"] == chosen["s3prl"]),
        "scaled_down": "",
    }


def search_by_s3prl(
    search: LayerSearch, upstream: Upstream, place: Path, root: Path, part: str, utterances: Sequence[Utterance]
) -> tuple[list[Scores], list[str]]:
    """Return s3prl's scores at each layer, from the list that it writes, and the names that its reader found."""
    datarc = {"dataset_root": str(root / "quesst14Database"), "num_workers": 0, "batch_size": 1}
    expert = make_expert("quesst14_dtw", upstream, place, CONFIG | {"datarc": datarc})
    expert.get_dataloader(part)
    names = [path.stem for path in expert.test_dataset.data]
    layers = list(range(upstream.states))
    states = search.features(utterances, layers)
    found = []
    for layer in layers:
        records: dict[str, list[Any]] = defaultdict(list)
        for name, each in zip(names, states, strict=True):
            expert(part, [each[layer]], [name], records)
        expert.log_records(part, records)
        tree = ElementTree.parse(place / "theirs" / "benchmark.stdlist.xml").getroot()
        found.append(
            {
                str(query.get("termid")): {str(term.get("file")): float(str(term.get("score"))) for term in query}
                for query in tree
            }
        )
    return found, names
