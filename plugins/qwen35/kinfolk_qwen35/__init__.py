"""The qwen35 family for kinfolk."""
