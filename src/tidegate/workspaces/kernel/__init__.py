"""Kernel interfaces: control groups, seccomp, `/proc` and users."""
