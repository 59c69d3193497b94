"""The gemma4 family for kinfolk."""
