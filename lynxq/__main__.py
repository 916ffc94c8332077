"""``python -m lynxq``."""

from lynxq.cli import main

if __name__ == "__main__":
    main()
