"""Executes plans: one run from its first connection to its outcome, and the node always given back.

session, loop                      the whole run; the steps of its plan
prepare (fitting, arguments, smoke, overlay), doctor     what is looked at before the node is touched
guarding, give_back, restore       taking the node, and giving it back
boot (readiness, confirm, loading, local_load, switching)     one server: ready, canary, points
events, sampling, pulse, collect   what is told and kept on the way
options, signals, runlock          the command line's part; who drives a run, and who may end it
resume, finish, tuning             going on with a run, its outcome, and the question of `dynspec tune`
"""
