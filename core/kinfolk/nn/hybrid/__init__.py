"""Hybrid decoders: gated delta nets, with full attention in every few layers.

``config`` reads the metadata, ``weights`` lists the tensors, ``trunk`` builds the layers; a family
adds its feed-forward network.
"""
