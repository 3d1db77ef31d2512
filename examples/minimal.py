"""S-JEPA in plain PyTorch, without augmentation: `python examples/minimal.py FOLDER [--small]`. Start at `pretrain`."""

import copy
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import soundfile
import soxr
import torch
import torch.nn.functional as F
from torch import Tensor, nn

PAPER = SimpleNamespace(  # pairs are (phase 1, phase 2); ours: steps, warm-up, clip; the paper's batch is 192
    dim=768, layers=6, heads=12, inner=3072, channels=512, kernel=128, groups=16, dropout=0.1, layerdrop=0.05,
    predictor_heads=8, predictor_inner=1536, batch=24, seconds=15.0, ratio=0.65, span=10,
    steps=(400_000, 400_000), k=(100, 500), lr=(1e-4, 2.5e-5), warmup=20_000, clip=1.0, fit_batches=50,
    gmm_decay=0.999, ema_fast=0.999, ema_slow=0.9999, ema_switch=20_000, layer_check=10_000,
)  # fmt: skip
SMALL = SimpleNamespace(**vars(PAPER) | {  # for a CPU
    "dim": 128, "layers": 4, "heads": 4, "inner": 512, "channels": 64, "dropout": 0.0, "layerdrop": 0.0, "batch": 4,
    "seconds": 3.0, "ratio": 0.3, "span": 2, "steps": (1000, 500), "k": (100, 100), "lr": (1e-3, 5e-4), "warmup": 100,
    "predictor_heads": 4, "predictor_inner": 256, "ema_switch": 100, "layer_check": 100,
})  # fmt: skip


