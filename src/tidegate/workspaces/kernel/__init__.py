"""Interfaces of the kernel: control groups, seccomp, `/proc`, users."""
