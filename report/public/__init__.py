"""What goes to others: leaderboard, published results, submission."""
