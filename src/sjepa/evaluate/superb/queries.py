"""Query by example: no training; the layer that detects queries best is selected on dev."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from xml.sax.saxutils import quoteattr

import torch
from torch import Tensor, nn

from sjepa import distributed
from sjepa.evaluate.superb.batches import testing_batches
from sjepa.evaluate.superb.corpora.quesst import Truth
from sjepa.evaluate.superb.protocol import TEST_BATCH, write_files
from sjepa.evaluate.superb.records import Fold, Label, Utterance
from sjepa.evaluate.superb.search import Search
from sjepa.evaluate.superb.task import Task
from sjepa.evaluate.superb.term_weighted_value import maximum_term_weighted_value
from sjepa.evaluate.superb.warping import score_documents, standardise, standardise_scores
from sjepa.progress import bar

DETECTED = 2.0  # detection threshold, in standard deviations above the mean of a query's scores
Scores = dict[str, dict[str, float]]
"""Score of each document for each query."""


@dataclass(frozen=True)
class QueryTask(Task):
    """Spoken queries in `dev` and `test`, and documents in `train`. Nothing is trained."""

    truths: dict[str, Truth] = field(kw_only=True, repr=False)
    """Ground truth of the parts `dev` and `test`."""

    def head(self, dimension: int) -> nn.Module:
        return nn.Identity()

    def loss(self, outputs: Tensor, frames: Tensor, labels: Sequence[Label]) -> Tensor:
        raise NotImplementedError("nothing is trained")

    def predict(self, outputs: Tensor, frames: Tensor) -> list[Any]:
        raise NotImplementedError("scores are of a query and all documents")

    def answers(self) -> dict[str, Any]:
        return {
            part: [truth.trials, sorted((query, *sorted(found)) for query, found in truth.documents.items())]
            for part, truth in self.truths.items()
        }

    def score_queries(self, scores: Scores, part: str) -> dict[str, float]:
        return {"mtwv": maximum_term_weighted_value(scores, self.truths[part])}

    def files(self, scores: Scores) -> Mapping[str, str]:
        """Return `predictions.txt` and the detections in the format of the SUPERB leaderboard."""
        truth = self.truths["test"].documents
        rows = [
            f"{query} {document}\t{score:.4f}\t{int(document in truth.get(query, ()))}\n"
            for query, documents in scores.items()
            for document, score in documents.items()
        ]
        files = {"predictions.txt": "".join(rows)}
        return (
            files if self.submission is None else files | {next(iter(self.submission.places)): format_stdlist(scores)}
        )


def format_stdlist(scores: Scores) -> str:
    """Format detections for NIST's spoken term detection, with the attributes that s3prl writes."""
    lines = [
        "<?xml version='1.0' encoding='UTF-8'?>",
        '<stdlist termlist_filename="benchmark.stdlist.xml" indexing_time="1.00" language="english" index_size="1" '
        'system_id="benchmark">',
    ]
    for query, documents in scores.items():
        lines.append(
            f'  <detected_termlist termid={quoteattr(query)} term_search_time="1.0" oov_term_count="1">',
        )
        lines += [
            f'    <term file={quoteattr(document)} channel="1" tbeg="0.000" dur="0.00" score="{score:.4f}" '
            f'decision="{"YES" if score > DETECTED else "NO"}"/>'
            for document, score in documents.items()
        ]
        lines.append("  </detected_termlist>")
    return "\n".join([*lines, "</stdlist>"]) + "\n"


class LayerSearch(Search):
    """Evaluate every hidden state on dev and test the best."""

    candidate_key = "layer"
    trains = False

    def candidates(self, lr: float | None, sweep: bool) -> Sequence[float]:
        return range(self.upstream.states)

    def protocol(self) -> dict[str, Any]:
        return {"name": self.task.recipe.name, "steps": 0, "distance": "cosine_exp", "head_parameters": 0}

    def clean_up(self, chosen: float) -> None:
        pass

    def dev_scores(self, candidates: Sequence[float]) -> dict[float, float]:
        (fold,) = self.task.folds
        return {
            layer: self.score(scores, "dev")[self.task.selection.name]
            for layer, scores in self.detect(fold.train, fold.dev, candidates).items()
        }

    def score(self, scores: Scores, part: str) -> dict[str, float]:
        assert isinstance(self.task, QueryTask)
        return self.task.score_queries(scores, part)

    def test(self, fold: Fold, index: int, candidate: float) -> dict[str, Any]:
        assert isinstance(self.task, QueryTask)
        scores = self.detect(fold.train, fold.test, [candidate])[candidate]
        files = self.task.files(scores)
        distributed.run_on_main_rank(lambda: write_files(self.out, files))
        return {"fold": fold.name, "metrics": self.score(scores, "test"), "chance": {}, "decoded": {}}

    @torch.inference_mode()
    def detect(
        self, documents: Sequence[Utterance], queries: Sequence[Utterance], layers: Sequence[float]
    ) -> dict[float, Scores]:
        """Score all documents for all queries at each layer. Features are standardised over both."""
        both = [*queries, *documents]
        by_layer: dict[float, Scores] = {}
        features = distributed.run_on_all_ranks(lambda: self.features(both, [int(layer) for layer in layers]))
        with bar("Matching queries", len(layers) * len(queries)) as progress:
            for place, layer in enumerate(layers):
                scaled = standardise([states[place].float().to(self.upstream.device) for states in features])
                by_layer[layer] = {}
                mine = range(distributed.rank(), len(queries), distributed.world_size())
                for query, frames in ((queries[i], scaled[i]) for i in mine):
                    scores = standardise_scores(score_documents(frames, scaled[len(queries) :])).tolist()
                    named = zip(documents, scores, strict=True)
                    # Four digits, as in the submitted list, for the same metric.
                    by_layer[layer][query.name] = {document.name: round(score, 4) for document, score in named}
                    progress.advance(distributed.world_size(), note=f"layer {int(layer)}")
        for others in distributed.gather_objects(by_layer):
            by_layer = {layer: scores | others[layer] for layer, scores in by_layer.items()}
        return {layer: {query.name: scores[query.name] for query in queries} for layer, scores in by_layer.items()}

    def features(self, utterances: Sequence[Utterance], layers: Sequence[int]) -> list[Tensor]:
        """Return some layers of all utterances, on the CPU: (layers, T, D)."""
        order = testing_batches(self.samples(utterances), TEST_BATCH)
        plan = [([utterances[i] for i in batch], -1) for batch in order]
        states_of: dict[int, Tensor] = {}
        with bar("Computing features", len(utterances)) as progress:
            for batch, (_, features) in zip(order, self.store.batches(plan), strict=True):
                states_of |= {i: states[layers].cpu() for i, states in zip(batch.tolist(), features, strict=True)}
                progress.advance(len(batch), note=f"{self.store.speed:,.0f} s/s")
        return [states_of[i] for i in range(len(utterances))]
