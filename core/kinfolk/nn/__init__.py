"""Building blocks of models, made of ops and weights."""
