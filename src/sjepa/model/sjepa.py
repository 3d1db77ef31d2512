"""The trained model: encoder, predictor and cluster head."""

import torch
from torch import Tensor, nn

from sjepa.model.encoder import EncoderNetwork
from sjepa.model.encoder_config import EncoderConfig
from sjepa.model.predictor import ClusterHead, Predictor, PredictorConfig


class SJEPA(nn.Module):
    """The model that pre-training optimises."""

    def __init__(
        self, encoder: EncoderConfig, predictor: PredictorConfig, components: int, visible_path: str = "encoder"
    ):
        super().__init__()
        self.encoder = EncoderNetwork(encoder)
        self.predictor = Predictor(encoder.hidden_size, predictor)
        self.head = ClusterHead(encoder.hidden_size, components)
        self.visible_path = visible_path

    def predict(self, z: Tensor, mask: Tensor) -> Tensor:
        """Return logits (B, T, K) for the encoder output z (B, T, D).

        Masked frames go through the predictor. Visible frames skip it, unless `visible_path` is "predictor".
        """
        predicted = self.predictor(z, mask)
        if self.visible_path == "encoder":
            predicted = torch.where(mask.unsqueeze(2), predicted, z.to(predicted.dtype))
        return self.head(predicted)

    def replace_output(self, components: int) -> None:
        """Replace the last layer of the head, because K changes at the phase boundary."""
        old = self.head.output
        new = nn.Linear(old.in_features, components)
        nn.init.normal_(new.weight, std=0.02)  # on the CPU: a GPU draws other numbers from the same seed
        nn.init.zeros_(new.bias)
        self.head.output = new.to(old.weight.device)
