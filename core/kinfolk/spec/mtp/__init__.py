"""MTP: a block behind the model's layers that predicts further tokens (arXiv 2412.19437, 2.2)."""
