"""How models are reached: one pool of connections for the process, and the seam at which it can be replaced.

Guarantee: the rest of the room knows of it only what `traffic` says.
"""
