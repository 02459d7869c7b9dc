"""A stand-in for SGLang: its HTTP surface, flags, log and scheduling on simulated time; no GPU, no model.

The folder is copied beside a serving tree and runs under that tree's interpreter, so it imports the standard
library only, keeps to Python 3.8 syntax and uses relative imports. `entry.main` is what the tree's
`sglang/launch_server.py` calls. Everything it measures is invented from `timing.json`; it says so on its
first log line and in `/server_info`.
"""

SIMULATED = "SIMULATED engine: no GPU and no model behind it; step times come from a parameter file"
