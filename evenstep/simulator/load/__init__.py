"""Real load: replays a trace as load on this machine, or throttles processes."""
