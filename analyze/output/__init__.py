"""Forms in which a report leaves the program."""
