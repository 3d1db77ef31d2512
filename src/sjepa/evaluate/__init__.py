"""A frozen encoder in, numbers out."""
