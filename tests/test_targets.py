"""Kinds of targets, the target encoder and the choice of layer."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from conftest import babble
from small_runs import lines

from sjepa import Encoder, UserError
from sjepa.audio.mfcc import MfccConfig, log_mel, mfcc
from sjepa.config import Config
from sjepa.model.encoder_config import EncoderConfig
from sjepa.model.predictor import ClusterHead
from sjepa.targets import ema
from sjepa.targets.clusters import Clusters, ClustersInfo, clusters_from_parts, save_clusters
from sjepa.targets.features import Features
from sjepa.targets.fit import GmmConfig, find_clusters, fit_mixture
from sjepa.targets.kinds import KINDS, FeatureInputs, TargetKind, TargetName, mfcc_features
from sjepa.targets.layer import LayerChoice, LayerConfig, effective_rank, measure_effective_ranks
from sjepa.targets.projection import Projection
from sjepa.targets.targets import Targets
from sjepa.train.loop import pretrain

SMALL = EncoderConfig(
    hidden_size=32, layers=3, heads=2, inner_size=64, conv_channels=16, position_kernel=16, position_groups=2
)


def audio(batch: int = 6, seconds: float = 1.5) -> torch.Tensor:
    return torch.stack([torch.from_numpy(babble(seconds, seed)) for seed in range(batch)])


def fitted(kind: TargetName, clean: torch.Tensor, layer: int = 1, **settings: Any) -> Targets:
    """Targets of one kind, fitted to some audio; they read `layer` from then on."""
    torch.manual_seed(0)
    source = FeatureInputs(Encoder(SMALL), MfccConfig(), seed=3)
    settings = {"k": 7 if kind.startswith("mfcc") else 9} | settings
    targets = Targets(kind, source, GmmConfig(decay=0.9), **settings)
    targets.fit(targets.frames_to_fit(clean, layer).flatten(0, 1))
    return targets


def q_of(targets: Targets, clean: torch.Tensor, layer: int = 1) -> torch.Tensor:
    """Targets of a batch. An online mixture then learns from it, as at the end of a step."""
    q, statistics = targets(targets.frame_features(clean, layer))
    if statistics is not None:
        targets.update(statistics)
    return q


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_gives_a_distribution_at_every_frame_and_uses_its_components(kind: TargetName) -> None:
    clean = audio()
    targets = fitted(kind, clean)
    q = q_of(targets, clean)
    assert q.shape == (6, 74, targets.components)
    torch.testing.assert_close(q.sum(-1), torch.ones(6, 74))
    assert len(q.argmax(-1).unique()) >= 3
    if targets.hard:
        assert set(q.unique().tolist()) == {0.0, 1.0}
    else:
        assert ((q > 0.01) & (q < 0.99)).any()


@pytest.mark.parametrize("kind", KINDS)
def test_the_file_of_clusters_gives_the_targets_of_every_kind(kind: TargetName, tmp_path: Path) -> None:
    """A file rebuilds features that do not read the encoder from their buffers alone."""
    clean = audio()
    targets = fitted(kind, clean)
    layer = 1 if KINDS[kind].reads_encoder else None
    info = ClustersInfo(kind, layer, 1, 1, targets.centred, targets.temperature, targets.hard, MfccConfig(), encoder="")
    model = torch.nn.ModuleDict({"head": ClusterHead(8, targets.components)}).state_dict()
    save_clusters(tmp_path / "clusters.safetensors", clusters_from_parts(model, targets.state_dict(), info), info)
    read = Clusters.load(tmp_path / "clusters.safetensors")
    features = targets.features(clean, 1)
    for waveform, hidden_state, q in zip(clean, features, targets(targets.frame_features(clean, 1))[0], strict=True):
        assert torch.equal(read.mixture_units(read.mixture_features(waveform, hidden_state)), q.argmax(-1))


class NewFeatures(Features):
    def __init__(self, shift: int, dimension: int):
        super().__init__()
        self.shift, self.dimension = shift, dimension

    def forward(self, clean: torch.Tensor, layer: int | None) -> torch.Tensor:
        return log_mel(clean, 20, self.shift)


@pytest.mark.parametrize(
    ("shift", "dimension", "words"),
    [
        (160, 20, "NewFeatures gives 148 frames where the encoder has 74"),
        (320, 24, "NewFeatures has dimension 24, but frames of width 20"),
    ],
)
def test_features_of_another_rate_or_width_are_named(
    shift: int, dimension: int, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(KINDS, "new", TargetKind(lambda source: NewFeatures(shift, dimension), fit_mixture))
    with pytest.raises(ValueError, match=words):
        fitted("new", audio())


def test_hard_targets_are_the_argmax_of_the_soft_ones_and_clusters_move_the_same() -> None:
    clean = audio()
    soft, hard, warm = (
        fitted("online-gmm", clean, **settings) for settings in ({}, {"hard": True}, {"temperature": 5.0})
    )
    for _ in range(3):
        q, one_hot, tempered = (q_of(targets, clean) for targets in (soft, hard, warm))
        assert torch.equal(one_hot.argmax(-1), q.argmax(-1))
        torch.testing.assert_close(tempered, torch.softmax(q.clamp(min=1e-38).log() / 5, -1), rtol=1e-3, atol=2e-4)
    torch.testing.assert_close(hard.codebook.means, soft.codebook.means)
    torch.testing.assert_close(warm.codebook.means, soft.codebook.means)


def test_a_mixture_learns_from_whole_audio_if_targets_are_at_other_times() -> None:
    clean = audio()
    targets = fitted("online-gmm", clean)
    features = targets.frame_features(clean, 1)
    aligned = features[:, 3:20].flip(1)
    q, statistics = targets(features, aligned)
    torch.testing.assert_close(q, targets.codebook.posterior(aligned))
    assert torch.equal(statistics, targets(features)[1])


def test_centred_targets_do_not_depend_on_gain() -> None:
    """A gain adds a constant to every frame's first cepstrum, and nothing to the others."""
    clean = audio()
    found = {}
    for centred in (False, True):
        targets = fitted("mfcc-gmm", clean, centred=centred)
        found[centred] = [q_of(targets, gain * clean) for gain in (1.0, 0.3)]
    torch.testing.assert_close(*found[True], rtol=0, atol=2e-3)
    assert (found[False][0] - found[False][1]).abs().max() > 0.5


