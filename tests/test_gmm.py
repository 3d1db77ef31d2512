"""The mixture against the paper's loop, scikit-learn and closed forms."""

import copy
import itertools
import math
import resource

import numpy as np
import pytest
import torch
from reference import Mixture
from sklearn.mixture import GaussianMixture
from sklearn.mixture._gaussian_mixture import _compute_precision_cholesky

from sjepa import DiagonalGMM
from sjepa.targets.fit import GmmConfig, anchor_mixture, fit_mixture, initial_mixture


def random_mixture(components: int, dimension: int, seed: int, shift: float = 0.0) -> DiagonalGMM:
    g = torch.Generator().manual_seed(seed)
    weights = torch.rand(components, generator=g) + 0.1
    means = torch.randn(components, dimension, generator=g) + shift
    return DiagonalGMM.from_parameters(weights, means, torch.rand(components, dimension, generator=g) + 0.2)


def blobs(count: int, dimension: int, seed: int) -> torch.Tensor:
    g = torch.Generator().manual_seed(seed)
    centres = 3 * torch.randn(5, dimension, generator=g)
    which = torch.randint(5, (count,), generator=g)
    return centres[which] + torch.randn(count, dimension, generator=g) * (0.5 + which[:, None] / 4)


def sklearn_twin(gmm: DiagonalGMM, **settings: object) -> GaussianMixture:
    """scikit-learn's mixture with our parameters."""
    twin = GaussianMixture(gmm.components, covariance_type="diag", reg_covar=0.0, **settings)
    twin.weights_, twin.means_, twin.covariances_ = (
        t.double().numpy() for t in (gmm.weights, gmm.means, gmm.variances)
    )
    twin.precisions_cholesky_ = _compute_precision_cholesky(twin.covariances_, "diag")
    return twin


def slow_posterior(gmm: DiagonalGMM, features: torch.Tensor) -> torch.Tensor:
    """The paper's equation, one component after the other, in fp64."""
    columns = []
    for k in range(gmm.components):
        delta = features.double() - gmm.means[k].double()
        variance = gmm.variances[k].double()
        log_p = (
            -0.5 * gmm.dimension * math.log(2 * math.pi)
            - 0.5 * variance.log().sum()
            - 0.5 * (delta**2 / variance).sum(1)
        )
        columns.append(log_p + gmm.weights[k].double().log())
    return torch.softmax(torch.stack(columns, 1), 1)


@pytest.mark.parametrize(("components", "dimension", "shift"), [(7, 5, 0.0), (100, 39, 0.0), (50, 20, 30.0)])
def test_posterior_equals_the_papers_slow_loop(components: int, dimension: int, shift: float) -> None:
    gmm = random_mixture(components, dimension, 0, shift)
    features = torch.randn(400, dimension, generator=torch.Generator().manual_seed(1)) * 1.5 + shift
    assert (gmm.posterior(features).double() - slow_posterior(gmm, features)).abs().max() <= 1e-5


def test_a_component_of_hardly_any_variance_does_not_blur_the_others() -> None:
    gmm = random_mixture(50, 39, 0)
    gmm.variances[7] = 1e-6
    features = torch.randn(400, 39, generator=torch.Generator().manual_seed(1))
    assert (gmm.posterior(features).double() - slow_posterior(gmm, features)).abs().max() <= 1e-5


def test_digital_silence_has_a_component_of_its_own_and_em_does_not_fall() -> None:
    speech = 20 * blobs(6000, 39, 3)
    silent = torch.full((300, 39), -150.0)
    gmm, curve = fit_mixture(torch.cat([speech, silent]), 20, GmmConfig(), seed=0)
    assert max(a - b for a, b in itertools.pairwise(curve)) < 0.01
    nearly = silent + torch.randn(silent.shape, generator=torch.Generator().manual_seed(2))
    for features in (speech, silent, nearly):
        assert (gmm.posterior(features).double() - slow_posterior(gmm, features)).abs().max() <= 5e-4
    assert float(gmm.posterior(silent[:1]).max()) == pytest.approx(1.0)


