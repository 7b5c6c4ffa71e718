"""Records, exact integer allocation, the planner and the session of a job: pure, and numpy only."""
