"""The qwen35moe family for kinfolk."""
