"""From measured points to claims. Pure: records, clocks and files are somebody else's.

validity (evidence, likeness)      may this point be claimed?
stats, verdict, crossover          boots -> intervals, better / worse / inconclusive, where lines cross
switching, stepping, recommend, equality     what switching costs, which threshold, is the text the same
summary (roles, study)             all of it as summary.json
compare, gate (setups)             two runs against each other
failure, trace                     what ended a boot; how modes and clocks went over time
"""
