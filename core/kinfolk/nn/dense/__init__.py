"""Plain decoders: full attention and a gated feed-forward part in every layer.

``config`` reads what their files state, ``weights`` lists their tensors, ``state`` says what a
sequence keeps. A family puts its own layers together, and adds what is its own.
"""
