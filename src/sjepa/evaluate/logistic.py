"""Logistic regression on a GPU, with the objective and solver of scikit-learn."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

MAX_STEPS = 2000


def fit_logistic(x: Tensor, labels: np.ndarray, tolerance: float = 1e-4) -> "LogisticModel":
    """Fit multinomial regression with C = 1: mean cross-entropy + |W|^2 / (2 n), by scipy's L-BFGS-B.

    Products with the features use the precision of the features, as in scikit-learn. All else is in fp64.
    """
    from scipy.optimize import minimize

    names, numbers = np.unique(labels, return_inverse=True)
    y = torch.from_numpy(numbers).to(x.device)
    rows = torch.arange(len(y), device=x.device)
    columns = 1 if len(names) == 2 else len(names)  # two classes share one weight vector
    shape = (x.shape[1] + 1, columns)

    def objective(flat: np.ndarray) -> tuple[float, np.ndarray]:
        weights = torch.from_numpy(flat).to(x.device).view(shape)
        scores = add_reference_class((x @ weights[:-1].to(x.dtype)).double() + weights[-1])
        likelihood = torch.log_softmax(scores, 1)
        loss = weights[:-1].square().sum() / (2 * len(y)) - likelihood[rows, y].mean()
        residual = likelihood.exp_()
        residual[rows, y] -= 1.0
        residual = residual[:, -columns:] / len(y)
        weight_gradient = (x.t() @ residual.to(x.dtype)).double() + weights[:-1] / len(y)
        gradient = torch.cat([weight_gradient, residual.sum(0, keepdim=True)])
        both = torch.cat([loss[None], gradient.flatten()]).cpu().numpy()  # one transfer
        return float(both[0]), both[1:]

    options = {"maxiter": MAX_STEPS, "maxls": 50, "gtol": tolerance, "ftol": 64 * np.finfo(float).eps}
    fitted = minimize(objective, np.zeros(shape).ravel(), jac=True, method="L-BFGS-B", options=options)
    return LogisticModel(names, torch.from_numpy(fitted.x).to(x.device).view(shape))


def add_reference_class(scores: Tensor) -> Tensor:
    """Add a zero score for the first of two classes, which share one weight vector."""
    return F.pad(scores, (1, 0)) if scores.shape[1] == 1 else scores


class LogisticModel:
    """A fitted logistic regression."""

    def __init__(self, names: np.ndarray, weights: Tensor):
        self.names, self.weights = names, weights

    def predict(self, x: Tensor) -> np.ndarray:
        best = add_reference_class(x.double() @ self.weights[:-1] + self.weights[-1]).argmax(1)
        return self.names[best.cpu().numpy()]
