"""Decoders that mix gated delta nets with full attention every few layers.

``config`` reads what such files state, ``weights`` lists their tensors, ``trunk`` builds the
layers; a family adds its feed-forward part.
"""