def test_posterior_equals_scikit_learns() -> None:
    gmm = random_mixture(12, 8, 1)
    features = torch.randn(500, 8)
    assert (
        np.abs(gmm.posterior(features).numpy() - sklearn_twin(gmm).predict_proba(features.double().numpy())).max()
        <= 1e-5
    )


def test_em_agrees_with_scikit_learn_from_the_same_start() -> None:
    features = blobs(3000, 6, 3)
    start = random_mixture(5, 6, 4)
    start.means.copy_(features[:5])
    start.centre.copy_(start.weights @ start.means)
    twin = sklearn_twin(start)
    x = features.double().numpy()
    for _ in range(15):
        _, log_resp = twin._e_step(x)
        twin._m_step(x, log_resp)
        start.maximize(start.expect(features))
    np.testing.assert_allclose(start.weights.numpy(), twin.weights_, atol=2e-4)
    np.testing.assert_allclose(start.means.numpy(), twin.means_, atol=5e-3)
    np.testing.assert_allclose(start.variances.numpy(), twin.covariances_, rtol=1e-2, atol=1e-3)


def test_log_likelihood_never_falls_and_equals_scikit_learns() -> None:
    features = blobs(4000, 10, 5)
    gmm, curve = fit_mixture(features, 12, GmmConfig(em_iterations=20), seed=0)
    assert all(b >= a - 1e-4 for a, b in itertools.pairwise(curve))
    assert curve[-1] > curve[0] + 0.01
    statistics = gmm.expect(features)
    ours = float(statistics.log_likelihood / statistics.frames)
    assert ours == pytest.approx(sklearn_twin(gmm).score(features.double().numpy()), abs=1e-3)


def test_the_fit_is_as_good_as_scikit_learns_own() -> None:
    features = blobs(4000, 10, 6)
    gmm, _ = fit_mixture(features, 5, GmmConfig(), seed=1)
    theirs = GaussianMixture(5, covariance_type="diag", n_init=3, random_state=0).fit(features.numpy())
    statistics = gmm.expect(features)
    assert float(statistics.log_likelihood / statistics.frames) >= theirs.score(features.numpy()) - 0.1


def test_chunks_do_not_change_the_statistics(monkeypatch: pytest.MonkeyPatch) -> None:
    gmm, features = random_mixture(6, 4, 7), torch.randn(1000, 4)
    whole = gmm.expect(features).flatten()
    monkeypatch.setattr("sjepa.targets.gmm.ROWS_PER_CHUNK", 77)
    torch.testing.assert_close(gmm.expect(features).flatten(), whole, rtol=1e-5, atol=1e-3)


