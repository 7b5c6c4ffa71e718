"""Transports: how reports and plans travel."""
