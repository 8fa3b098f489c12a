"""Memory: notes that outlive conversations."""
