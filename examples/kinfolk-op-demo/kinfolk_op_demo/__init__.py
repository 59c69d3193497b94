"""An op back end for kinfolk."""
