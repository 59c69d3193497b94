"""The laguna family for kinfolk."""
