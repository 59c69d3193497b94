"""HTTP for a loaded model. Knows requests and text; no tensors, no sequences."""