def test_centred_encoder_features_have_no_mean_in_fit_and_use() -> None:
    clean = audio()
    targets = fitted("online-gmm", clean, centred=True)
    plain = fitted("online-gmm", clean).frame_features(clean, 1)
    torch.testing.assert_close(targets.frame_features(clean, 1), plain - plain.mean(1, keepdim=True))
    torch.testing.assert_close(
        targets.frames_to_fit(clean, 1).mean(1), torch.zeros(6, SMALL.hidden_size), rtol=0, atol=1e-5
    )


def perplexity(q: torch.Tensor) -> float:
    mean = q.flatten(0, 1).mean(0)
    return float(torch.exp(-torch.xlogy(mean, mean).sum()))


def test_an_anchored_mixture_keeps_its_components_on_another_layer() -> None:
    """Carried on as it is, it gives nearly all frames of the new layer to one component."""
    clean = audio(12)
    carried, anchored = (fitted("online-gmm", clean, layer=0) for _ in range(2))
    for targets in (carried, anchored):  # untrained layers are much alike
        norm = cast(Encoder, targets.target_encoder).encoder.layers[1].final_layer_norm
        generator = torch.Generator().manual_seed(0)
        for parameter in norm.parameters():
            parameter.data.copy_(torch.randn(parameter.shape, generator=generator))
    before = carried.codebook.posterior(carried.frame_features(clean, 0))
    anchored.anchor(anchored.layer_features(clean, (0, 1)).flatten(0, 1))
    after, left = (targets.codebook.posterior(targets.frame_features(clean, 1)) for targets in (anchored, carried))
    assert perplexity(left) < 0.5 * perplexity(before)
    assert perplexity(after) > 0.8 * perplexity(before)
    agree = (after.argmax(-1) == before.argmax(-1)).float().mean()
    assert agree > 0.6


