"""What learners, features, pretraining and stacking reach on simulated showers."""
