"""A second implementation of S-JEPA training, from the paper alone: slow, plain, one file, no import of sjepa.

The encoder is Hugging Face's HubertModel, the mixture is its formula frame by component by dimension, AdamW is its
update rule, the effective rank is an SVD. Only random or fitted values come from outside: initial weights,
batches with their masks, the fitted mixtures and the new output layer of the head. `precision`
float64 separates rounding from errors. `config` is any object with the fields of `sjepa.config.Config`.
"""

import copy
import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import HubertConfig, HubertModel

# ---------------------------------------------------------------- network


def hubert(config) -> HubertModel:
    e = config.encoder
    return HubertModel(
        HubertConfig(
            hidden_size=e.hidden_size,
            num_hidden_layers=e.layers,
            num_attention_heads=e.heads,
            intermediate_size=e.inner_size,
            conv_dim=(e.conv_channels,) * 7,
            num_conv_pos_embeddings=e.position_kernel,
            num_conv_pos_embedding_groups=e.position_groups,
            hidden_act="gelu",
            feat_extract_norm="group",
            conv_bias=False,
            do_stable_layer_norm=False,
            hidden_dropout=0.0,
            attention_dropout=0.0,
            activation_dropout=0.0,
            feat_proj_dropout=0.0,
            layerdrop=0.0,
            mask_time_prob=0.0,
            mask_feature_prob=0.0,
            attn_implementation="eager",
        )
    )


class ScaleGradient(torch.autograd.Function):
    """The same forwards, gradients times `scale` backwards."""

    @staticmethod
    def forward(ctx, x, scale):
        ctx.scale = scale
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.scale, None


def encode(model: HubertModel, waveforms: Tensor, mask: Tensor | None, scale: float = 1.0) -> list[Tensor]:
    """Output of every transformer layer, 0 first. Masked frames are zero after the projection."""
    features = ScaleGradient.apply(model.feature_extractor(waveforms), scale)
    hidden = model.feature_projection(features.transpose(1, 2))
    hidden = hidden[0] if isinstance(hidden, tuple) else hidden
    if mask is not None:
        hidden = hidden.masked_fill(mask[:, :, None], 0.0)
    hidden = model.encoder.layer_norm(hidden + model.encoder.pos_conv_embed(hidden))  # the input of layer 0
    states = []
    for layer in model.encoder.layers:
        hidden = layer(hidden)
        hidden = hidden[0] if isinstance(hidden, tuple) else hidden
        states.append(hidden)
    return states


