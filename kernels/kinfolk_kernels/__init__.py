"""Ops with reference, CPU and Triton implementations. Imports only torch, triton and numpy."""
