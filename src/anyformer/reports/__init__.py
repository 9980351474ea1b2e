"""Tables and pages as text: pure functions of cards and records."""
