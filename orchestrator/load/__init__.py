"""Drives the load generator: what to send (`prompts`), how (`point`), and the program that does it (`pack`)."""
