"""K-means against all distances, and frame by frame."""

import pytest
import torch
from test_gmm import blobs

from sjepa import UserError
from sjepa.targets.fit import GmmConfig, fit_kmeans
from sjepa.targets.kmeans import find_nearest, kmeans


def test_k_means_finds_separate_clusters_and_reseeds_empty_ones() -> None:
    g = torch.Generator().manual_seed(0)
    truth = torch.tensor([[0.0, 0.0], [10.0, 0.0], [0.0, 10.0], [10.0, 10.0]])
    frames = truth.repeat_interleave(500, 0) + 0.3 * torch.randn(2000, 2, generator=g)
    best = min(cost(frames, kmeans(frames, 4, 10, torch.Generator().manual_seed(s))) for s in range(5))
    assert best == pytest.approx(2 * 0.3**2, rel=0.1)
    copies = torch.cat([torch.zeros(1000, 2), torch.ones(20, 2)])  # most starting centres coincide
    assert len(set(find_nearest(copies, kmeans(copies, 4, 8, torch.Generator().manual_seed(1))).tolist())) == 2


def cost(frames: torch.Tensor, centres: torch.Tensor) -> float:
    return float((frames - centres[find_nearest(frames, centres)]).square().sum(1).mean())


def test_the_nearest_centre_is_that_of_all_distances() -> None:
    """Centres at very different distances from zero, where their norms decide."""
    g = torch.Generator().manual_seed(3)
    centres = torch.randn(30, 8, generator=g) * torch.logspace(-1, 1, 30)[:, None]
    frames = 2 * torch.randn(500, 8, generator=g)
    assert torch.equal(find_nearest(frames, centres), torch.cdist(frames, centres).argmin(1))


def test_k_means_moves_each_centre_frame_by_frame_as_sculley_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches of 16, and copies of one frame, so that some clusters are empty and start again."""
    monkeypatch.setattr("sjepa.targets.kmeans.BATCH", 16)
    frames = torch.cat([blobs(60, 3, 4), torch.full((40, 3), 2.0)]) + 7.0
    restarted = 0
    for seed in range(4):
        g = torch.Generator().manual_seed(seed)
        centres, seen = frames[torch.randperm(100, generator=g)[:12]].double(), [0] * 12
        for _ in range(3):
            order, filled = torch.randperm(100, generator=g), set()
            for batch in order.split(16):
                nearest = [int((centres - x).square().sum(1).argmin()) for x in frames[batch]]
                for x, k in zip(frames[batch], nearest, strict=True):
                    seen[k] += 1
                    centres[k] += (x - centres[k]) / seen[k]
                filled.update(nearest)
            for place, k in enumerate(sorted(set(range(12)) - filled)):
                centres[k], seen[k] = frames[order[place]], 0
                restarted += 1
        found = kmeans(frames, 12, 3, torch.Generator().manual_seed(seed))
        torch.testing.assert_close(found.double(), centres, rtol=0, atol=1e-4)
    assert restarted > 4


def test_a_k_means_codebook_assigns_the_nearest_centre() -> None:
    frames = blobs(800, 6, 12)
    codebook, _ = fit_kmeans(frames, 10, GmmConfig(), seed=0)
    distances = torch.cdist(frames, codebook.means)
    assert torch.equal(codebook.posterior(frames).argmax(1), distances.argmin(1))


def test_more_components_than_frames_is_a_clear_error() -> None:
    with pytest.raises(UserError, match="50 clusters need at least as many frames; there are 20"):
        kmeans(torch.randn(20, 3), 50, 5, torch.Generator())
