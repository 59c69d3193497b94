"""The checks of the conformance kit, one file for each part of the contract."""
