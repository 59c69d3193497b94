"""Ops: reference, CPU and Triton implementations. Imports torch, triton and numpy only."""
