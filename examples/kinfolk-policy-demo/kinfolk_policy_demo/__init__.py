"""A policy for kinfolk."""
