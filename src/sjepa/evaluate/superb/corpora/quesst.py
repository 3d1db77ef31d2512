"""QUESST 2014: spoken queries, documents to search, and which documents contain which query."""

import re
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from pathlib import Path

from sjepa.errors import UserError
from sjepa.evaluate.superb.records import Utterance, find_folder, require_audio
from sjepa.evaluate.superb.sound import Sound
from sjepa.files import read_text

LANGUAGE = "nnenglish"  # the part of the corpus that SUPERB uses


@dataclass(frozen=True)
class Truth:
    """Ground truth: the documents that contain each query."""

    documents: dict[str, frozenset[str]]
    """Documents of each query that occurs in any."""
    trials: int
    """Number of documents in the corpus, in all languages."""


def read_quesst(root: Path) -> tuple[list[Utterance], dict[str, list[Utterance]], dict[str, Truth]]:
    """Read English documents, the English queries of `dev` and `eval`, and the ground truth of both.

    The ground truth covers all queries and documents of the corpus, as in its scoring tool. Trials of other languages
    have no score and get the lowest one.
    """
    root = find_folder(root, "quesst14Database") if not (root / "scoring").is_dir() else root
    documents = read_list(root, "language_key_utterances.lst")
    queries = {part: read_list(root, f"language_key_{part}.lst") for part in ("dev", "eval")}
    truths = {part: read_truth(root / "scoring" / f"groundtruth_quesst14_{part}") for part in queries}
    return documents, queries, truths


def read_list(root: Path, name: str) -> list[Utterance]:
    """Read the English files of a list of paths and languages. The first folder of a path is the corpus itself."""
    file = root / "scoring" / name
    if not file.is_file():
        raise UserError(f"there is no {file}: lines of a path and its language")
    utterances = []
    for number, line in enumerate(read_text(file).splitlines(), 1):
        fields = line.split()
        if fields and len(fields) != 2:
            raise UserError(f"{file} line {number}: {line.strip()!r} is not a path and a language")
        if fields and fields[1] == LANGUAGE:
            path = root / re.sub(r"^.*?/", "", fields[0])
            utterances.append(Utterance(path.stem, path, path.stem, sound=Sound.LOWERED))
    if not utterances:
        raise UserError(f"{file} has no files of {LANGUAGE}")
    require_audio([u.path for u in utterances], str(file))
    return utterances


def read_truth(folder: Path) -> Truth:
    """Read the ground truth: queries (`*.tlist.xml`), documents (`*.ecf.xml`) and occurrences (`*.rttm`)."""
    terms = {term.get("termid", "") for term in read_xml(folder, "*.tlist.xml").iter("term")}
    trials = sum(1 for _ in read_xml(folder, "*.ecf.xml").iter("excerpt"))
    documents_of: dict[str, set[str]] = {}
    for line in read_text(find_only_file(folder, "*.rttm")).splitlines():
        # LEXEME quesst14_00123 1 0.00 3.20 quesst14_dev_0001 lex ...
        fields = line.split()
        query = next((field for field in fields[2:] if field in terms), None)
        if fields[:1] == ["LEXEME"] and query is not None:
            documents_of.setdefault(query, set()).add(fields[1])
    if not documents_of:
        raise UserError(f"{folder}: no document contains any query")
    return Truth({query: frozenset(documents) for query, documents in documents_of.items()}, trials)


def read_xml(folder: Path, pattern: str) -> ElementTree.Element:
    file = find_only_file(folder, pattern)
    try:
        return ElementTree.parse(file).getroot()
    except ElementTree.ParseError as error:
        raise UserError(f"{file} is not XML: {error}") from error


def find_only_file(folder: Path, pattern: str) -> Path:
    files = sorted(folder.glob(pattern))
    if len(files) != 1:
        raise UserError(f"{folder} has {len(files)} files {pattern}; expected exactly one")
    return files[0]
