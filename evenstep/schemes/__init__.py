"""Schemes: who waits for whom. Pure state machines that answer arrivals."""

from evenstep.schemes.bsp import Bsp

__all__ = ["SCHEMES", "Bsp"]

SCHEMES = {"bsp": Bsp}
