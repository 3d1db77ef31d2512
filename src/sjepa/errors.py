class UserError(Exception):
    """A mistake a person can mend: shown as one line, never as a traceback."""
