"""The command line: a dict of commands, each importing what it needs when it is called."""