def predict(w: dict[str, Tensor], heads: int, z: Tensor, mask: Tensor) -> Tensor:
    """Mask token, positions, one post-norm ReLU transformer layer, a projection. `w`: names after `predictor.`."""
    x = torch.where(mask[:, :, None], w["mask_token"], z) + w["positions"][: z.shape[1]]
    linear = lambda name, y: y @ w[f"{name}.weight"].T + w[f"{name}.bias"]  # noqa: E731
    norm = lambda name, y: F.layer_norm(y, y.shape[-1:], w[f"{name}.weight"], w[f"{name}.bias"], 1e-5)  # noqa: E731
    b, t, d = x.shape
    split = lambda y: y.view(b, t, heads, d // heads).transpose(1, 2)  # noqa: E731
    q, k, v = (split(linear(f"layer.attention.{n}_proj", x)) for n in "qkv")
    share = torch.softmax(q @ k.transpose(2, 3) / math.sqrt(d // heads), dim=3)
    attended = linear("layer.attention.out_proj", (share @ v).transpose(1, 2).reshape(b, t, d))
    x = norm("layer.layer_norm", x + attended)
    inner = torch.relu(linear("layer.feed_forward.intermediate_dense", x))
    x = norm("layer.final_layer_norm", x + linear("layer.feed_forward.output_dense", inner))
    return linear("projection", x)


def cluster_logits(w: dict[str, Tensor], x: Tensor) -> Tensor:
    """`w`: names after `head.`."""
    for name in ("layers.0", "layers.2"):
        x = F.gelu(x @ w[f"{name}.weight"].T + w[f"{name}.bias"])
    return x @ w["output.weight"].T + w["output.bias"]


# ---------------------------------------------------------------- MFCC, Kaldi's conventions


def mfcc39(waveforms: Tensor, cepstra: int = 13, mels: int = 23) -> Tensor:
    """25 ms povey windows every 20 ms: frame t covers samples [320t, 320t + 400). (B, N) -> (B, T, 39)."""
    x = (waveforms.double() * 32768.0).unfold(1, 400, 320)  # Kaldi reads 16-bit samples as they are
    x = x - x.mean(dim=2, keepdim=True)
    x = x - 0.97 * torch.cat([x[:, :, :1], x[:, :, :-1]], dim=2)
    n = torch.arange(400, dtype=torch.float64)
    x = x * (0.5 - 0.5 * torch.cos(2 * math.pi * n / 399)) ** 0.85
    power = torch.fft.rfft(x, n=512).abs() ** 2  # bins 0 to 256; Kaldi leaves out the last
    mel = lambda f: 1127.0 * math.log(1.0 + f / 700.0)  # noqa: E731
    low, high = mel(20.0), mel(8000.0)
    width = (high - low) / (mels + 1)
    bank = torch.zeros(257, mels, dtype=torch.float64)
    for j in range(mels):
        left, centre, right = low + j * width, low + (j + 1) * width, low + (j + 2) * width
        for i in range(256):
            m = mel(i * 16000 / 512)
            if left < m < right:
                bank[i, j] = (m - left) / width if m <= centre else (right - m) / width
    logs = (power @ bank).clamp(min=torch.finfo(torch.float32).eps).log()
    i, j = torch.arange(cepstra, dtype=torch.float64)[None], torch.arange(mels, dtype=torch.float64)[:, None]
    dct = torch.cos(math.pi / mels * (j + 0.5) * i) * math.sqrt(2.0 / mels)
    dct[:, 0] = math.sqrt(1.0 / mels)
    c = logs @ dct * (1.0 + 11.0 * torch.sin(math.pi * torch.arange(cepstra, dtype=torch.float64) / 22.0))
    one = [-0.2, -0.1, 0.0, 0.1, 0.2]
    two = [sum(one[a] * one[s - a] for a in range(5) if 0 <= s - a < 5) for s in range(9)]
    return torch.cat([c, taps(c, one), taps(c, two)], dim=2)


def taps(c: Tensor, weights: list[float]) -> Tensor:
    """sum_j w_j c[t + j], frames beyond the ends being the first and the last."""
    reach, t = len(weights) // 2, torch.arange(c.shape[1])
    return sum(w * c[:, (t + j - reach).clamp(0, c.shape[1] - 1)] for j, w in enumerate(weights))


# ---------------------------------------------------------------- mixture


@dataclass
class Mixture:
    weights: Tensor  # (K)
    means: Tensor  # (K, D)
    variances: Tensor  # (K, D)
    floor: Tensor  # (D), of variances

    def log_joint(self, x: Tensor) -> Tensor:
        """(N, D) -> (N, K), the paper's formula, one component at a time."""
        columns = []
        for k in range(len(self.weights)):
            mahalanobis = ((x - self.means[k]) ** 2 / self.variances[k]).sum(dim=1)
            columns.append(
                self.weights[k].log()
                - x.shape[1] / 2 * math.log(2 * math.pi)
                - 0.5 * (self.variances[k].log().sum() + mahalanobis)
            )
        return torch.stack(columns, dim=1)

    def update(self, x: Tensor, q: Tensor, decay: float, least: float, how: str) -> None:
        """theta <- decay theta + (1 - decay) theta_hat; a component with fewer than `least` frames stays."""
        counts, total = q.sum(dim=0), q.sum()
        weights, means, variances = self.weights.clone(), self.means.clone(), self.variances.clone()
        for k in range(len(counts)):
            if how == "parameters" and counts[k] < least:
                continue
            if how == "parameters":
                mean = (q[:, k, None] * x).sum(dim=0) / counts[k]
                variance = (q[:, k, None] * (x - mean) ** 2).sum(dim=0) / counts[k]
                variance = torch.maximum(variance, self.floor)  # "clamped throughout"
                weights[k] = decay * self.weights[k] + (1 - decay) * counts[k] / total
                means[k] = decay * self.means[k] + (1 - decay) * mean
                variances[k] = decay * self.variances[k] + (1 - decay) * variance
            else:  # stepwise EM: the sums behind the parameters are averaged, per frame
                zeroth = decay * self.weights[k] + (1 - decay) * counts[k] / total
                first = decay * self.weights[k] * self.means[k] + (1 - decay) * (q[:, k, None] * x).sum(0) / total
                # second moments about the old mean, which rounds less than about zero
                far = (x - self.means[k]) ** 2
                second = (
                    decay * self.weights[k] * self.variances[k] + (1 - decay) * (q[:, k, None] * far).sum(0) / total
                )
                weights[k], means[k] = zeroth, first / zeroth
                variances[k] = second / zeroth - (means[k] - self.means[k]) ** 2
        self.weights, self.means = weights / weights.sum(), means
        self.variances = torch.maximum(variances, self.floor)


def nearest(x: Tensor, centres: Tensor) -> Tensor:
    """One-hot of the nearest centre: targets of k-means."""
    distance = torch.stack([((x - c) ** 2).sum(dim=1) for c in centres], dim=1)
    return F.one_hot(distance.argmin(dim=1), len(centres)).to(x.dtype)


# ---------------------------------------------------------------- effective rank


def effective_rank(x: Tensor) -> float:
    s = torch.linalg.svdvals(x.double() - x.double().mean(dim=0))
    p = s / s.sum()
    p = p[p > 0]
    return math.exp(-(p * p.log()).sum().item())


# ---------------------------------------------------------------- schedules


def in_steps(cadence: int | float, steps: int) -> int:
    """An integer is a number of steps, a float a fraction of the phase."""
    return cadence if isinstance(cadence, int) else round(cadence * steps)


def learning_rate(phase, done: int, before: float) -> float:
    """Of the step after `done` steps of the phase: linear from `before`, then constant or cosine to a share of it."""
    warmup = in_steps(phase.warmup, phase.steps)
    if done < warmup:
        return before + (phase.lr - before) * (done + 1) / warmup
    if phase.schedule == "constant":
        return phase.lr
    progress = (done - warmup) / (phase.steps - warmup)
    low = phase.final_lr
    return phase.lr * (low + (1 - low) * 0.5 * (1 + math.cos(math.pi * progress)))


# ---------------------------------------------------------------- training


class AdamW:
    def __init__(self, betas: tuple[float, float], decay: float, epsilon: float = 1e-8):
        self.betas, self.decay, self.epsilon, self.state = betas, decay, epsilon, {}

    def step(self, parameters: dict[str, Tensor], rate: float) -> None:
        for name, p in parameters.items():
            if p.grad is None:
                continue
            m, v, n = self.state.get(name, (torch.zeros_like(p), torch.zeros_like(p), 0))
            b1, b2 = self.betas
            n, m, v = n + 1, b1 * m + (1 - b1) * p.grad, b2 * v + (1 - b2) * p.grad**2
            self.state[name] = (m, v, n)
            p.data -= rate * self.decay * p.data
            p.data -= rate * (m / (1 - b1**n)) / ((v / (1 - b2**n)).sqrt() + self.epsilon)


class Muon:
    """By singular values: u = U S V', and the polynomial of Newton and Schulz moves each s on its own."""

    def __init__(self, beta: float, decay: float):
        self.beta, self.decay, self.momenta = beta, decay, {}

    def step(self, parameters: dict[str, Tensor], rate: float) -> None:
        for name, p in parameters.items():
            if p.grad is None:
                continue
            m = self.beta * self.momenta.get(name, torch.zeros_like(p)) + (1 - self.beta) * p.grad
            self.momenta[name] = m
            u, s, v = torch.linalg.svd(((1 - self.beta) * p.grad + self.beta * m).double(), full_matrices=False)
            s = s / s.square().sum().sqrt()
            for _ in range(5):
                s = 3.4445 * s - 4.7750 * s**3 + 2.0315 * s**5
            p.data -= rate * self.decay * p.data
            p.data -= rate * 0.2 * math.sqrt(max(p.shape)) * ((u * s) @ v).to(p.dtype)


class Reference:
    def __init__(self, config, weights: dict[str, Tensor], precision: torch.dtype = torch.float32):
        """`weights`: encoder.* (names of HubertModel), predictor.*, head.*, all at their start."""
        self.config, self.precision = config, precision
        self.encoder = hubert(config).to(precision)
        self.other = {n: w.detach().clone().to(precision) for n, w in weights.items() if not n.startswith("encoder.")}
        self.other = {n: w.requires_grad_() for n, w in self.other.items()}
        start = {n.removeprefix("encoder."): w for n, w in weights.items() if n.startswith("encoder.")}
        missing, unknown = self.encoder.load_state_dict(start, strict=False)
        assert set(missing) <= {"masked_spec_embed"}, missing
        assert not unknown, unknown
        self.encoder.masked_spec_embed = None
        self.encoder.train()
        self.target: HubertModel | None = None
        self.mixture: Mixture | None = None
        self.optimizer = AdamW((config.train.beta1, config.train.beta2), config.train.weight_decay)
        self.muon = Muon(config.train.muon_momentum, config.train.muon_weight_decay)
        self.ranks: list[float] | None = None  # smoothed
        self.reference_set: Tensor | None = None  # clean audio (B, N)
        self.fitted_layer = 0  # of offline codebooks
        self.phase, self.done, self.kind, self.before = 0, 0, "", 0.0

    # -- the boundaries

    def begin(
        self, phase: int, mixture: Mixture | None, output: dict[str, Tensor] | None, projection: dict[str, Tensor]
    ) -> None:
        """Start a phase with a fitted mixture, a new output layer of the head (none of either where kept), and the
        directions that the mixture sees (empty for all features)."""
        if self.phase:
            self.before = learning_rate(self.settings, self.settings.steps - 1, self.before)
        self.phase, self.done = phase, 0
        kept = self.settings.targets == "same"
        averaged = self.target is not None and self.kind == "online-gmm"
        if not kept:
            now = self.settings
            self.kind, self.hard, self.temperature, self.centred = now.targets, now.hard, now.temperature, now.centred
            to = lambda x: x.detach().clone().to(self.precision)  # noqa: E731
            self.projection = {name: to(value) for name, value in projection.items()}
            self.mixture = Mixture(*map(to, (mixture.weights, mixture.means, mixture.variances, mixture.floor)))
        if output is not None:
            for name, value in output.items():
                self.other[f"head.output.{name}"] = value.detach().clone().to(self.precision).requires_grad_()
                self.optimizer.state.pop(f"head.output.{name}", None)  # a new layer has no past
        if phase >= 2 and not kept:
            if not averaged:  # a moving average carries on into later phases
                self.target = copy.deepcopy(self.encoder).eval().requires_grad_(False)
            self.fitted_layer = self.active

    @property
    def settings(self):
        return self.config.phases[self.phase - 1]

    @property
    def active(self) -> int:
        if self.config.layer.choice is not None:
            return self.config.layer.choice
        return max(range(len(self.ranks)), key=self.ranks.__getitem__) if self.ranks else 0

    # -- one step

    def targets(self, clean: Tensor) -> Tensor:
        """q of every frame, (B, T, K); in phase 2 the mixture then moves on with the posterior at temperature 1."""
        if self.kind.startswith("mfcc"):
            m, reach = mfcc39(clean).to(self.precision), self.config.mfcc.context
            at = lambda t: m[:, min(max(t, 0), m.shape[1] - 1)]  # noqa: E731
            around = [torch.cat([at(t + d) for d in range(-reach, reach + 1)], dim=1) for t in range(m.shape[1])]
            m = torch.stack(around, dim=1)
        else:
            layer = self.active if self.kind == "online-gmm" else self.fitted_layer
            m = encode(self.target, clean, None)[layer]
        if self.centred:
            m = m - m.mean(dim=1, keepdim=True)
        if self.projection:
            m = (m - self.projection["mean"]) @ self.projection["directions"]
        shape, x = m.shape, m.reshape(-1, m.shape[2])
        if self.kind.endswith("kmeans"):
            return nearest(x, self.mixture.means).view(*shape[:2], -1)
        joint = self.mixture.log_joint(x)
        q = torch.softmax(joint / self.temperature, dim=1)
        if self.hard:
            q = F.one_hot(joint.argmax(dim=1), joint.shape[1]).to(q.dtype)
        if self.kind == "online-gmm":
            g = self.config.gmm
            self.mixture.update(x, torch.softmax(joint, dim=1), g.decay, g.minimum_count, g.update)
        return q.view(*shape[:2], -1)

    def step(self, clean: Tensor, augmented: Tensor, mask: Tensor) -> dict:
        """`clean` is the audio for the targets, `augmented` the encoder's input, `mask` True where masked."""
        c, s, layer = self.config, self.settings, self.active
        clean, augmented = clean.to(self.precision), augmented.to(self.precision)
        with torch.no_grad():
            q = self.targets(clean)
        z = encode(self.encoder, augmented, mask, c.encoder.feature_gradient_scale)[-1]
        part = lambda prefix: {n.removeprefix(prefix): w for n, w in self.other.items() if n.startswith(prefix)}  # noqa: E731
        predicted = predict(part("predictor."), c.predictor.heads, z, mask)
        visible = z if c.train.visible_path == "encoder" else predicted
        logits = cluster_logits(part("head."), torch.where(mask[:, :, None], predicted, visible))
        kl = (torch.special.xlogy(q, q) - q * torch.log_softmax(logits, dim=2)).sum(dim=2)  # 0 log 0 = 0
        both = self.done < in_steps(s.visible_loss_until, s.steps)
        loss = kl.mean() if both else kl[mask].mean()
        if c.train.masked_path == "both":
            log_p = torch.log_softmax(cluster_logits(part("head."), z), dim=2)
            again = (torch.special.xlogy(q, q) - q * log_p).sum(dim=2)[mask].sum()
            loss = loss + again / (kl.numel() if both else mask.sum())

        parameters = {f"encoder.{n}": p for n, p in self.encoder.named_parameters()} | self.other
        for p in parameters.values():
            p.grad = None
        loss.backward()
        if self.done >= in_steps(s.frontend_until, s.steps):
            for p in self.encoder.feature_extractor.parameters():
                p.grad = None
        norm = math.sqrt(sum((p.grad**2).sum().item() for p in parameters.values() if p.grad is not None))
        for p in parameters.values():
            if p.grad is not None:
                p.grad *= min(1.0, c.train.clip / (norm + 1e-6))
        rate = learning_rate(s, self.done, self.before)
        matrices = {}
        if c.train.optimizer == "muon":
            inside = ("encoder.encoder.layers.", "predictor.layer.")
            matrices = {n: p for n, p in parameters.items() if n.startswith(inside) and p.ndim == 2}
        self.muon.step(matrices, rate)
        self.optimizer.step({n: p for n, p in parameters.items() if n not in matrices}, rate)

        decay = None
        if self.target is not None and self.kind == "online-gmm":
            flips = self.done // in_steps(s.ema_switch_every, s.steps)
            decay = c.ema.fast if flips % 2 == 0 else c.ema.slow
            for target, p in zip(self.target.parameters(), self.encoder.parameters(), strict=True):
                target.data = decay * target.data + (1 - decay) * p.data
        self.done += 1
        ranks = None
        if self.done % in_steps(s.layer_check_every, s.steps) == 0 or self.done == s.steps:
            ranks = self.check_layers(self.reference_set.to(self.precision))
        return {
            "q": q, "kl_masked": kl[mask].mean().item(), "kl_visible": kl[~mask].mean().item(), "loss": loss.item(),
            "norm": norm, "lr": rate, "decay": decay, "layer": layer, "ranks": ranks,
        }  # fmt: skip

    @torch.no_grad()
    def measure(self, clean: Tensor) -> list[float]:
        """Ranks over all frames of the reference set, of the moving average or else of the encoder itself, unmasked."""
        encoder = self.target if self.kind == "online-gmm" else self.encoder
        encoder.eval()
        ranks = [effective_rank(x.reshape(-1, x.shape[2])) for x in encode(encoder, clean, None)]
        encoder.train(encoder is self.encoder)
        return ranks

    def check_layers(self, clean: Tensor) -> list[float]:
        """Smooth the measured ranks, from which `active` follows."""
        ranks, past = self.measure(clean), self.config.layer.smoothing
        before = self.ranks or ranks
        self.ranks = [past * old + (1 - past) * new for old, new in zip(before, ranks, strict=True)]
        return ranks

    def weights(self) -> dict[str, Tensor]:
        return {f"encoder.{n}": p for n, p in self.encoder.named_parameters()} | self.other
