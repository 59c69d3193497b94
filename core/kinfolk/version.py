"""The version of the distribution and of everything shipped with it."""

__version__ = "0.1.0"
