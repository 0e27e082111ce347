"""What goes to others: leaderboard, submission, task folders, metadata for other programs."""
