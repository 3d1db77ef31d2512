"""QUESST 2014: spoken queries, the documents they are looked for in, and which of these have them."""

import re
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from pathlib import Path

from sjepa.errors import UserError
from sjepa.evaluate.superb.records import Utterance, folder_in, require_audio
from sjepa.evaluate.superb.sound import Sound

LANGUAGE = "nnenglish"  # SUPERB's part of the corpus


@dataclass(frozen=True)
class Truth:
    """Which documents hold which query, among all trials that count."""

    documents: dict[str, frozenset[str]]
    """Of each query that is in some document, the documents."""
    trials: int
    """All documents of the corpus, of every language."""


def read_quesst(root: Path) -> tuple[list[Utterance], dict[str, list[Utterance]], dict[str, Truth]]:
    """English documents, the English queries of `dev` and `eval`, and the truth of both.

    The truth counts all queries and documents of the corpus, as its own scoring tool does; trials without a score,
    those of other languages, have the lowest one.
    """
    root = folder_in(root, "quesst14Database") if not (root / "scoring").is_dir() else root
    documents = read_list(root, "language_key_utterances.lst")
    queries = {part: read_list(root, f"language_key_{part}.lst") for part in ("dev", "eval")}
    truths = {part: read_truth(root / "scoring" / f"groundtruth_quesst14_{part}") for part in queries}
    return documents, queries, truths


def read_list(root: Path, name: str) -> list[Utterance]:
    """English files of a list of paths and languages; the first folder of a path is the corpus itself."""
    file = root / "scoring" / name
    if not file.is_file():
        raise UserError(f"there is no {file}: lines of a path and its language")
    found = []
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        fields = line.split()
        if fields and len(fields) != 2:
            raise UserError(f"{file} line {number}: {line.strip()!r} is not a path and a language")
        if fields and fields[1] == LANGUAGE:
            path = root / re.sub(r"^.*?/", "", fields[0])
            found.append(Utterance(path.stem, path, path.stem, sound=Sound.LOWERED))
    if not found:
        raise UserError(f"{file} has no files of {LANGUAGE}")
    require_audio([u.path for u in found], str(file))
    return found


def read_truth(folder: Path) -> Truth:
    """The corpus's own truth: queries (`*.tlist.xml`), documents (`*.ecf.xml`), and which have which (`*.rttm`)."""
    terms = {term.get("termid", "") for term in read_xml(folder, "*.tlist.xml").iter("term")}
    trials = sum(1 for _ in read_xml(folder, "*.ecf.xml").iter("excerpt"))
    found: dict[str, set[str]] = {}
    for line in only(folder, "*.rttm").read_text(encoding="utf-8").splitlines():
        # LEXEME quesst14_00123 1 0.00 3.20 quesst14_dev_0001 lex ...
        fields = line.split()
        query = next((field for field in fields[2:] if field in terms), None)
        if fields[:1] == ["LEXEME"] and query is not None:
            found.setdefault(query, set()).add(fields[1])
    if not found:
        raise UserError(f"{folder}: no document holds any query")
    return Truth({query: frozenset(documents) for query, documents in found.items()}, trials)


def read_xml(folder: Path, pattern: str) -> ElementTree.Element:
    file = only(folder, pattern)
    try:
        return ElementTree.parse(file).getroot()
    except ElementTree.ParseError as error:
        raise UserError(f"{file} is not XML: {error}") from error


def only(folder: Path, pattern: str) -> Path:
    files = sorted(folder.glob(pattern))
    if len(files) != 1:
        raise UserError(f"{folder} has {len(files)} files {pattern}; one is needed")
    return files[0]
