"""Engine: runs a scheme on a cluster in virtual time."""
