"""What is predicted: mixtures, codebooks, the target encoder and the choice of its layer."""
