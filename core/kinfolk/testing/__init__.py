"""Tools to test a family with; nothing at run time imports them."""