def test_a_component_far_from_all_frames_restarts_at_one_of_them() -> None:
    clean = audio()
    targets = fitted("online-gmm", clean)
    features = targets.frame_features(clean, 1)
    targets.codebook.means[4] += 100.0
    others = targets.codebook.means.clone()
    assert targets.codebook.posterior(features)[..., 4].sum() < 1e-3
    assert targets.reseed([4], clean, 1, seed=0) == 1
    distance = (features.flatten(0, 1) - targets.codebook.means[4]).norm(dim=1)
    assert distance.min() == 0
    assert torch.equal(targets.codebook.means[:4], others[:4])
    assert targets.codebook.posterior(features)[..., 4].sum() > 1
    assert targets.codebook.weights.sum() == pytest.approx(1.0)


def test_frozen_targets_stay_and_online_ones_move() -> None:
    clean, other = audio(), audio(4) * 0.5
    for kind, moves in (("mfcc-gmm", False), ("online-gmm", True), ("encoder-kmeans", False), ("best-rq", False)):
        targets = fitted(kind, clean)
        before = targets.codebook.means.clone()
        q_of(targets, other)
        assert torch.equal(before, targets.codebook.means) != moves
        encoder = Encoder(SMALL)
        weights = [p.clone() for p in targets.target_encoder.parameters()] if targets.target_encoder else []
        targets.follow(encoder, 0.5)
        if weights:
            still = all(torch.equal(a, b) for a, b in zip(weights, targets.target_encoder.parameters(), strict=True))
            assert still != moves


def test_the_posterior_of_a_step_is_taken_before_its_update() -> None:
    clean = audio()
    targets = fitted("online-gmm", clean)
    features = targets.features(clean, 1)
    expected = targets.codebook.posterior(features)
    torch.testing.assert_close(q_of(targets, clean), expected, rtol=1e-4, atol=1e-5)
    assert (targets.codebook.posterior(features) - expected).abs().max() > 1e-4


def test_encoder_features_are_the_active_layers_output_of_clean_audio() -> None:
    clean = audio()
    targets = fitted("encoder-gmm", clean, layer=2)
    assert targets.target_encoder is not None
    expected = targets.target_encoder(clean).hidden_states[3]
    torch.testing.assert_close(targets.features(clean, 2), expected)
    assert not targets.target_encoder.training


def test_mfcc_targets_are_posteriors_over_mfccs() -> None:
    clean = audio()
    targets = fitted("mfcc-gmm", clean)
    torch.testing.assert_close(
        q_of(targets, clean), targets.codebook.posterior(mfcc(clean, MfccConfig())), rtol=1e-4, atol=1e-5
    )


def test_best_rq_is_the_nearest_code_of_the_normalised_projection() -> None:
    clean = audio()
    targets = fitted("best-rq", clean)
    features = targets.features(clean, None)
    torch.testing.assert_close(features.norm(dim=-1), torch.ones(6, 74))
    distances = torch.cdist(features.flatten(0, 1), targets.codebook.means)
    assert torch.equal(q_of(targets, clean).argmax(-1).flatten(), distances.argmin(1))


def test_best_rq_may_have_more_codes_than_frames() -> None:
    """Its codes are drawn, not fitted."""
    clean = audio()
    targets = fitted("best-rq", clean, k=6 * 74 + 1)
    assert q_of(targets, clean).shape == (6, 74, 6 * 74 + 1)


