"""Waveforms: read, resample, MFCC, augmentation. Tensors in, tensors out."""
