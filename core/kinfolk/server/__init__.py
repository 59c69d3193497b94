"""HTTP server of a loaded model: requests and text; no tensors, no sequences."""