def test_few_dimensions_are_the_principal_components_of_scikit_learn() -> None:
    from sklearn.decomposition import PCA

    clean = audio()
    targets = fitted("encoder-gmm", clean, dimensions=5)
    frames = targets.frames_to_fit(clean, 1).flatten(0, 1)
    expected = PCA(5).fit_transform(frames.numpy())
    found = targets.projection(frames).numpy()
    signs = np.sign((expected * found).sum(0))
    np.testing.assert_allclose(found, expected * signs, atol=1e-4)
    posterior = targets.codebook.posterior(torch.from_numpy(found)).view(6, 74, -1)
    torch.testing.assert_close(q_of(targets, clean), posterior, rtol=1e-4, atol=1e-5)
    assert targets.codebook.means.shape == (9, 5)


def test_discriminant_directions_are_those_of_scikit_learn() -> None:
    from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

    generator = torch.Generator().manual_seed(0)
    classes = torch.randint(9, (600,), generator=generator)
    mixing, centres = torch.randn(8, 8, generator=generator), 2.0 * torch.randn(9, 8, generator=generator)
    frames = torch.randn(600, 8, generator=generator) @ mixing + centres[classes]
    found = Projection(8, 5).fit(frames, classes).numpy()
    reference = LinearDiscriminantAnalysis(solver="eigen", n_components=5)
    expected = reference.fit_transform(frames.double().numpy(), classes.numpy())
    expected -= expected.mean(0)
    np.testing.assert_allclose(found, expected * np.sign((expected * found).sum(0)), rtol=1e-4, atol=1e-4)
    means = np.stack([found[classes == label].mean(0) for label in range(9)])
    np.testing.assert_allclose(np.cov((found - means[classes]).T, bias=True), np.eye(5), atol=1e-3)


def test_targets_use_the_directions_that_separate_their_own_clusters() -> None:
    clean = audio()
    targets = fitted("encoder-gmm", clean, dimensions=5, directions="discriminant")
    frames = targets.frames_to_fit(clean, 1).flatten(0, 1)
    classes = find_clusters(frames, targets.components, targets.config, targets.seed)
    assert len(classes.unique()) == targets.components
    torch.testing.assert_close(targets.projection(frames), Projection(frames.shape[1], 5).fit(frames, classes))
    posterior = targets.codebook.posterior(targets.projection(frames)).view(6, 74, -1)
    torch.testing.assert_close(q_of(targets, clean), posterior, rtol=1e-4, atol=1e-5)


def test_features_that_never_vary_do_not_disturb_discriminant_directions() -> None:
    generator = torch.Generator().manual_seed(0)
    classes = torch.randint(4, (400,), generator=generator)
    frames = torch.randn(400, 5, generator=generator) + 6.0 * torch.eye(5)[classes]
    constant = torch.cat([frames, torch.full((400, 2), 3.0)], dim=1)
    alone, together = (Projection(x.shape[1], 3).fit(x, classes) for x in (frames, constant))
    torch.testing.assert_close(together, alone, rtol=1e-3, atol=1e-3)


def test_as_many_dimensions_as_features_are_a_rotation_with_fixed_signs() -> None:
    """Distances stay. An eigenvector has two signs: the largest entry of each direction is positive."""
    frames = torch.randn(200, 6, generator=torch.Generator().manual_seed(0)) * torch.arange(1.0, 7.0) + 3.0
    projection = Projection(6, 6)
    found = projection.fit(frames)
    torch.testing.assert_close(torch.pdist(found), torch.pdist(frames), rtol=1e-4, atol=1e-5)
    rows = torch.linalg.lstsq(frames - frames.mean(0), found).solution.T
    assert all(row[row.abs().argmax()] > 0 for row in rows)


