"""What a model card states and no run records: licence, credit and results. card.json keeps it with the encoder."""

from dataclasses import asdict, dataclass, fields
from pathlib import Path

from sjepa.fields import TEXT, check_fields
from sjepa.files import dump_json, read_json, write_whole

UNKNOWN = "unknown"


@dataclass(frozen=True)
class CardFacts:
    """Parts of a model card that travel with an encoder when it is exported again."""

    licence: str = UNKNOWN
    """Licence of the weights, as an identifier of the Hugging Face Hub."""
    about: str = ""
    """A paragraph in Markdown, for example on the audio and whom to credit."""
    results: str = ""
    """Tables of results in Markdown."""

    @property
    def known_licence(self) -> str:
        """The licence, or nothing if it is not known."""
        return "" if self.licence == UNKNOWN else self.licence

    def save(self, file: Path) -> None:
        write_whole(file, dump_json(asdict(self), indent=1) + "\n")


def read_card_facts(file: Path) -> CardFacts:
    """Read a card.json. Without the file, nothing is known."""
    found = read_json(file) if file.is_file() else {}
    names = [field.name for field in fields(CardFacts)]
    check_fields(found, dict.fromkeys(names, TEXT), str(file))
    return CardFacts(**{name: found[name] for name in names if name in found})
