"""`sjepa bench SUBJECT`: measure this machine."""

from sjepa.subcommands import call

# Each subject is the module of its name in sjepa.speed.
SUBJECTS = {
    "step": "time the training step and its parts, and compare with other implementations",
    "gmm": "time posteriors, online updates and EM, and compare with a direct implementation and scikit-learn",
    "encode": "time the encoder's inference, and compare with Hugging Face's HubertModel on the same weights",
    "data": "time decoding of wav, flac, opus and mp3 per core, and the data loader",
}


def run(arguments: list[str]) -> None:
    call("sjepa bench", "subject", SUBJECTS, "sjepa.speed", arguments)
