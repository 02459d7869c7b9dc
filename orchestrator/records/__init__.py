"""A run folder read without its node: at the end of a run, and ever after with `report`, `compare`, `gate`, `logs`.

begun, lockfile, sameness, kept    what was run, on what; what of it a resumed run keeps
events, boots, gpu_samples         what happened; logs, samples and failures of each boot
planned, served, points            the plan; arms as they were served; each measurement with what speaks against it
summary, info                      summary.json, and what a report says beside its numbers
results, gating, stepping          claims and report files; against other runs
damage                             what is lost, and what cannot be said without it
"""
