"""Where a spoken query fits best in documents: dynamic time warping, all documents of a query at once."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

SHORTEST = 5  # frames of a query that is looked for
TINY = 1e-9
PIECE = 2**26  # distances that are computed at once


def standardise(features: Sequence[Tensor]) -> list[Tensor]:
    """Features of zero mean and unit deviation over all frames: each (T, D)."""
    joined = torch.cat(list(features))
    mean, deviation = joined.mean(0), joined.std(0).clamp(min=TINY)
    return [(feature - mean) / deviation for feature in features]


def match_scores(query: Tensor, documents: Sequence[Tensor]) -> Tensor:
    """How well a query fits in each document: minus the mean distance along its best path, (documents,).

    A path begins and ends anywhere in the document. With each frame of the query it goes on by 0, 1 or 2 frames.
    The distance of two frames is exp(1 - cosine) - 1, scaled to 0 … 1 over the document for each frame of the query.
    """
    if len(query) < SHORTEST:
        return query.new_zeros(len(documents))
    order = sorted(range(len(documents)), key=lambda index: len(documents[index]))
    scores = query.new_zeros(len(documents))
    place = 0
    while place < len(order):  # documents of like length together, so that little is padding
        size = max(1, PIECE // (len(query) * len(documents[order[min(len(order), place + 512) - 1]])))
        group = order[place : place + min(size, 512)]
        scores[group] = path_scores(query, [documents[index] for index in group])
        place += len(group)
    return scores


def path_scores(query: Tensor, documents: Sequence[Tensor]) -> Tensor:
    lengths = torch.tensor([len(document) for document in documents], device=query.device)
    padded = pad_sequence(list(documents), batch_first=True)  # (N, T, D)
    outside = torch.arange(padded.shape[1], device=query.device) >= lengths[:, None]  # (N, T)
    cosines = unit(query) @ unit(padded).transpose(1, 2)  # (N, Q, T)
    distances = torch.exp(1 - cosines) - 1
    lowest = distances.masked_fill(outside[:, None], torch.inf).amin(2, keepdim=True)
    highest = distances.masked_fill(outside[:, None], -torch.inf).amax(2, keepdim=True)
    distances = (distances - lowest) / (highest - lowest).clamp(min=TINY)
    distances = distances.masked_fill(outside[:, None], torch.inf)
    cost = distances[:, 0]
    for row in distances.unbind(1)[1:]:
        one, two = (torch.nn.functional.pad(cost, (step, 0), value=torch.inf)[:, : cost.shape[1]] for step in (1, 2))
        cost = row + torch.minimum(cost, torch.minimum(one, two))
    return -cost.amin(1) / len(query)


def unit(features: Tensor) -> Tensor:
    return features / features.norm(dim=-1, keepdim=True).clamp(min=torch.finfo(features.dtype).tiny)


def standardise_scores(scores: Tensor) -> Tensor:
    """Scores of a query over all documents with zero mean and unit deviation."""
    return (scores - scores.mean()) / scores.std(correction=0).clamp(min=TINY)
