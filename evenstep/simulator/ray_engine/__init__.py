"""The Ray engine: runs workers and the shards of the parameter server as Ray actors.

Read `start` first, then `engine`, which holds the scheme and the planner in this process. `workers`
and `server` are the coordinator's side of the workers and shards, the two `_actor`s their own side.
"""
