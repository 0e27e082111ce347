"""Learners on feature tables: boosted trees, forests, quadratic logit."""
