"""`python -m paceline`: the command, where the shell does not find it."""

from paceline.cli import main

if __name__ == "__main__":
    main()
