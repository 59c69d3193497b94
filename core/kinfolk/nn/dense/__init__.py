"""Dense decoders: full attention and a gated feed-forward network in every layer.

``config`` reads the metadata, ``weights`` lists the tensors, ``state`` plans the state. A family
builds the layers from :mod:`kinfolk.nn` and adds its own parts.
"""
