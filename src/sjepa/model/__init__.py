"""The networks: encoder, predictor and cluster head."""
