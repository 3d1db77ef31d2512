"""`sjepa bench SUBJECT`: measure this machine."""

from sjepa.subcommands import call

# Each subject is the module of its name in sjepa.speed.
SUBJECTS = {
    "step": "the training step and its parts, beside other implementations",
    "gmm": "posteriors, online updates and EM, beside the paper's loop and scikit-learn",
    "encode": "the encoder's inference, beside Hugging Face's HubertModel with the same weights",
    "data": "decoding of wav, flac, opus and mp3 per core, and what the loader gives",
}


def run(arguments: list[str]) -> None:
    call("sjepa bench", "subject", SUBJECTS, "sjepa.speed", arguments)