def test_posteriors_over_few_dimensions_are_softer() -> None:
    clean = audio(12)
    entropies = []
    for dimensions in (0, 4):
        q = q_of(fitted("encoder-gmm", clean, dimensions=dimensions), clean)
        entropies.append(float(-torch.xlogy(q, q).sum(-1).mean()))
    assert entropies[1] > 1.5 * entropies[0]


def test_silence_and_too_few_frames_are_refused() -> None:
    with pytest.raises(UserError, match="all frames have the same features"):
        fitted("mfcc-gmm", torch.zeros(4, 16_000))
    with pytest.raises(UserError, match="K = 7 components need at least as many frames; there are 1"):
        fitted("mfcc-gmm", audio(1)[:, :400])


def test_the_target_encoder_follows_by_the_stated_average() -> None:
    encoder = Encoder(SMALL)
    target = ema.copy_encoder(encoder)
    for p in encoder.parameters():
        p.data.add_(torch.randn_like(p))
    before = [p.clone() for p in target.parameters()]
    ema.follow(target, encoder, 0.99)
    for old, new, online in zip(before, target.parameters(), encoder.parameters(), strict=True):
        torch.testing.assert_close(new, 0.99 * old + 0.01 * online)
        assert not new.requires_grad


def test_a_target_encoder_that_equals_its_encoder_stays_equal_to_the_last_bit() -> None:
    encoder = Encoder(SMALL)
    target = ema.copy_encoder(encoder)
    for _ in range(100):
        ema.follow(target, encoder, 0.9999)
    for slow, online in zip(target.parameters(), encoder.parameters(), strict=True):
        assert torch.equal(slow, online)


def test_the_target_encoder_follows_for_many_steps_as_in_double_precision() -> None:
    encoder = Encoder(SMALL)
    target = ema.copy_encoder(encoder)
    exact = [p.detach().double() for p in target.parameters()]
    for step in range(50):
        for p in encoder.parameters():
            p.data.add_(torch.randn_like(p), alpha=0.01)
        decay = 0.999 if step % 2 else 0.9999
        ema.follow(target, encoder, decay)
        exact = [decay * slow + (1 - decay) * p.detach() for slow, p in zip(exact, encoder.parameters(), strict=True)]
    for slow, expected in zip(target.parameters(), exact, strict=True):
        torch.testing.assert_close(slow.double(), expected, rtol=1e-5, atol=1e-6)


def test_the_decay_starts_fast_and_flips_at_the_cadence() -> None:
    config = ema.EmaConfig(fast=0.9, slow=0.99)
    assert [ema.decay_at(step, 8, 3, config) for step in range(8)] == [0.9] * 3 + [0.99] * 3 + [0.9] * 2


def test_the_decay_moves_from_fast_to_slow_evenly_or_by_a_half_cosine() -> None:
    """Nine steps in intervals of two steps. The last interval has one step."""
    linear = ema.EmaConfig(fast=0.9, slow=0.98, schedule="linear")
    found = [ema.decay_at(step, 9, 2, linear) for step in range(9)]
    assert found == pytest.approx([0.9, 0.9, 0.92, 0.92, 0.94, 0.94, 0.96, 0.96, 0.98])
    cosine = ema.EmaConfig(fast=0.9, slow=0.98, schedule="cosine")
    found = [ema.decay_at(step, 9, 2, cosine) for step in range(0, 9, 2)]
    root = 0.04 / 2**0.5
    assert found == pytest.approx([0.9, 0.94 - root, 0.94, 0.94 + root, 0.98])
    assert ema.decay_at(0, 1, 1, linear) == 0.9  # a phase of one interval stays fast
    assert [ema.decay_at(step, 4, 2, linear) for step in range(4)] == pytest.approx([0.9, 0.9, 0.98, 0.98])


