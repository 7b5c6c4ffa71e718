"""The claims of experiments that have many of them."""
