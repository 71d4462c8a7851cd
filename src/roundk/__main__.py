"""`python -m roundk`."""

from __future__ import annotations

from roundk.cli import main

if __name__ == "__main__":
    main()
