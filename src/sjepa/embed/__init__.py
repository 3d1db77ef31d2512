"""Write features, posteriors or units of recordings of any length to disk."""
