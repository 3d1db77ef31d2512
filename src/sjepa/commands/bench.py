"""`sjepa bench SUBJECT`: measure this machine."""

from importlib import import_module

from sjepa.errors import UserError

# Each subject is the module of its name in sjepa.bench.
SUBJECTS = {
    "step": "the training step and its parts, beside other implementations",
    "data": "decoding of wav, flac, opus and mp3 per core, and what the loader gives",
}


def usage() -> str:
    subjects = "\n".join(f"  {name:<10} {what}" for name, what in SUBJECTS.items())
    return f"usage: sjepa bench SUBJECT ...\n\n{subjects}\n\n`sjepa bench SUBJECT --help` explains every option."


def run(arguments: list[str]) -> None:
    subject = arguments[0] if arguments else "--help"
    if subject in ("-h", "--help"):
        print(usage())
    elif subject in SUBJECTS:
        import_module(f"sjepa.bench.{subject}").run(arguments[1:])
    else:
        from sjepa.config import suggestion

        raise UserError(
            f"there is no bench {subject!r}{suggestion(subject, SUBJECTS)}; there are {', '.join(SUBJECTS)}"
        )
