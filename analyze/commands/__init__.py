"""One module per command of the analysis side."""
