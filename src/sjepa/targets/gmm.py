"""A Gaussian mixture with diagonal covariances: posteriors, EM and online updates as matrix products.

The log-density of component k is `c_k + x . (m_k / s_k^2) - 1/2 x^2 . (1 / s_k^2)`. It needs two products of (N, D)
with (D, K) and no tensor of size N x K x D. Features are centred first, to avoid cancellation in fp32.
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

ROWS_PER_CHUNK = 16_384  # limits memory to rows x K floats for the posteriors of one chunk
LOG2E = 1.0 / math.log(2.0)  # EM uses powers of 2, which a CPU computes faster than powers of e
EMPTY = 1e-4  # frames; a component with fewer has no estimate
# Lower bound in EM of a component's log2-joint minus the largest of the frame. Below it, the posteriors would become
# denormal numbers, with which a CPU is far slower.
MIN_LOG2_RATIO = -87.0


@dataclass
class Statistics:
    """Sufficient statistics of features under their posteriors, relative to the mixture's centre."""

    count: Tensor  # (K,)   sum of q
    first: Tensor  # (K, D) sum of q x
    second: Tensor  # (K, D) sum of q x^2
    log_likelihood: Tensor  # ()  sum over frames, valid when computed by `expect`
    frames: Tensor  # ()

    def flatten(self) -> Tensor:
        """Concatenate all fields into one vector, for a single all-reduce."""
        parts = (self.count, self.first.flatten(), self.second.flatten(), self.log_likelihood[None], self.frames[None])
        return torch.cat(parts)

    @staticmethod
    def size(components: int, dimension: int) -> int:
        """Return the length of the vector from `flatten`."""
        return components * (1 + 2 * dimension) + 2

    @staticmethod
    def from_flat(vector: Tensor, components: int, dimension: int) -> "Statistics":
        """Invert `flatten`."""
        size = components * dimension
        count, first, second, log_likelihood, frames = vector.split([components, size, size, 1, 1])
        shape = (components, dimension)
        return Statistics(count, first.view(shape), second.view(shape), log_likelihood[0], frames[0])


def compute_posteriors(joint: Tensor) -> tuple[Tensor, Tensor]:
    """Return posteriors (N, K) and log2-evidence (N, 1) of log2-joints (N, K), which are overwritten."""
    top = joint.amax(1, keepdim=True)
    q = joint.sub_(top).clamp_(min=MIN_LOG2_RATIO).exp2_()
    total = q.sum(1, keepdim=True)
    return q.div_(total), top + total.log2()


