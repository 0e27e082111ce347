"""What people look at: tables, the HTML report, leaderboard, submission, event display, doctor."""