class Encoder(nn.Module):
    """f: 16 kHz waveforms (B, N) to the output of every transformer layer, each (B, T, D), 50 frames per second."""

    def __init__(self, s: SimpleNamespace):
        super().__init__()
        parts: list[nn.Module] = [nn.Conv1d(1, s.channels, 10, 5, bias=False), nn.GroupNorm(s.channels, s.channels)]
        for kernel in (3, 3, 3, 3, 2, 2):
            parts += [nn.GELU(), nn.Conv1d(s.channels, s.channels, kernel, 2, bias=False)]
        self.frontend = nn.Sequential(*parts, nn.GELU())
        self.projection = nn.Sequential(nn.LayerNorm(s.channels), nn.Linear(s.channels, s.dim), nn.Dropout(s.dropout))
        position = nn.Conv1d(s.dim, s.dim, s.kernel, padding=s.kernel // 2, groups=s.groups)
        nn.init.normal_(position.weight, std=math.sqrt(4 / (s.kernel * s.dim)))
        self.position = nn.utils.parametrizations.weight_norm(position, dim=2)
        self.norm, self.layerdrop = nn.Sequential(nn.LayerNorm(s.dim), nn.Dropout(s.dropout)), s.layerdrop
        layer = nn.TransformerEncoderLayer(s.dim, s.heads, s.inner, s.dropout, "gelu", batch_first=True)
        self.layers = nn.ModuleList(copy.deepcopy(layer) for _ in range(s.layers))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> list[Tensor]:
        features = self.frontend(x[:, None])
        features = 0.1 * features + 0.9 * features.detach()  # scales gradients into the front end by 0.1
        z = self.projection(features.transpose(1, 2))
        z = z if mask is None else z.masked_fill(mask[:, :, None], 0.0)
        states = [self.norm(z + F.gelu(self.position(z.transpose(1, 2))[:, :, :-1]).transpose(1, 2))]
        for layer in self.layers:
            states.append(states[-1] if self.training and torch.rand(()) < self.layerdrop else layer(states[-1]))
        return states[1:]


class SJEPA(nn.Module):
    """The encoder f, the predictor h and the cluster head g. Only f is kept after training."""

    def __init__(self, s: SimpleNamespace):
        super().__init__()
        layer = nn.TransformerEncoderLayer(s.dim, s.predictor_heads, s.predictor_inner, s.dropout, batch_first=True)
        self.encoder, self.predictor = Encoder(s), nn.Sequential(layer, nn.Linear(s.dim, s.dim))
        self.head = nn.Sequential(nn.Linear(s.dim, s.dim), nn.GELU(), nn.Linear(s.dim, s.dim), nn.GELU(), nn.Identity())
        for name, weight in self.named_parameters():
            if weight.dim() == 2:
                nn.init.normal_(weight, std=0.02)
            elif "frontend" in name and weight.dim() == 3:
                nn.init.kaiming_normal_(weight)
        self.mask_token = nn.Parameter(0.02 * torch.randn(s.dim))
        angle = torch.arange(50 * s.seconds)[:, None] * 10_000 ** (-torch.arange(0, s.dim, 2) / s.dim)
        self.positions = nn.Parameter(torch.stack([angle.sin(), angle.cos()], 2).flatten(1))  # starts as sinusoids

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:  # (B, N), True at masked frames (B, T) -> logits (B, T, K)
        z = self.encoder(x, mask)[-1]
        filled = torch.where(mask[:, :, None], self.mask_token, z) + self.positions[: z.shape[1]]
        return self.head(torch.where(mask[:, :, None], self.predictor(filled), z))


def mfcc(x: Tensor) -> Tensor:  # (B, N) -> (B, T, 39)
    """Kaldi's MFCCs with deltas. Frame t covers samples [320 t, 320 t + 400), as the encoder's frame t does."""
    mel, edges = 1127 * torch.log1p(torch.arange(256) * 31.25 / 700)[:, None], torch.linspace(31.748578, 2840.03771, 25)
    triangles = (torch.minimum(mel - edges[:-2], edges[2:] - mel) / (edges[1] - edges[0])).clamp(min=0).to(x.device)
    order, band = torch.arange(13), torch.arange(23)[:, None]
    dct = torch.cos(math.pi / 23 * (band + 0.5) * order) * torch.where(order > 0, 2 / 23, 1 / 23).sqrt()
    x = (x * 32768.0).unfold(1, 400, 320)
    x = x - x.mean(2, keepdim=True)
    x = (x - 0.97 * torch.cat([x[:, :, :1], x[:, :, :-1]], 2)) * torch.hann_window(400, False, device=x.device) ** 0.85
    energies = torch.fft.rfft(x, 512).abs()[:, :, :256].square() @ triangles
    cepstra = energies.clamp(min=1.2e-7).log() @ (dct * (1 + 11 * torch.sin(math.pi * order / 22))).to(x.device)
    padded, slope = torch.cat([cepstra[:, :1]] * 4 + [cepstra] + [cepstra[:, -1:]] * 4, 1), torch.arange(-2.0, 3.0) / 10
    delta = padded.unfold(1, 5, 1) @ slope.to(x.device)
    return torch.cat([cepstra, delta[:, 2:-2], delta.unfold(1, 5, 1) @ slope.to(x.device)], 2)


class Mixture:
    """K Gaussians with diagonal covariances, fitted to frames (N, D) by k-means and EM."""

    def __init__(self, x: Tensor, k: int):
        self.means, self.weights = x[torch.randperm(len(x))[:k]], torch.full((k,), 1 / k, device=x.device)
        self.variances, self.floor = x.var(0).expand(k, -1), (1e-3 * x.var(0)).clamp(min=1e-6)
        for i in range(25):  # hard assignments to the nearest mean, then posteriors
            q = F.one_hot(torch.cdist(x, self.means).argmin(1), k).float() if i < 5 else self.posterior(x)
            self.update(x, q, decay=0.0)

    def posterior(self, x: Tensor) -> Tensor:  # (N, D) -> (N, K)
        """q_k = pi_k N(x; mu_k, sigma_k^2) / sum_j pi_j N(x; mu_j, sigma_j^2), as two matrix products."""
        centre, precisions = self.weights @ self.means, 1 / self.variances
        x, means = x - centre, self.means - centre  # fp32 keeps more digits of small numbers
        distance = x**2 @ precisions.T - 2 * x @ (means * precisions).T + (means**2 * precisions).sum(1)
        return torch.softmax(self.weights.log() - 0.5 * (self.variances.log().sum(1) + distance), dim=1)

    def update(self, x: Tensor, q: Tensor, decay: float) -> None:
        """theta <- decay theta + (1 - decay) theta_hat. Decay 0 is an M-step. Components without frames stay."""
        count, centre = q.sum(0)[:, None], x.mean(0)
        mean = q.T @ (x - centre) / count.clamp(min=1e-10)
        variance = q.T @ (x - centre) ** 2 / count.clamp(min=1e-10) - mean**2
        rate = torch.where(count >= 0.01, 1 - decay, 0.0)
        weights = (self.weights + rate[:, 0] * (count[:, 0] / len(x) - self.weights)).clamp(min=1e-10)
        self.weights, self.means = weights / weights.sum(), self.means + rate * (mean + centre - self.means)
        self.variances = self.variances + rate * (torch.maximum(variance, self.floor) - self.variances)


def block_mask(frames: int, ratio: float, span: int, rng: np.random.Generator) -> np.ndarray:
    """Spans in random order until exactly the ratio is masked; a span that would mask too much is skipped."""
    mask, missing, starts = np.zeros(frames, bool), round(ratio * frames), rng.permutation(frames - span + 1)
    while missing:
        for start in starts:
            new = int((~mask[start : start + span]).sum())
            if new <= missing:
                mask[start : start + span], missing = True, missing - new
    return mask


def effective_rank(z: Tensor) -> float:  # frames (N, D)
    spectrum = torch.linalg.svdvals((z - z.mean(0)).double())
    return float(torch.special.entr(spectrum / spectrum.sum()).sum().exp())


def pretrain(model: SJEPA, batches: Iterator[tuple[Tensor, Tensor]], s: SimpleNamespace) -> Iterator[tuple[int, float]]:
    """Both phases in one run. Takes batches of waveforms (B, N) and masks (B, T); yields each step's phase and loss."""
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.99), weight_decay=1e-3)
    smoothed, layer = [0.0] * s.layers, 0  # smoothed effective rank of each layer, and the layer of the highest
    for phase, steps, k, lr in zip((1, 2), s.steps, s.k, s.lr, strict=True):
        target = copy.deepcopy(model.encoder).eval().requires_grad_(False) if phase == 2 else None  # moves by EMA
        sample = [next(batches)[0] for _ in range(s.fit_batches)]
        mixture = Mixture(torch.cat([(target(x)[layer] if target else mfcc(x)).flatten(0, 1) for x in sample]), k)
        model.head[-1] = nn.Linear(s.dim, k).to(model.mask_token.device)  # a new output layer: K differs
        optimizer.add_param_group({"params": model.head[-1].parameters()})
        for step in range(steps):
            x, mask = next(batches)
            with torch.no_grad():  # targets: posteriors of clean, unmasked speech
                m = (target(x)[layer] if target else mfcc(x)).flatten(0, 1)
                q = mixture.posterior(m).view(*mask.shape, k)
            log_p = F.log_softmax(model.train()(x, mask), dim=2)
            kl = (torch.xlogy(q, q) - q * log_p).sum(2)  # KL(q_t || p_t)
            loss = kl.mean() if phase == 1 or step < steps // 2 else kl[mask].mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), s.clip)
            for group in optimizer.param_groups:
                group["lr"] = lr * min(1.0, (step + 1) / s.warmup) if phase == 1 else lr
            optimizer.step()
            with torch.no_grad():
                if target:
                    mixture.update(m, q.flatten(0, 1), s.gmm_decay)
                    decay = s.ema_slow if step // s.ema_switch % 2 else s.ema_fast
                    for old, new in zip(target.parameters(), model.encoder.parameters(), strict=True):
                        old.lerp_(new, 1 - decay)
                if (step + 1) % s.layer_check == 0 or step + 1 == steps:
                    now = [effective_rank(z.flatten(0, 1)[:2000]) for z in (target or model.encoder.eval())(x)]
                    smoothed = [0.5 * a + 0.5 * b for a, b in zip(smoothed, now, strict=True)] if any(smoothed) else now
                    layer = smoothed.index(max(smoothed))
            yield phase, loss.item()


