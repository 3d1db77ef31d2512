"""Encoder, predictor and cluster head together: what is trained."""

import torch
from torch import Tensor, nn

from sjepa.model.encoder import Encoder
from sjepa.model.encoder_config import EncoderConfig
from sjepa.model.predictor import ClusterHead, Predictor, PredictorConfig


class SJEPA(nn.Module):
    def __init__(
        self, encoder: EncoderConfig, predictor: PredictorConfig, components: int, visible_path: str = "encoder"
    ):
        super().__init__()
        self.encoder = Encoder(encoder)
        self.predictor = Predictor(encoder.hidden_size, predictor)
        self.head = ClusterHead(encoder.hidden_size, components)
        self.visible_path = visible_path

    def predict(self, z: Tensor, mask: Tensor) -> Tensor:
        """Logits (B, T, K) from the encoder's output: of the predictor at masked frames, its own at visible ones."""
        predicted = self.predictor(z, mask)
        if self.visible_path == "encoder":
            predicted = torch.where(mask.unsqueeze(2), predicted, z.to(predicted.dtype))
        return self.head(predicted)

    def replace_output(self, components: int) -> None:
        """Give the head a new last layer: at the phase boundary only K changes."""
        old = self.head.output
        new = nn.Linear(old.in_features, components)
        nn.init.normal_(new.weight, std=0.02)  # before it moves: a GPU draws other numbers from the same seed
        nn.init.zeros_(new.bias)
        self.head.output = new.to(old.weight.device)
