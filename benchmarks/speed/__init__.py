"""Speed of kernels, training, decoding, serving and exported models."""
