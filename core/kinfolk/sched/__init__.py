"""Who runs next. Torch-free: plans are integers."""
