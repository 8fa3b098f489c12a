"""Commands and background processes of a workspace."""