def test_effective_rank_has_its_closed_forms() -> None:
    g = torch.Generator().manual_seed(0)
    basis = torch.linalg.qr(torch.randn(200, 8, generator=g) - 0.0)[0]
    basis = torch.linalg.qr(basis - basis.mean(0))[0]  # orthonormal columns with zero mean
    assert float(effective_rank(basis + 5.0)) == pytest.approx(8.0, rel=1e-3)
    values = torch.tensor([4.0, 2.0, 1.0, 1.0, 0, 0, 0, 0])
    p = values / 8
    expected = math.exp(-float(torch.xlogy(p, p).sum()))
    assert float(effective_rank(basis * values)) == pytest.approx(expected, rel=1e-3)
    assert float(effective_rank(torch.ones(50, 1) @ torch.randn(1, 8, generator=g))) == pytest.approx(1.0, abs=0.7)


def test_effective_rank_agrees_with_singular_values() -> None:
    """Over a spectrum of five decades, where squares in fp32 would be lost; several layers at once."""
    features = np.random.default_rng(0).normal(size=(2, 300, 64)) * np.logspace(0, -5, 64)
    for found, layer in zip(effective_rank(torch.from_numpy(features).float()), features, strict=True):
        singular = np.linalg.svd(layer - layer.mean(0), compute_uv=False)
        p = singular / singular.sum()
        assert float(found) == pytest.approx(np.exp(-(p * np.log(p)).sum()), rel=1e-5)


def test_ranks_do_not_depend_on_how_many_utterances_are_encoded_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    encoder, clean = Encoder(SMALL), audio()
    whole = measure_effective_ranks(encoder, clean, 100, seed=0)
    monkeypatch.setattr("sjepa.targets.layer.CHUNK", 3)
    assert measure_effective_ranks(encoder, clean, 100, seed=0) == pytest.approx(whole, rel=1e-4)


def test_one_frame_that_is_not_finite_leaves_no_ranks() -> None:
    encoder, clean = Encoder(SMALL), audio()
    assert len(measure_effective_ranks(encoder, clean, 10**6, seed=0) or []) == 3
    clean[2, 5000] = math.nan
    assert measure_effective_ranks(encoder, clean, 10**6, seed=0) is None


def test_the_active_layer_is_the_argmax_of_smoothed_ranks() -> None:
    choice = LayerChoice(LayerConfig(smoothing=0.5))
    choice.observe([3.0, 5.0, 1.0])
    assert choice.active == 1
    choice.observe([6.0, 4.5, 1.0])
    assert choice.smoothed == [4.5, 4.75, 1.0]
    assert choice.active == 1
    choice.observe([6.0, 4.0, 1.0])
    assert choice.active == 0
    assert LayerChoice(LayerConfig(choice=2)).active == 2


def test_targets_that_are_not_online_cannot_be_refitted(micro: Callable[..., Config]) -> None:
    words = r"phase{}\.refit_every: only online-gmm targets can be fitted again; set it to 0"
    with pytest.raises(UserError, match=words.format(1)):
        micro(phase1={"refit_every": 0.1})
    with pytest.raises(UserError, match=words.format(2)):
        micro(phase2={"targets": "same", "refit_every": 0.1})
    assert micro(phase3={"targets": "same", "refit_every": 0.1}).phases[2].refit_every


def test_an_online_codebook_that_does_not_read_the_encoder_follows_no_layer(
    corpus: Path, tmp_path: Path, micro: Callable[..., Config], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(KINDS, "online-mfcc", TargetKind(mfcc_features, fit_mixture, online=True))
    config = micro(
        phase2={"targets": "online-mfcc", "layer_check_every": 1}, layer={"on_change": "anchor", "smoothing": 0.0}
    )
    ranks = iter([[1.0, 2.0], [9.0, 2.0]] * 10)  # the highest one changes with every check
    monkeypatch.setattr("sjepa.train.loop.measure_effective_ranks", lambda *_: next(ranks))
    assert pretrain(config, corpus, tmp_path / "run", show=False)
    assert len({line["active_layer"] for line in lines(tmp_path / "run", "layers")}) == 2
