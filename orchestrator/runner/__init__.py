"""Executes plans: one run from its first connection to its outcome, and the node always given back."""
