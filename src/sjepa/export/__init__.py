"""Export an encoder to other programs: Hugging Face, ONNX, torch.export."""
