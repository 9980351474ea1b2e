"""One file = one question: claims, trials, verdicts."""