def test_the_online_update_equals_the_papers_closed_form() -> None:
    gmm = random_mixture(6, 5, 8)
    old = {name: tensor.double().clone() for name, tensor in gmm.state_dict().items()}
    x = torch.randn(300, 5)
    q = gmm.posterior(x)
    gmm.update_online(gmm.statistics(gmm.powers(x), q), decay=0.9, minimum_count=0.01)
    x, q = x.double(), q.double()
    for k in range(6):
        count = sum(float(q[n, k]) for n in range(300))
        mean = sum(q[n, k] * x[n] for n in range(300)) / count
        variance = sum(q[n, k] * (x[n] - mean) ** 2 for n in range(300)) / count
        torch.testing.assert_close(gmm.means[k].double(), 0.9 * old["means"][k] + 0.1 * mean, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(
            gmm.variances[k].double(), 0.9 * old["variances"][k] + 0.1 * variance, rtol=1e-4, atol=1e-5
        )
        assert float(gmm.weights[k]) == pytest.approx(0.9 * float(old["weights"][k]) + 0.1 * count / 300, abs=1e-5)
    assert float(gmm.weights.sum()) == pytest.approx(1.0, abs=1e-6)


def test_the_update_by_frames_is_stepwise_em() -> None:
    """The running sums of q, q x and q x^2 decay, the parameters are what those sums say."""
    gmm = random_mixture(6, 5, 12)
    weights, means, variances = (tensor.double().clone() for tensor in (gmm.weights, gmm.means, gmm.variances))
    sums = torch.cat([weights[:, None], weights[:, None] * means, weights[:, None] * (variances + means**2)], dim=1)
    for seed in range(4):
        x = torch.randn(40, 5, generator=torch.Generator().manual_seed(seed))
        q = gmm.posterior(x)
        q[:, seed] = 0.0  # a component that the batch does not have, and one that it hardly has
        q[:, seed + 1] *= 1e-4
        q /= q.sum(1, keepdim=True)
        gmm.update_online(gmm.statistics(gmm.powers(x), q), decay=0.8, minimum_count=0.01, by_frames=True)
        x, q = x.double(), q.double()
        sums = 0.8 * sums + 0.2 * (q.t() @ torch.cat([torch.ones(40, 1), x, x**2], dim=1)) / 40
    mean, second = (sums[:, 1:] / sums[:, :1]).chunk(2, dim=1)
    torch.testing.assert_close(gmm.weights.double(), sums[:, 0], rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(gmm.means.double(), mean, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(gmm.variances.double(), second - mean**2, rtol=1e-3, atol=1e-5)


def test_the_update_by_frames_does_not_floor_a_batchs_own_variance() -> None:
    """Two equal frames only add their distance to a variance: the floor applies to the result."""
    gmm = DiagonalGMM.from_parameters(torch.ones(1), torch.zeros(1, 2), torch.ones(1, 2), floor=0.5)
    x = torch.full((2, 2), 3.0)
    gmm.update_online(gmm.statistics(gmm.powers(x), torch.ones(2, 1)), decay=0.9, minimum_count=0.01, by_frames=True)
    torch.testing.assert_close(gmm.means, torch.full((1, 2), 0.3))
    torch.testing.assert_close(gmm.variances, torch.full((1, 2), 0.9 * 1 + 0.1 * 9 - 0.3**2))


def test_small_batches_shrink_variances_unless_the_update_goes_by_frames() -> None:
    """Two frames a component and batch: their spread about their own mean is half the true one."""
    true = DiagonalGMM.from_parameters(torch.ones(20), 30.0 * torch.eye(20), torch.ones(20, 20))
    spreads = {}
    for by_frames in (False, True):
        gmm, g = copy.deepcopy(true), torch.Generator().manual_seed(0)
        for _ in range(1000):
            x = true.means[torch.randint(20, (40,), generator=g)] + torch.randn(40, 20, generator=g)
            gmm.update_online(gmm.statistics(gmm.powers(x), gmm.posterior(x)), 0.99, 0.01, by_frames)
        spreads[by_frames] = float(gmm.variances.mean())
    assert spreads[False] < 0.6
    assert spreads[True] == pytest.approx(1.0, abs=0.1)


@pytest.mark.parametrize("update", ["parameters", "frames"])
def test_the_centre_moves_with_features_that_drift(update: str) -> None:
    """Against sums over raw features in fp64, without a centre. About one that stays, fp32 loses the variances."""
    g = torch.Generator().manual_seed(0)
    places = 30.0 * torch.randn(6, 5, generator=g)
    moving, fixed = (DiagonalGMM.from_parameters(torch.ones(6), places, torch.ones(6, 5)) for _ in range(2))
    slow = Mixture(*(t.double().clone() for t in (moving.weights, moving.means, moving.variances, moving.floor)))
    start = fixed.centre.clone()
    for step in range(100):
        x = places.repeat(10, 1) + torch.randn(60, 5, generator=g) + 12.0 * step
        for gmm in (moving, fixed):
            gmm.update_online(gmm.statistics(gmm.powers(x), gmm.posterior(x)), 0.1, 0.01, update == "frames")
        fixed.centre.copy_(start)
        slow.update(x.double(), torch.softmax(slow.log_joint(x.double()), dim=1), 0.1, 0.01, update)
    assert float((moving.centre - x.mean(0)).abs().max()) < 20.0
    torch.testing.assert_close(moving.means.double(), slow.means, rtol=0, atol=1e-2)
    torch.testing.assert_close(moving.variances.double(), slow.variances, rtol=1e-2, atol=1e-3)
    assert float((fixed.variances - slow.variances).abs().max()) > 0.2


def test_posteriors_and_updates_do_not_depend_on_the_centre() -> None:
    one, other = random_mixture(6, 5, 14), random_mixture(6, 5, 14)
    other.centre.add_(3.0)
    x = torch.randn(300, 5)
    torch.testing.assert_close(one.posterior(x), other.posterior(x), rtol=1e-4, atol=1e-5)
    for mixture in (one, other):
        mixture.update_online(mixture.statistics(mixture.powers(x), mixture.posterior(x)), 0.9, 0.01)
    torch.testing.assert_close(one.means, other.means, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(one.variances, other.variances, rtol=1e-3, atol=1e-4)
    # The distance to the mean of the features shrinks by the decay.
    torch.testing.assert_close(other.centre - x.mean(0), 0.9 * (random_mixture(6, 5, 14).centre + 3.0 - x.mean(0)))


def test_a_component_that_is_not_seen_keeps_its_parameters() -> None:
    gmm = random_mixture(4, 3, 9)
    gmm.means[2] += 1000.0
    mean, variance = gmm.means[2].clone(), gmm.variances[2].clone()
    x = torch.randn(100, 3)
    for _ in range(20):
        gmm.update_online(gmm.statistics(gmm.powers(x), gmm.posterior(x)), decay=0.5, minimum_count=0.01)
    assert torch.equal(gmm.means[2], mean)
    assert torch.equal(gmm.variances[2], variance)
    assert float(gmm.weights.sum()) == pytest.approx(1.0, abs=1e-6)


def test_a_restarted_component_has_the_mean_variance_and_an_equal_share_of_the_weight() -> None:
    gmm, frames = random_mixture(5, 3, 15), torch.randn(2, 3, generator=torch.Generator().manual_seed(15))
    before = copy.deepcopy(gmm)
    gmm.restart(torch.tensor([1, 4]), frames)
    weights = np.array([0.2 if k in (1, 4) else float(before.weights[k]) for k in range(5)])
    np.testing.assert_allclose(gmm.weights.numpy(), weights / weights.sum(), rtol=1e-6)
    torch.testing.assert_close(gmm.variances[[1, 4]], before.variances.mean(0).expand(2, 3))
    assert torch.equal(gmm.means[[1, 4]], frames)
    for name in ("means", "variances"):
        assert torch.equal(getattr(gmm, name)[[0, 2, 3]], getattr(before, name)[[0, 2, 3]])


@pytest.mark.parametrize("value", [math.nan, 1e25])  # the square of the second is infinite
def test_a_batch_that_is_not_finite_changes_nothing(value: float) -> None:
    gmm = random_mixture(4, 3, 10)
    before = copy.deepcopy(gmm.state_dict())
    x = torch.randn(50, 3)
    some = gmm.posterior(x)
    x[3, 1] = value
    for q in (gmm.posterior(x), some):
        for by_frames in (False, True):
            gmm.update_online(gmm.statistics(gmm.powers(x), q), 0.9, 0.01, by_frames)
    for name, tensor in gmm.state_dict().items():
        torch.testing.assert_close(tensor, before[name], rtol=1e-6, atol=0)


def test_nothing_of_size_frames_by_components_by_dimension_is_made() -> None:
    gmm = random_mixture(500, 768, 11)
    features = torch.randn(20_000, 768)  # N K D would be 30 GB
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    gmm.expect(features)
    gmm.posterior(features)
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 2**20 < 1.0


def test_variances_never_fall_below_the_floor() -> None:
    features = torch.cat([torch.zeros(500, 2), torch.randn(500, 2)])
    gmm, _ = fit_mixture(features, 4, GmmConfig(relative_variance_floor=0.01), seed=0)
    assert (gmm.variances >= 0.01 * features.var(0, unbiased=False) * 0.999).all()
    assert torch.isfinite(gmm.posterior(features)).all()


def test_em_starts_from_the_clusters_of_k_means() -> None:
    """Their sizes, means and variances. Fewer than two frames have no variance, and take that of all frames."""
    sizes, places = (30, 9, 2, 1, 0), (0.0, 20.0, 40.0, 60.0, 80.0)
    g = torch.Generator().manual_seed(5)
    parts = [place + torch.randn(size, 3, generator=g) for size, place in zip(sizes, places, strict=True)]
    frames, centres = torch.cat(parts), torch.tensor(places)[:, None].expand(5, 3).contiguous()
    gmm = initial_mixture(frames, centres, torch.full((3,), 1e-6))
    for k, (part, size) in enumerate(zip(parts, sizes, strict=True)):
        mean = part.numpy().mean(0) if size else centres[k].numpy()
        variance = (part if size > 1 else frames).double().numpy().var(0)
        assert float(gmm.weights[k]) == pytest.approx((size or 1e-3) / (42 + 1e-3), rel=1e-4)
        np.testing.assert_allclose(gmm.means[k].numpy(), mean, rtol=1e-5)
        np.testing.assert_allclose(gmm.variances[k].numpy(), variance, rtol=1e-4)


def test_an_anchored_mixture_takes_its_posteriors_along_and_then_three_iterations_of_em() -> None:
    before = blobs(400, 4, 6)
    after = torch.tanh(before @ torch.randn(4, 4, generator=torch.Generator().manual_seed(6))) + 0.1 * blobs(400, 4, 7)
    gmm, _ = fit_mixture(before, 5, GmmConfig(), seed=0)
    q, x = slow_posterior(gmm, before), after.double()
    anchor_mixture(gmm, before, after, GmmConfig(relative_variance_floor=0.1))
    floor = 0.1 * x.var(0, unbiased=False)
    for _ in range(4):
        count = q.sum(0)
        means = q.t() @ x / count[:, None]
        variances = torch.stack([q[:, k] @ (x - means[k]) ** 2 / count[k] for k in range(5)])
        slow = Mixture(count / 400, means, torch.maximum(variances, floor), floor)
        q = torch.softmax(slow.log_joint(x), dim=1)
    assert (slow.variances == floor).any()
    assert (slow.variances > floor).any()
    for name in ("weights", "means", "variances", "floor"):
        torch.testing.assert_close(getattr(gmm, name).double(), getattr(slow, name), rtol=1e-3, atol=1e-4)


def test_an_empty_component_moves_to_the_middle_of_the_other_features() -> None:
    before = blobs(400, 4, 6)
    after = 9.0 + blobs(400, 4, 7)
    gmm, _ = fit_mixture(before, 5, GmmConfig(), seed=0)
    gmm.means[2], gmm.variances[2], gmm.weights[2] = 60.0, 0.5, 1e-10
    anchor_mixture(gmm, before, after, GmmConfig())
    torch.testing.assert_close(gmm.means[2], after.mean(0))
    torch.testing.assert_close(gmm.variances[2], after.var(0, unbiased=False))


def test_a_mixture_survives_the_disk(tmp_path) -> None:
    gmm = random_mixture(5, 4, 13)
    gmm.save(tmp_path / "gmm.safetensors")
    features = torch.randn(10, 4)
    assert torch.equal(DiagonalGMM.load(tmp_path / "gmm.safetensors").posterior(features), gmm.posterior(features))
