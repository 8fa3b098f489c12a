"""`python -m tidegate` is the `tidegate` command."""

from tidegate.cli import main

if __name__ == "__main__":
    main()
