"""Placement and storage of the experts of mixture-of-experts layers."""
