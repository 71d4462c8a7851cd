"""What a host's links did beside the rounds: events, counters, connections; for `roundk links`."""
