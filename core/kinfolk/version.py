"""The version of kinfolk and of the packages released with it."""

__version__ = "0.1.0"
