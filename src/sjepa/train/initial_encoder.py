"""The encoder that a run starts from (`init_from`)."""

from torch import Tensor

from sjepa.errors import UserError
from sjepa.model import formats
from sjepa.model.encoder_config import SIZES, EncoderConfig
from sjepa.runs.locate import find_encoder, suggest_repair
from sjepa.settings_file import load_preset, preset_names


def read_initial_encoder(source: str, config: EncoderConfig) -> dict[str, Tensor]:
    """Read the weights of an encoder. Raise UserError if its size is not that of the config."""
    place = find_encoder(source)
    with suggest_repair(place):
        weights, stated = formats.read_encoder(place)

    def list_differences(other: EncoderConfig) -> list[str]:
        differing = [name for name in SIZES if getattr(stated, name) != getattr(other, name)]
        return [f"--encoder.{name.replace('_', '-')} {getattr(stated, name)}" for name in differing]

    if differences := list_differences(config):
        fitting = [name for name in preset_names() if not list_differences(load_preset(name).encoder)]
        advice = f"use --preset {' or '.join(fitting)}" if fitting else f"set {' '.join(differences)}"
        raise UserError(f"{source} holds an encoder of another size than the config: {advice}")
    return weights
