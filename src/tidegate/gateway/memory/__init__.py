"""The memory of the process: how much it may use, what it is made of, and how it is given back."""
