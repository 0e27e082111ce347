"""What travels with a run: the model card, for people and for programs, and RO-Crate metadata."""
