"""The scheduler: plans of steps, as integers. Torch-free."""
