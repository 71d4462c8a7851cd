"""Many failed runs at once: finding them, judging each in a process of its own, and what they say together."""
