"""What people look at: tables, HTML reports, leaderboard, submission, event display, doctor."""
