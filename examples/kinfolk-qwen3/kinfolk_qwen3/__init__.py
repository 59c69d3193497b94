"""The qwen3 family for kinfolk."""
