"""The named learners: ours, the published networks, and averages of fits."""
