"""A run's encoder for other programs: Hugging Face, ONNX, torch.export."""
