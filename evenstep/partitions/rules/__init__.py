"""Rules of migration: when samples move, how many, and which. Pure: no I/O, no clock."""
