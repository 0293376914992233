"""Entry point of `python -m paceline`."""

from paceline.cli import main

if __name__ == "__main__":
    main()
