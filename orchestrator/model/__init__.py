"""The nouns: Experiment (what the user wrote), Facts (what the node is), Plan (what will happen), results.

Frozen values without behaviour beyond small derived properties. Units are in the names.
"""
