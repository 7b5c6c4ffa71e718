"""Records, exact integer allocation and metrics: pure, and numpy only."""
