"""The folder of an index, or of shards: the names of its files, and what index.json says.

    index.json      format, summary, root of the paths, fingerprint
    audio.arrow     file, byte_offset, byte_size, start, length: numbers in one record batch, mapped as numpy arrays
    files.arrow     path: bytes, relative to the root or absolute
    labels.arrow    id, speaker, sex, chapter, text; split and labels (a JSON object of further columns) if any has them
    refused.txt     the files that were left out, with reasons
    unpacked/       audio that was compressed in Parquet files, if there is any
    parts/          only during the build: its settings, and finished pieces from which an interrupted build continues

Shards are an index whose files are tars in the same folder. No other module knows these names.
"""

import json
from pathlib import Path
from typing import Any

from sjepa.audio.io import BadAudioError, one_line
from sjepa.data.storage import ByteRange, is_url, read_bytes
from sjepa.errors import UserError
from sjepa.fields import NUMBER, TEXT, WHOLE, check_fields, one_of, require, table_of
from sjepa.files import contents, read_json, write_whole
from sjepa.progress import say

FORMAT = "sjepa index 1"
FACTS_FILE = "index.json"
FACTS = {
    "fingerprint": TEXT,
    "root": TEXT,
    "files": WHOLE,
    "utterances": WHOLE,
    "hours": NUMBER,
    "speakers": WHOLE,
    "sexes": table_of(WHOLE),
    "chapters": WHOLE,
    "transcripts": WHOLE,
    "durations": table_of(WHOLE),
    "refused": WHOLE,
}


class IndexFolder:
    """The folder of an index, which may not exist yet, or the URL of one. Only `exists` and `facts` accept a URL."""

    def __init__(self, where: str | Path):
        self.where = str(where)
        self.path = Path(where)

    @property
    def facts_file(self) -> Path:
        return self.path / FACTS_FILE

    @property
    def audio(self) -> Path:
        return self.path / "audio.arrow"

    @property
    def files(self) -> Path:
        return self.path / "files.arrow"

    @property
    def labels(self) -> Path:
        return self.path / "labels.arrow"

    @property
    def refused(self) -> Path:
        """The list of files that were left out."""
        return self.path / "refused.txt"

    @property
    def unpacked(self) -> Path:
        return self.path / "unpacked"

    @property
    def parts(self) -> Path:
        return self.path / "parts"

    def require_same(self, settings: dict[str, Any]) -> dict[str, Any]:
        """Return the contents of index.json. Raise UserError if the index was made with other settings."""
        facts = self.facts()
        if {name: facts.get(name) for name in settings} != settings:
            raise UserError(f"{self.where} already holds another index: delete it, or choose another --out")
        say(f"{self.where} is already complete; delete it to make it again")
        return facts

    def part(self, key: str) -> Path:
        """A finished piece of an unfinished index."""
        return self.parts / f"{key}.arrow"

    @property
    def settings_file(self) -> Path:
        """The settings of an unfinished index. This file marks the folder as ours until index.json does."""
        return self.parts / "settings.json"

    def require_ours(self, settings: dict[str, Any]) -> None:
        """Raise UserError unless a build with these settings may write to the folder: it is empty, or continues one."""
        past = read_json(self.settings_file) if self.settings_file.is_file() else {}
        if past.get("format") != FORMAT:
            own = {self.unpacked}
            if self.parts.is_dir() and not contents(self.parts):  # left by a build that was killed at once
                own.add(self.parts)
            if set(contents(self.path)) - own:
                raise UserError(f"{self.where} is not empty and is not an index: choose another --out")
        # The pieces of an index are named by its settings, so pieces of other settings do no harm. Shards are not.
        elif "shards" in (past | settings) and past != {"format": FORMAT} | settings:
            raise UserError(
                f"{self.where} holds an unfinished index with other settings: delete it, or choose another --out"
            )

    def begin(self, settings: dict[str, Any]) -> None:
        """Start a build, or continue one."""
        self.parts.mkdir(exist_ok=True)
        write_whole(self.settings_file, json.dumps({"format": FORMAT} | settings) + "\n")

    @property
    def exists(self) -> bool:
        """Whether this is an index. index.json is written last, so it marks one. Every URL counts as an index."""
        return is_url(self.where) or self.facts_file.is_file()

    def facts(self) -> dict[str, Any]:
        """Return the contents of index.json. Raise UserError if this is not a valid index."""
        name = f"{self.where.rstrip('/')}/{FACTS_FILE}"
        try:
            facts: Any = json.loads(read_bytes(ByteRange(name)))
        except BadAudioError as error:
            raise UserError(str(error)) from None
        except (ValueError, RecursionError) as error:
            raise UserError(f"{name} is not valid JSON ({one_line(error)}): rebuild the index") from None
        if not isinstance(facts, dict) or facts.get("format") != FORMAT:
            raise UserError(f"{name} is not an index that this version can read: build one with `sjepa index`")
        for key, kind in FACTS.items():
            require(facts, key, kind, name)
        check_fields(facts, {"shards": one_of("flac", "int16")}, name)
        return facts