def read_batches(folder: Path, s: SimpleNamespace, device: str) -> Iterator[tuple[Tensor, Tensor]]:
    """Random utterances of a folder, cropped to one length, and their masks."""
    rng, audio = np.random.default_rng(0), []
    for path in sorted(p for p in folder.rglob("*") if p.suffix in (".wav", ".flac", ".ogg", ".opus", ".mp3")):
        samples, rate = soundfile.read(path, dtype="float32", always_2d=True)
        audio.append(soxr.resample(samples.mean(1), rate, 16_000))
    audio = [x for x in audio if len(x) >= 16_000] or sys.exit(f"{folder} has no audio of a second or longer")
    while True:
        chosen = [audio[i] for i in rng.integers(len(audio), size=s.batch)]
        length = min(round(16_000 * s.seconds), *map(len, chosen))
        x = np.stack([x[(i := rng.integers(len(x) - length + 1)) : i + length] for x in chosen])
        mask = np.stack([block_mask((length - 400) // 320 + 1, s.ratio, s.span, rng) for _ in chosen])
        yield torch.from_numpy(x).to(device), torch.from_numpy(mask).to(device)


if __name__ == "__main__":
    sys.argv[1:] or sys.exit("usage: python examples/minimal.py FOLDER_OF_AUDIO [--small]")
    settings, device = SMALL if "--small" in sys.argv else PAPER, "cuda" if torch.cuda.is_available() else "cpu"
    model, batches = SJEPA(settings).to(device), read_batches(Path(sys.argv[1]), settings, device)
    for step, (phase, loss) in enumerate(pretrain(model, batches, settings)):
        if step % 50 == 0:
            print(f"phase {phase}  step {step:,}  loss {loss:.3f}", flush=True)
    torch.save(model.encoder.state_dict(), "encoder.pt")
