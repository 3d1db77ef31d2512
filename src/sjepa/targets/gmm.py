"""A Gaussian mixture with diagonal covariances: posteriors, EM and online updates as matrix products.

With precisions 1/s^2 the log-density of component k is, up to x, `c_k + x . (m_k / s_k^2) - 1/2 x^2 . (1 /
s_k^2)`: two products of (N, D) with (D, K), never a tensor of N x K x D. Features are centred first, so that
fp32 does not cancel.
"""

import math
from dataclasses import dataclass
from pathlib import Path

import safetensors.torch
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sjepa.errors import UserError
from sjepa.files import save_tensors

ROWS_PER_CHUNK = 16_384  # bounds memory at rows x K floats for the posteriors of one chunk
FAINTEST = -60.0  # log of the smallest share in EM: further down lie denormal numbers, on which a CPU is far slower


@dataclass
class Statistics:
    """Sufficient statistics of features under their posteriors, about the mixture's centre."""

    count: Tensor  # (K,)   sum of q
    first: Tensor  # (K, D) sum of q x
    second: Tensor  # (K, D) sum of q x^2
    log_likelihood: Tensor  # ()  sum over frames, valid when computed by `expect`
    frames: Tensor  # ()

    def flat(self) -> Tensor:
        """All of it as one vector, so that ranks sum it in one all-reduce."""
        parts = (self.count, self.first.flatten(), self.second.flatten(), self.log_likelihood[None], self.frames[None])
        return torch.cat(parts)

    @staticmethod
    def size(components: int, dimension: int) -> int:
        """Length of the vector that `flat` gives."""
        return components * (1 + 2 * dimension) + 2

    @staticmethod
    def from_flat(vector: Tensor, components: int, dimension: int) -> "Statistics":
        size = components * dimension
        count, first, second, log_likelihood, frames = vector.split([components, size, size, 1, 1])
        shape = (components, dimension)
        return Statistics(count, first.view(shape), second.view(shape), log_likelihood[0], frames[0])

    def __add__(self, other: "Statistics") -> "Statistics":
        return Statistics.from_flat(self.flat() + other.flat(), *self.first.shape)


def shares(joint: Tensor) -> tuple[Tensor, Tensor]:
    """Posteriors (N, K) and log-evidence (N,) of log-joints, whose memory they take."""
    top = joint.amax(1, keepdim=True)
    q = joint.sub_(top).clamp_(min=FAINTEST).exp_()
    total = q.sum(1, keepdim=True)
    return q.div_(total), (top + total.log()).squeeze(1)


