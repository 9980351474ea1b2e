"""One loop for every task, with checkpoints, on one process or several."""
