"""The verbs of the command line: a file each, with its options as a dataclass and `run(arguments)`."""
