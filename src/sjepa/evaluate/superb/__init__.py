"""SUPERB: small heads trained on a frozen encoder, to s3prl's protocol."""