class DiagonalGMM(nn.Module):
    """K diagonal Gaussians over D features; buffers only, nothing here is trained by gradients."""

    weights: Tensor
    means: Tensor
    variances: Tensor
    centre: Tensor
    floor: Tensor

    def __init__(self, components: int, dimension: int):
        super().__init__()
        self.register_buffer("weights", torch.full((components,), 1.0 / components))
        self.register_buffer("means", torch.zeros(components, dimension))
        self.register_buffer("variances", torch.ones(components, dimension))
        # Subtracted from features before any product; means are stored in the features' own coordinates.
        self.register_buffer("centre", torch.zeros(dimension))
        self.register_buffer("floor", torch.full((dimension,), 1e-6))

    @classmethod
    def from_parameters(
        cls, weights: Tensor, means: Tensor, variances: Tensor, floor: Tensor | float = 1e-6
    ) -> "DiagonalGMM":
        gmm = cls(*means.shape).to(means.device)
        gmm.floor.copy_(torch.as_tensor(floor, dtype=torch.float32))
        gmm.weights.copy_(weights / weights.sum())
        gmm.means.copy_(means)
        gmm.variances.copy_(torch.maximum(variances, gmm.floor))
        gmm.centre.copy_(gmm.weights @ gmm.means)
        return gmm

    @property
    def components(self) -> int:
        return self.means.shape[0]

    @property
    def dimension(self) -> int:
        return self.means.shape[1]

    def coefficients(self) -> tuple[Tensor, Tensor]:
        """Constant (1, K) and factors (2 D, K): log pi_k N(x; k) = constant + [x, x^2] . factors, x centred."""
        means = self.means - self.centre
        precisions = 1.0 / self.variances
        constant = torch.log(self.weights.clamp(min=1e-30)) - 0.5 * (
            self.dimension * math.log(2 * math.pi) + (torch.log(self.variances) + means.square() * precisions).sum(1)
        )
        return constant[None], torch.cat([(means * precisions).t(), -0.5 * precisions.t()])

    def relative_coefficients(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """`coefficients` without a term that depends on the frame alone, and that term as its constant and factors.

        The term is the frame's log-density under one Gaussian about the centre with the components' mean variance.
        Posteriors do not change without it, and what is left is smaller, so that fp32 loses less of it.
        """
        constant, factors = self.coefficients()
        variance = self.variances.mean(0)  # a component of hardly any variance does not weigh here
        one = -0.5 * (self.dimension * math.log(2 * math.pi) + torch.log(variance).sum())
        slopes = F.pad(-0.5 / variance, (self.dimension, 0))[:, None]  # (2 D, 1)
        return constant - one, factors - slopes, one, slopes

    def powers(self, features: Tensor) -> Tensor:
        """[x, x^2] of centred features: (N, D) -> (N, 2 D), in fp32."""
        x = features.float() - self.centre
        return torch.cat([x, x.square()], dim=1)

    @torch.no_grad()
    def log_joint(self, powers: Tensor) -> Tensor:
        """log pi_k N(x; k) of every frame and component, up to a term of the frame alone: (N, 2 D) -> (N, K)."""
        with torch.autocast(powers.device.type, enabled=False):
            constant, factors, _, _ = self.relative_coefficients()
            return torch.addmm(constant, powers, factors)

    @torch.no_grad()
    def posterior(self, features: Tensor) -> Tensor:
        """q_k of every frame: (..., D) -> (..., K)."""
        shape = features.shape[:-1]
        chunks = features.reshape(-1, self.dimension).split(ROWS_PER_CHUNK)
        q = torch.cat([torch.softmax(self.log_joint(self.powers(chunk)), dim=1) for chunk in chunks])
        return q.view(*shape, self.components)

    @torch.no_grad()
    def statistics(self, powers: Tensor, posteriors: Tensor) -> Statistics:
        """Sums of q, q x and q x^2 over frames (x centred)."""
        with torch.autocast(powers.device.type, enabled=False):
            # Denormal numbers, far below what a sum keeps, make a CPU's products thirty times slower.
            q = (posteriors if posteriors.is_cuda else F.threshold(posteriors, 1e-30, 0.0)).t()
            first, second = (q @ powers).chunk(2, dim=1)
            frames = torch.full((), float(len(powers)), device=powers.device)
            return Statistics(q.sum(1), first, second, torch.zeros_like(frames), frames)

    @torch.no_grad()
    def expect(self, features: Tensor) -> Statistics:
        """The E-step over all frames, in chunks that share their memory: statistics and log-likelihood."""
        if not len(features):
            raise UserError("cannot fit a mixture to no frames")
        rows, size = min(ROWS_PER_CHUNK, len(features)), 2 * self.dimension
        with torch.autocast(features.device.type, enabled=False):
            constant, factors, one, slopes = self.relative_coefficients()
            memory = features.new_ones(rows, size + 1, dtype=torch.float32)  # [x, x^2, 1]: the one counts frames
            joints = features.new_empty(rows, self.components, dtype=torch.float32)
            sums = features.new_zeros(self.components, size + 1, dtype=torch.float32)
            log_likelihood = features.new_zeros((), dtype=torch.float32)
            for chunk in features.split(ROWS_PER_CHUNK):
                powers, joint = memory[: len(chunk)], joints[: len(chunk)]
                x = torch.sub(chunk.float(), self.centre, out=powers[:, : self.dimension])
                torch.square(x, out=powers[:, self.dimension : size])
                torch.addmm(constant, powers[:, :size], factors, out=joint)
                # FAINTEST keeps the shares clear of denormal numbers, so they go into the product as they are.
                posteriors, log_evidence = shares(joint)
                sums.addmm_(posteriors.t(), powers)
                # What is the same for all components joins the evidence alone, not every one of its terms.
                log_likelihood += (log_evidence + (powers[:, :size] @ slopes).squeeze(1) + one).sum()
        first, second, count = sums.split([self.dimension, self.dimension, 1], dim=1)
        frames = torch.full((), float(len(features)), device=features.device)
        return Statistics(count[:, 0], first, second, log_likelihood, frames)

    @torch.no_grad()
    def estimates(self, statistics: Statistics) -> tuple[Tensor, Tensor, Tensor]:
        """Maximum-likelihood weights, means and variances of given statistics; variances may lie below the floor."""
        count = statistics.count.clamp(min=1e-10)[:, None]
        mean = statistics.first / count  # about the centre
        variance = statistics.second / count - mean.square()
        return statistics.count / statistics.count.sum().clamp(min=1e-10), mean + self.centre, variance

    @torch.no_grad()
    def maximize(self, statistics: Statistics) -> None:
        """The M-step; a component that holds less than a ten-thousandth of a frame keeps its place."""
        weights, means, variances = self.estimates(statistics)
        held = (statistics.count > 1e-4)[:, None]
        self.weights.copy_(weights.clamp(min=1e-10) / weights.clamp(min=1e-10).sum())
        self.means.copy_(torch.where(held, means, self.means))
        self.variances.copy_(torch.where(held, torch.maximum(variances, self.floor), self.variances))
        self.centre.copy_(self.weights @ self.means)

    @torch.no_grad()
    def update_online(
        self, statistics: Statistics, decay: float, minimum_count: float, by_frames: bool = False
    ) -> None:
        """theta <- decay theta + (1 - decay) theta_hat, except for components that hold less than `minimum_count`.

        `by_frames` averages the sums behind theta instead (stepwise EM), so that a component moves by as much as it has
        frames in the batch: its rate is (1 - decay) times its share of the batch over its weight.
        """
        weights, means, variances = (torch.nan_to_num(part) for part in self.estimates(statistics))
        # A batch with anything that is not finite teaches nothing.
        sound = torch.isfinite(statistics.second).all() & (statistics.frames > 0)
        seen = (statistics.count >= minimum_count) & sound
        rate = torch.where(seen, 1.0 - decay, 0.0)
        # A component that is not seen keeps its weight too; the rest are then normalised again.
        moved = self.weights + rate * (weights - self.weights)
        rate = (rate * weights / moved if by_frames else rate)[:, None]
        self.weights.copy_(moved / moved.sum())
        step = means - self.means
        if by_frames:
            spread = variances - self.variances + (1.0 - rate) * step.square()
        else:
            spread = torch.maximum(variances, self.floor) - self.variances
        self.means.add_(rate * step)
        self.variances.add_(rate * spread)
        self.variances.copy_(torch.maximum(self.variances, self.floor))
        # The features drift, and so does the point about which fp32 computes. Statistics of the next batch are taken
        # about the new one. Nothing that is stored is relative to it.
        drift = torch.nan_to_num(statistics.first.sum(0) / statistics.frames.clamp(min=1.0))  # of the batch's mean
        self.centre.add_(torch.where(sound, 1.0 - decay, 0.0) * drift)

    @torch.no_grad()
    def restart(self, components: Tensor, features: Tensor) -> None:
        """Start some components (indices) anew, each at a frame, with an even weight and the mean variance of all."""
        self.means[components] = features.float()
        self.variances[components] = self.variances.mean(0)
        self.weights[components] = 1.0 / self.components
        self.weights.div_(self.weights.sum())

    def save(self, path: Path) -> None:
        save_tensors(path, self.state_dict())

    @classmethod
    def load(cls, path: Path) -> "DiagonalGMM":
        tensors = safetensors.torch.load_file(path)
        gmm = cls(*tensors["means"].shape)
        gmm.load_state_dict(tensors)
        return gmm
