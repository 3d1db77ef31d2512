"""`sjepa bench`: how fast this machine is. One module per subject, each with `run(arguments)`."""
