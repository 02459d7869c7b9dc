"""How a node is reached: a transport (ssh or local), one channel to the agent, typed calls on top.

Nothing here is imported before it is needed: `local` works without fabric and paramiko being loaded.
"""
