"""Real load: puts the load of a trace on this machine, or throttles its processes."""
