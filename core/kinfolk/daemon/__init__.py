"""The daemon: several requests over one stream of lines, answered by frames of integers."""
