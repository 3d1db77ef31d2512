"""Dynamic time warping of a spoken query against all documents at once."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

SHORTEST = 5  # frames of the shortest query that is scored
TINY = 1e-9
PIECE = 2**26  # distances per batch


def standardise(features: Sequence[Tensor]) -> list[Tensor]:
    """Scale features (T, D) to zero mean and unit deviation over all frames."""
    joined = torch.cat(list(features))
    mean, deviation = joined.mean(0), joined.std(0).clamp(min=TINY)
    return [(feature - mean) / deviation for feature in features]


def score_documents(query: Tensor, documents: Sequence[Tensor]) -> Tensor:
    """Return minus the mean distance along the best path of a query in each document: (documents,).

    A path starts and ends anywhere in the document. It advances by 0, 1 or 2 frames for each frame of the query. The
    distance of two frames is exp(1 - cosine) - 1, scaled to 0 … 1 over the document for each frame of the query.
    """
    if len(query) < SHORTEST:
        return query.new_zeros(len(documents))
    order = sorted(range(len(documents)), key=lambda index: len(documents[index]))
    scores = query.new_zeros(len(documents))
    place = 0
    while place < len(order):  # group documents of similar length, to reduce padding
        size = max(1, PIECE // (len(query) * len(documents[order[min(len(order), place + 512) - 1]])))
        group = order[place : place + min(size, 512)]
        scores[group] = score_paths(query, [documents[index] for index in group])
        place += len(group)
    return scores


def score_paths(query: Tensor, documents: Sequence[Tensor]) -> Tensor:
    lengths = torch.tensor([len(document) for document in documents], device=query.device)
    padded = pad_sequence(list(documents), batch_first=True)  # (N, T, D)
    outside = torch.arange(padded.shape[1], device=query.device) >= lengths[:, None]  # (N, T)
    cosines = normalize(query) @ normalize(padded).transpose(1, 2)  # (N, Q, T)
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


def normalize(features: Tensor) -> Tensor:
    return features / features.norm(dim=-1, keepdim=True).clamp(min=torch.finfo(features.dtype).tiny)


def standardise_scores(scores: Tensor) -> Tensor:
    """Scale the scores of a query over all documents to zero mean and unit deviation."""
    return (scores - scores.mean()) / scores.std(correction=0).clamp(min=TINY)
