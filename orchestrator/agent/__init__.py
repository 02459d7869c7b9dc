"""What runs on the node: the agent (one per channel) and the guardian (one per run). Standard library only, Python 3.8.

`pack.py` puts these modules into one zipapp that goes up under its own hash. `protocol.md` is the contract with the
controller; nothing here imports the rest of the project.
"""
