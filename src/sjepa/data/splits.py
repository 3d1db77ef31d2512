"""Names of splits: which part of a corpus they mean."""

PREFIXES = {"train": ("train",), "dev": ("dev", "val", "cv"), "test": ("test", "eval")}


def find_split_part(name: str) -> str:
    """Return the part that a split is by the start of its name: train, dev or test. Empty if it is none of them."""
    return next((part for part, prefixes in PREFIXES.items() if name.lower().startswith(prefixes)), "")


def is_split_folder(name: str) -> bool:
    """Return whether a folder is named after a split. cv does not count: Common Voice comes as cv-corpus-VERSION."""
    return find_split_part(name) != "" and not name.lower().startswith("cv")
