"""The Ray engine: workers and the shards of the parameter server as Ray actors, for real.

Read `start` first, then `engine`, which holds the scheme and the planner in this process; `crew`
and `server` are the workers and the shards as it sees them, the two `_actor`s what they do.
"""