class DiagonalGMM(nn.Module):
    """K diagonal Gaussians over D features. All tensors are buffers: EM fits them, not gradients.

    >>> gmm = DiagonalGMM.from_parameters(torch.ones(2), torch.tensor([[-1.0], [1.0]]), torch.ones(2, 1))
    >>> gmm.posterior(torch.tensor([[0.0], [9.0]])).round(decimals=3).tolist()
    [[0.5, 0.5], [0.0, 1.0]]
    """

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
        # Subtracted from features before any product. `means` is not centred.
        self.register_buffer("centre", torch.zeros(dimension))
        self.register_buffer("floor", torch.full((dimension,), 1e-6))

    @classmethod
    def from_parameters(
        cls, weights: Tensor, means: Tensor, variances: Tensor, floor: Tensor | float = 1e-6
    ) -> "DiagonalGMM":
        """Make a mixture from weights (K,), means (K, D), variances (K, D) and a variance floor."""
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
        """Return constant (1, K) and factors (2 D, K): log pi_k N(x; k) = constant + [x, x^2] . factors, x centred."""
        means = self.means - self.centre
        precisions = 1.0 / self.variances
        constant = torch.log(self.weights.clamp(min=1e-30)) - 0.5 * (
            self.dimension * math.log(2 * math.pi) + (torch.log(self.variances) + means.square() * precisions).sum(1)
        )
        return constant[None], torch.cat([(means * precisions).t(), -0.5 * precisions.t()])

    def relative_coefficients(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Split `coefficients` into a part per component and a part common to all components.

        The common part is the log-density of the frame under one Gaussian at the centre, with the mean variance of
        the components. It does not affect posteriors. Without it, the values are smaller and fp32 is more accurate.
        """
        constant, factors = self.coefficients()
        variance = self.variances.mean(0)  # a component with tiny variance has little effect on the mean
        one = -0.5 * (self.dimension * math.log(2 * math.pi) + torch.log(variance).sum())
        slopes = F.pad(-0.5 / variance, (self.dimension, 0))  # (2 D,)
        return constant - one, factors - slopes[:, None], one, slopes

    def powers(self, features: Tensor) -> Tensor:
        """Return [x, x^2] of the centred features in fp32: (N, D) -> (N, 2 D)."""
        x = features.float() - self.centre
        return torch.cat([x, x.square()], dim=1)

    @torch.no_grad()
    def log_joint(self, powers: Tensor) -> Tensor:
        """Return log pi_k N(x; k), up to a constant per frame: (N, 2 D) -> (N, K)."""
        with torch.autocast(powers.device.type, enabled=False):
            constant, factors, _, _ = self.relative_coefficients()
            return torch.addmm(constant, powers, factors)

    @torch.no_grad()
    def posterior(self, features: Tensor) -> Tensor:
        """Return the posterior of every frame: (..., D) -> (..., K)."""
        shape = features.shape[:-1]
        chunks = features.reshape(-1, self.dimension).split(ROWS_PER_CHUNK)
        q = torch.cat([torch.softmax(self.log_joint(self.powers(chunk)), dim=1) for chunk in chunks])
        return q.view(*shape, self.components)

    @torch.no_grad()
    def statistics(self, powers: Tensor, posteriors: Tensor) -> Statistics:
        """Sum q, q x and q x^2 over frames (x centred)."""
        with torch.autocast(powers.device.type, enabled=False):
            # Denormal numbers make a CPU's products thirty times slower and do not change the sums.
            q = (posteriors if posteriors.is_cuda else F.threshold(posteriors, 1e-30, 0.0)).t()
            first, second = (q @ powers).chunk(2, dim=1)
            frames = torch.full((), float(len(powers)), device=powers.device)
            return Statistics(q.sum(1), first, second, torch.zeros_like(frames), frames)

    @torch.no_grad()
    def expect(self, features: Tensor) -> Statistics:
        """Run the E-step over all frames in chunks: return statistics and log-likelihood."""
        if not len(features):
            raise UserError("cannot fit a mixture to no frames")
        rows, size = min(ROWS_PER_CHUNK, len(features)), 2 * self.dimension
        with torch.autocast(features.device.type, enabled=False):
            constant, factors, one, slopes = self.relative_coefficients()
            factors = LOG2E * torch.cat([factors, constant])
            memory = features.new_ones(rows, size + 1, dtype=torch.float32)  # [x, x^2, 1]: the one counts frames
            joints = features.new_empty(rows, self.components, dtype=torch.float32)
            sums = features.new_zeros(size + 1, self.components, dtype=torch.float32)
            log2_evidence = features.new_zeros((), dtype=torch.float32)
            for chunk in features.split(ROWS_PER_CHUNK):
                powers = memory[: len(chunk)]
                x = torch.sub(chunk.float(), self.centre, out=powers[:, : self.dimension])
                torch.square(x, out=powers[:, self.dimension : size])
                # MIN_LOG2_RATIO excludes denormal numbers, so the posteriors need no threshold here.
                posteriors, evidence = compute_posteriors(torch.mm(powers, factors, out=joints[: len(chunk)]))
                sums.addmm_(powers.t(), posteriors)
                log2_evidence += evidence.sum()
            # The part common to all components, for all frames together: posteriors of a frame sum to 1.
            log_likelihood = log2_evidence / LOG2E + sums[:size].sum(1) @ slopes + one * len(features)
        first, second, count = sums.t().contiguous().split([self.dimension, self.dimension, 1], dim=1)
        frames = torch.full((), float(len(features)), device=features.device)
        return Statistics(count[:, 0], first, second, log_likelihood, frames)

    @torch.no_grad()
    def estimates(self, statistics: Statistics) -> tuple[Tensor, Tensor, Tensor]:
        """Return maximum-likelihood weights, means and variances. Variances may be below the floor."""
        count = statistics.count.clamp(min=1e-10)[:, None]
        mean = statistics.first / count  # relative to the centre
        variance = statistics.second / count - mean.square()
        return statistics.count / statistics.count.sum().clamp(min=1e-10), mean + self.centre, variance

    @torch.no_grad()
    def maximize(self, statistics: Statistics) -> None:
        """Run the M-step. An empty component keeps its mean and variance."""
        weights, means, variances = self.estimates(statistics)
        occupied = (statistics.count > EMPTY)[:, None]
        self.weights.copy_(weights.clamp(min=1e-10) / weights.clamp(min=1e-10).sum())
        self.means.copy_(torch.where(occupied, means, self.means))
        self.variances.copy_(torch.where(occupied, torch.maximum(variances, self.floor), self.variances))
        self.centre.copy_(self.weights @ self.means)

    @torch.no_grad()
    def update_online(
        self, statistics: Statistics, decay: float, minimum_count: float, by_frames: bool = False
    ) -> None:
        """Update theta <- decay theta + (1 - decay) theta_hat for components with a count of at least `minimum_count`.

        `by_frames` averages the sufficient statistics of all components instead (stepwise EM). The rate of a component
        is then (1 - decay) times its share of the batch, divided by its weight.
        """
        weights, means, variances = (torch.nan_to_num(part) for part in self.estimates(statistics))
        # Skip a batch with values that are not finite.
        valid = torch.isfinite(statistics.second).all() & (statistics.frames > 0)
        updated = (statistics.count >= (0.0 if by_frames else minimum_count)) & valid
        rate = torch.where(updated, 1.0 - decay, 0.0)
        # A component without an update keeps its weight too, until all weights are normalised.
        moved = (self.weights + rate * (weights - self.weights)).clamp(min=1e-10)
        rate = (rate * weights / moved if by_frames else rate)[:, None]
        self.weights.copy_(moved / moved.sum())
        step = means - self.means
        if by_frames:
            spread = variances - self.variances + (1.0 - rate) * step.square()
        else:
            spread = torch.maximum(variances, self.floor) - self.variances
        self.means.add_(rate * step)
        self.variances.add_(torch.where(rate > 0, rate * spread, 0.0))  # a skipped batch may have an infinite spread
        self.variances.copy_(torch.maximum(self.variances, self.floor))
        # The centre follows the drift of the features, to keep fp32 accurate. Statistics of the next batch use the new
        # centre. No stored value is relative to it.
        drift = torch.nan_to_num(statistics.first.sum(0) / statistics.frames.clamp(min=1.0))  # of the batch's mean
        self.centre.add_(torch.where(valid, 1.0 - decay, 0.0) * drift)

    @torch.no_grad()
    def restart(self, components: Tensor, features: Tensor) -> None:
        """Reset components (indices) to frames (N, D), with weight 1/K and the mean variance of all components."""
        self.means[components] = features.float()
        self.variances[components] = self.variances.mean(0)
        self.weights[components] = 1.0 / self.components
        self.weights.div_(self.weights.sum())

    def save(self, path: Path) -> None:
        save_tensors(path, self.state_dict())

    @classmethod
    def load(cls, path: Path) -> "DiagonalGMM":
        """Load a mixture from a file written by `save`, or from the `gmm-phaseN.safetensors` of a run."""
        tensors = safetensors.torch.load_file(path)
        gmm = cls(*tensors["means"].shape)
        gmm.load_state_dict({name: tensors[name] for name in gmm.state_dict()})
        return gmm
