"""`sjepa bench`: measure speed on this machine. One module per subject, each with `run(arguments)`."""
