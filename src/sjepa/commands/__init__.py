"""One module per command, with its options as a dataclass and `run(arguments)`."""
