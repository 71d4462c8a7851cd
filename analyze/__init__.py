"""The analysis half: from what a run left behind to a verdict."""
